# SPDX-License-Identifier: Apache-2.0
"""rapt: attention that always runs the right kernel and says why. docs/python.md is the page to read."""

from . import _log, _rapt
from ._doctor import Diagnosis, doctor
from ._errors import ArgumentError, BackendError, RefusedError
from ._numpy import attention, explain, report_line
from ._policy import policy
from ._report import Report, last_report

__version__ = _rapt.VERSION
__all__ = [
    "ArgumentError", "BackendError", "Diagnosis", "RefusedError", "Report", "attention", "doctor", "explain", "last_report",
    "policy", "report_line",
]
