# SPDX-License-Identifier: Apache-2.0
"""Attention packages of others as rows that this binding runs with torch tensors, so that autograd graphs stay.

A context's first use looks for the packages and reads their versions; nothing is imported. The first call on a kind of
device that a package serves imports it and makes sure that it launches there. Every failure of either becomes the
reason that the package's rows carry (AVAIL)."""

import contextlib
import importlib
import threading
import weakref

import torch

from .. import _call, _rapt
from .._errors import refuse
from ._packages import HUB, PACKAGES, TORCH, device_facts, distribution, python_facts, reason_of
from ._run import ProviderCall

BINDING = 4                             # rapt_place: ranks as opt-in, run by its binding
_lock = threading.RLock()
_states = weakref.WeakKeyDictionary()   # Context -> _State


class _State:
    """What one context has loaded."""

    def __init__(self):
        self.kinds, self.functions, self.failures = set(), {}, {}


def _modules():
    """The operators, one module a family; imported when the first context is made."""
    from . import _aiter, _devices, _flash, _flex, _sage, _xformers
    return _flash, _sage, _xformers, _aiter, _devices, _flex


def operators():
    """{row id: function(call, package) -> (out, lse)}: how each row is called."""
    if not _OPERATORS:
        for module in _modules():
            _OPERATORS.update(module.OPERATORS)
    return _OPERATORS


_OPERATORS = {}


def register(handle, torch_version):
    """The host's own rows and those of every package, by what metadata says. Nothing is imported."""
    _rapt.ctx_register(handle, TORCH.name, TORCH.rows, None, {"torch": torch_version, **python_facts()}, None)
    for package in PACKAGES:
        _rapt.ctx_register(handle, package.name, package.rows, None, _found(package), _place(package))


def _place(package):
    return {"place": BINDING, **package.also}


def _found(package):
    """Facts from metadata: a version, or that there is none."""
    if package.builtin:
        return {}
    version = distribution(package)
    if version is None:
        return {package.fact: "none", **dict.fromkeys(package.companion_facts, "none")}
    return {package.fact: version, **package.companions()}


def load(context, kind):
    """Imports the packages whose rows run on this kind of device, once a context and kind."""
    state = _states.get(context)
    if state is not None and kind in state.kinds:
        return
    with _lock:
        state = _states.setdefault(context, _State())
        if kind in state.kinds or _capturing(kind):
            return
        with _no_modes():
            _load_all(context, state, kind)
        state.kinds.add(kind)


def _load_all(context, state, kind):
    _rapt.ctx_register(context.handle, TORCH.name, TORCH.rows, None, device_facts(kind), None)
    for package in PACKAGES:
        if kind in package.kinds and not package.builtin and distribution(package) is not None:
            _load(context, state, package, kind)


def _no_modes():
    """A question about fake tensors is asked under a mode; what a package makes while it is imported is real."""
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes
    return _disable_current_modes()


def _capturing(kind):
    """While a graph is recorded nothing may be launched; the next call outside of it loads."""
    return kind == _call.KINDS["cuda"] and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _load(context, state, package, kind):
    try:
        loaded = package.load(importlib.import_module)
        facts = {**_found(package), **package.launched(loaded, kind)}
    except (Exception, SystemExit) as error:            # whatever a package does while it is imported is its reason
        state.failures[package.name] = error
        facts = reason_of(error)
    else:
        state.functions[package.name] = loaded
    _rapt.ctx_register(context.handle, package.name, package.rows, None, facts, _place(package))


def failures(context):
    """{package: exception} of what did not load in this context, for diagnostics."""
    state = _states.get(context)
    return dict(state.failures) if state is not None else {}


def package_of(row):
    return next(package for package in (*PACKAGES, *HUB, TORCH) if row in package.rows)


def is_provider(row):
    """Whether this row is run by an operator of this subpackage."""
    return row in operators()


def call(context, r, report, age):
    """What runs a decision for a row of a package; as HostCall of _torch_host.py."""
    package = package_of(report.row)
    state = _states.get(context)
    loaded = state.functions.get(package.name) if state is not None else None
    return ProviderCall(r, report, age, operators()[report.row], loaded)


def use_kernel(context, row, module):
    """Brings a kernel of the `kernels` hub: row, such as "hub.fa3", and the module that get_kernel returned.

    Nothing is fetched by rapt itself. ArgumentError: no such row, or the module lacks the functions that the row calls."""
    package = next((p for p in HUB if row in p.rows), None)
    if package is None:
        raise refuse("row", repr(row), "one of " + ", ".join(r for p in HUB for r in p.rows) + " is needed",
                     "UNKNOWN_NAME")
    missing = [name for name in package.symbols if not callable(getattr(module, name, None))]
    if missing:
        raise refuse("module", f"without {', '.join(missing)}", f"the module of a kernel that {row} calls", "AVAIL")
    with _lock:
        state = _states.setdefault(context, _State())
        state.functions[package.name] = module
        version = distribution(package)
        facts = {} if version is None else {"kernels": version}
        _rapt.ctx_register(context.handle, package.name, package.rows, None, facts, _place(package))

