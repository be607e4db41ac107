# SPDX-License-Identifier: Apache-2.0
"""The decision of one call as a Python object, and the last one of this task and thread."""

import contextvars
import json
from collections import namedtuple

from . import _rapt

Reason = namedtuple("Reason", "code state field axis index got want text")
Verdict = namedtuple("Verdict", "row verdict reasons")

_TEXT, _JSON, _BRIEF = 0, 1, 2


class Report:
    """What a call did or would do, and what kept every other row from doing it (R2). str() is the short
    text form, `text` the one with every row and reason."""

    __slots__ = ("_handle", "_names", "_json", "_decision")

    def __init__(self, handle, names=None):
        self._handle, self._names, self._json, self._decision = handle, names, None, None

    def __str__(self):
        return _rapt.report_format(self._handle, _BRIEF, self._names)

    @property
    def text(self):
        """The text form with every row and every reason."""
        return _rapt.report_format(self._handle, _TEXT, self._names)

    def __repr__(self):
        return f"<rapt report: {self.status} {self.row or 'no row'}>"

    @property
    def json_text(self):
        """The JSON form, byte for byte as the core writes it (R6)."""
        return _rapt.report_format(self._handle, _JSON, self._names)

    @property
    def json(self):
        """The JSON form as a dict."""
        if self._json is None:
            self._json = json.loads(self.json_text)
        return self._json

    @property
    def decision(self):
        """(status, row, kernel, level, cast_dtype, casts) as numbers and ids."""
        if self._decision is None:
            self._decision = _rapt.report_decision(self._handle)
        return self._decision

    @property
    def error(self):
        """(code, field, axis, index, got, want) of a call with a fault, else None."""
        fault = _rapt.report_error(self._handle)
        return None if fault is None else fault[1:]

    @property
    def status(self):
        """"OK", "ARG" or "REFUSED"."""
        return _rapt.STATUSES[self.decision[0]]

    @property
    def row(self):
        """The id of the row that was chosen, else None."""
        return self.decision[1] or None

    @property
    def kernel(self):
        """The full name of the kernel, else None."""
        return self.decision[2] or None

    @property
    def rows(self):
        """One Verdict a row, in table order, each with all its reasons."""
        return [
            Verdict(row["row"], row["verdict"], tuple(Reason(**reason) for reason in row["reasons"]))
            for row in self.json["rows"]
        ]

    def codes(self, row):
        """The codes of the constraints that this row fails."""
        for verdict in self.rows:
            if verdict.row == row:
                return [reason.code for reason in verdict.reasons if reason.state == "failed"]
        raise KeyError(row)


_last = contextvars.ContextVar("rapt.last_report", default=None)
set_last = _last.set


def last_report():
    """The report of the last rapt call of this task and thread; None before the first."""
    return _last.get()
