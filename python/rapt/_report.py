# SPDX-License-Identifier: Apache-2.0
"""The decision of one call as a Python object, and the last one of this task and thread.

A report lives in the core, or, once it was pickled, as the texts and numbers that the core gave of it."""

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

    __slots__ = ("_handle", "_names", "_json", "_decision", "_saved", "notes")

    def __init__(self, handle, names=None, notes=()):
        self._handle, self._names, self._json, self._decision, self._saved = handle, names, None, None, None
        self.notes = tuple(notes)       # what the binding did to the arguments before the core saw them

    def __reduce__(self):
        forms = tuple(self._form(form) for form in (_TEXT, _JSON, _BRIEF))
        return _restored, ((forms, self.decision, self.error), self.notes)

    def _form(self, form):
        if self._saved is not None:
            return self._saved[0][form]
        return _rapt.report_format(self._handle, form, self._names)

    def _noted(self, text):
        lines = "".join(f"  {'binding':<11}{note}\n" for note in self.notes)
        head, newline, rest = text.partition("\n")
        return head + newline + lines + rest

    def entered(self):
        """The binding has just run the row of this report itself: counts that, and from now on the report says so."""
        _rapt.report_entered(self._handle)
        return self

    def __str__(self):
        return self._noted(self._form(_BRIEF))

    @property
    def text(self):
        """The text form with every row and every reason."""
        return self._noted(self._form(_TEXT))

    def __repr__(self):
        return f"<rapt report: {self.status} {self.row or 'no row'}>"

    @property
    def json_text(self):
        """The JSON form, byte for byte as the core writes it (R6)."""
        return self._form(_JSON)

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
            saved = self._saved
            self._decision = saved[1] if saved is not None else _rapt.report_decision(self._handle)
        return self._decision

    @property
    def error(self):
        """(code, field, axis, index, got, want) of a call with a fault, else None."""
        if self._saved is not None:
            return self._saved[2]
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


def _restored(saved, notes):
    report = Report(None, None, notes)
    report._saved = saved
    return report


_last = contextvars.ContextVar("rapt.last_report", default=None)


def set_last(report):
    """report: a Report, or a function that makes it when somebody asks."""
    _rapt.ops_forget()
    _last.set(report)



def last_report():
    """The report of the last rapt call of this task and thread; None before the first."""
    pending = _rapt.ops_report()        # of an operator of the PyTorch binding
    if pending is not None and pending[1] is not None:
        set_last(Report(pending[1], notes=filter(None, pending[2:])))
    last = _last.get()
    if callable(last):                  # a report that is made when it is asked for
        last = last()
        set_last(last)
    return last
