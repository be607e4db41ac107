# SPDX-License-Identifier: Apache-2.0
"""Scopes of preference. The core has none: a scope is resolved into each call, below the call's own argument (D9)."""

import contextvars
import operator

from . import _rapt
from ._errors import argument_error, refuse, unknown_keyword

_scope = contextvars.ContextVar("rapt.policy", default=None)


def names_text(value, field):
    """Names as the core takes them: a string as given, or a list joined by commas. None: not set, and so is an empty
    string or list, which would else name rows that nobody has."""
    if value is None or isinstance(value, str):
        return value or None
    try:
        parts = list(value)
    except TypeError:
        parts = [None]
    if not all(isinstance(part, str) for part in parts):
        raise refuse(field, repr(value), "a string or a list of strings is needed", "UNKNOWN_NAME")
    return ",".join(parts) or None


def bytes_of(memory_limit):
    try:
        if not isinstance(memory_limit, bool) and 0 <= operator.index(memory_limit) < 2**63:
            return operator.index(memory_limit)
    except TypeError:
        pass
    raise refuse("memory_limit", repr(memory_limit), "a whole number of bytes is needed, 0 for none", "UNKNOWN_FIELD")


contexts = []                           # where a scope's names are looked up, one a binding; any may know a name
_checked = set()


def _check(names):
    """Raises for a name that no binding knows. A name that is legal once stays so: rows are only ever added."""
    options = {field: text for field, text in zip(("require", "prefer", "forbid"), names) if text}
    if not options or names in _checked:
        return
    shape = (0, _FP32, (1, 1, 1), (1, 1, 1), 0, 0)
    call = _rapt.prepare(dict.fromkeys("qkv", shape), options)
    faults = []
    for context in contexts:
        status, report = _rapt.explain(context.handle, call)
        fault = _rapt.report_error(report) if report is not None else None
        if fault is None:
            _checked.add(names)
            return
        faults.append(fault[1:])
    raise argument_error(faults[-1], None)


_FP32 = _rapt.DTYPES.index("fp32")


class _Level:
    """The settings in force inside one scope, those of the scopes around it included."""

    __slots__ = ("require", "prefer", "forbid", "memory_limit", "given", "outer", "key")

    def __init__(self, given, outer):
        self.given, self.outer = given, outer
        for name in ("require", "prefer", "memory_limit"):
            own = getattr(given, name)
            setattr(self, name, own if own is not None or outer is None else getattr(outer, name))
        bans = [level.forbid for level in (outer, given) if level is not None and level.forbid]
        self.forbid = ",".join(bans) or None
        self.key = (self.require, self.prefer, self.forbid, self.memory_limit)


def _without(level, given):
    """The levels without that of one scope. Generators may leave their scopes in another order than they entered them,
    and in another task, where theirs does not hold."""
    if level is None or level.given is given:
        return level and level.outer
    outer = _without(level.outer, given)
    return level if outer is level.outer else _Level(level.given, outer)


class policy:
    """with rapt.policy(require=.., prefer=.., forbid=.., memory_limit=..): calls of this task and thread follow it.

    Scopes nest: the innermost value of require, prefer and memory_limit holds, forbids add up, and an argument of a
    call goes before every scope. None, an empty string and an empty list all mean "not set": what the scopes around it
    say holds. Names are checked when the block is entered. Leaving it, by whatever way, restores what held before."""

    __slots__ = ("require", "prefer", "forbid", "memory_limit")

    def __init__(self, *, require=None, prefer=None, forbid=None, memory_limit=None, **unknown):
        for name in unknown:
            raise unknown_keyword(name, self.__slots__)
        self.require = names_text(require, "require")
        self.prefer = names_text(prefer, "prefer")
        self.forbid = names_text(forbid, "forbid")
        self.memory_limit = None if memory_limit is None else bytes_of(memory_limit)

    def __enter__(self):
        _check((self.require, self.prefer, self.forbid))
        _scope.set(_Level(self, _scope.get()))
        _rapt.ops_scope(1)
        return self

    def __exit__(self, *exception):
        _scope.set(_without(_scope.get(), self))
        _rapt.ops_scope(-1)
        return False


def held():
    """What the scopes of this task and thread come to, as one value to compare."""
    scope = _scope.get()
    return None if scope is None else scope.key


def resolve(options, require, prefer, forbid, memory_limit):
    """Puts the policy of a call into its options: the call's own arguments, then the scopes'."""
    call = (names_text(require, "require"), names_text(prefer, "prefer"), names_text(forbid, "forbid"))
    scope = _scope.get()
    around = (scope.require, scope.prefer, scope.forbid) if scope is not None else (None, None, None)
    if memory_limit is not None:
        memory_limit = bytes_of(memory_limit)
    elif scope is not None:
        memory_limit = scope.memory_limit
    if memory_limit is not None:
        options["memory_limit"] = memory_limit
    from_scope = from_call = False
    for name, own, outer in zip(("require", "prefer", "forbid"), call, around):
        used = own if own is not None else outer
        if name == "forbid" and own and outer:
            used = f"{own},{outer}"
            from_scope = True
        from_call |= own is not None
        from_scope |= own is None and outer is not None
        if used:
            options[name] = used
    if from_scope:
        options["origin"] = "scope and call" if from_call else "scope"
