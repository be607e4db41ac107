# SPDX-License-Identifier: Apache-2.0
"""Scopes of preference. The core has none: a scope is resolved into each call, below the call's own argument (D9)."""

import contextvars

from ._errors import wrong

_scope = contextvars.ContextVar("rapt.policy", default=None)


def names_text(value, field):
    """Names as the core takes them: None, a string as given, or a list joined by commas."""
    if value is None or isinstance(value, str):
        return value
    try:
        parts = list(value)
    except TypeError:
        parts = [None]
    if not all(isinstance(part, str) for part in parts):
        raise wrong("UNKNOWN_NAME", field, repr(value), "a string or a list of strings")
    return ",".join(parts)


class _Level:
    """The settings in force inside one scope, those of the scopes around it included."""

    __slots__ = ("require", "prefer", "forbid", "memory_limit", "outer")

    def __init__(self, given, outer):
        self.outer = outer
        for name in ("require", "prefer", "memory_limit"):
            own = getattr(given, name)
            setattr(self, name, own if own is not None or outer is None else getattr(outer, name))
        bans = [level.forbid for level in (outer, given) if level is not None and level.forbid]
        self.forbid = ",".join(bans) or None


class policy:
    """with rapt.policy(require=.., prefer=.., forbid=.., memory_limit=..): calls of this task and thread follow it.

    Scopes nest: the innermost value of require, prefer and memory_limit holds, forbids add up, and an argument of a
    call goes before every scope. Leaving the block, by whatever way, restores what held before."""

    __slots__ = ("require", "prefer", "forbid", "memory_limit")

    def __init__(self, *, require=None, prefer=None, forbid=None, memory_limit=None):
        self.require = names_text(require, "require")
        self.prefer = names_text(prefer, "prefer")
        self.forbid = names_text(forbid, "forbid")
        self.memory_limit = memory_limit

    def __enter__(self):
        _scope.set(_Level(self, _scope.get()))
        return self

    def __exit__(self, *exception):
        _scope.set(_scope.get().outer)
        return False


def resolve(options, require, prefer, forbid, memory_limit):
    """Puts the policy of a call into its options: the call's own arguments, then the scopes'."""
    call = (names_text(require, "require"), names_text(prefer, "prefer"), names_text(forbid, "forbid"))
    scope = _scope.get()
    held = (scope.require, scope.prefer, scope.forbid) if scope is not None else (None, None, None)
    if memory_limit is None and scope is not None:
        memory_limit = scope.memory_limit
    if memory_limit is not None:
        options["memory_limit"] = memory_limit
    from_scope = from_call = False
    for name, own, outer in zip(("require", "prefer", "forbid"), call, held):
        used = own if own is not None else outer
        if name == "forbid" and own and outer:
            used = f"{own},{outer}"
            from_scope = True
        from_call |= own is not None
        from_scope |= own is None and outer is not None
        if used or own is not None and name == "require":      # an empty require names nothing: the core says so
            options[name] = used
    if from_scope:
        options["origin"] = "scope and call" if from_call else "scope"
