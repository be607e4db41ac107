# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the package, and how a fault of the core becomes one (E3, E8)."""

import difflib

from . import _rapt

CODE = {name: value for value, name in enumerate(_rapt.CODES)}
FIELD = {name: value for value, name in enumerate(_rapt.FIELDS)}
DTYPE = {name: value for value, name in enumerate(_rapt.DTYPES)}
STATUS = {name: value for value, name in enumerate(_rapt.STATUSES)}


class ArgumentError(ValueError):
    """The call is wrong for any backend. `code`, `field`, `got` and `want` say what, `report` is the core's report of
    it, or None where the fault was met before there was a problem to report on."""

    def __init__(self, text, code=None, field=None, got=None, want=None, report=None):
        super().__init__(text)
        self.code, self.field, self.got, self.want, self.report = code, field, got, want, report


class RefusedError(RuntimeError):
    """The call is legal and no permitted backend can run it; `report` gives every row with all its reasons."""

    def __init__(self, report):
        super().__init__(str(report))
        self.report = report


class BackendError(RuntimeError):
    """A backend failed while it ran, or the library broke a promise of its own; outputs are undefined."""

    def __init__(self, text, report=None):
        super().__init__(text)
        self.report = report


def argument_error(reason, names, report=None, addition=""):
    """reason: (code, field, axis, index, got, want); names: a host's own spellings, or None."""
    code, field, _, _, got, want = reason
    spelling = (names[field] if names else None) or _rapt.FIELDS[field]
    text = _rapt.reason_text(reason, names) + addition
    return ArgumentError(text, _rapt.CODES[code], spelling, got, want, report)


def wrong(code, field, got, want, names=None, axis=-1):
    """A fault that the binding itself has found."""
    return argument_error((CODE[code], FIELD[field], axis, -1, str(got), str(want)), names)


def refuse(name, got, want, code="UNKNOWN_FIELD"):
    """A fault of an argument that the core has no field for, or that never gets as far as the core."""
    return ArgumentError(f"{code}: {name} is {got}; {want}.", code, name, str(got), str(want))


def unknown_keyword(name, known):
    close = difflib.get_close_matches(name, known, 3, 0.5)
    close += [other for other in known if name in other.split("_") + [other[:len(name)]] and other not in close]
    hint = f"did you mean {' or '.join(close[:3])}?" if close else "help() of the function lists the keywords"
    return ArgumentError(f"UNKNOWN_FIELD: {name} is not accepted; {hint}", "UNKNOWN_FIELD", name, name, hint)


def failed(status, report, names, addition=""):
    """The exception for a status that is not OK. addition: a host's own words on a mix of dtypes."""
    name = _rapt.STATUSES[status]
    reason = report.error if report is not None else None
    if name == "ARG" and reason is not None:
        return argument_error(reason, names, report, addition if reason[0] == CODE["DTYPE_MIX"] else "")
    if name == "REFUSED" and report is not None:
        return RefusedError(report)
    words = _rapt.reason_text(reason, names) if reason is not None else "no further words"
    return BackendError(f"{name}: {words}", report)
