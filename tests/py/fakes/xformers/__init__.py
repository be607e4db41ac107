# SPDX-License-Identifier: Apache-2.0
"""xFormers 0.0.35."""

__version__ = "0.0.35"
