# SPDX-License-Identifier: Apache-2.0
"""rapt as an attention backend of diffusers.

Importing this module registers the backend "rapt": model.set_attention_backend("rapt"), with attention_backend("rapt").
replace_native() puts rapt in the place of "native", for every model and processor that names no other backend.

diffusers keeps no public door for this: what is used of its private parts is looked for first, and where something is
missing nothing at all is changed."""

import threading

try:
    import diffusers as _diffusers
except ModuleNotFoundError as _error:
    if _error.name != "diffusers":
        raise
    raise ImportError("rapt.diffusers needs diffusers, which is not installed: pip install diffusers") from None

from diffusers.models import attention_dispatch as _dispatch

from ._diffusers_call import KEYWORDS as _KEYWORDS
from ._diffusers_call import attention as _attention
from ._diffusers_guard import guard  # noqa: F401

_NAME = "rapt"
_TABLES = ("_backends", "_constraints", "_supported_arg_names")
_lock = threading.Lock()


class _Everything(set):
    """The arguments of our function, for a dispatcher that drops every one it does not find here: all reach it, and it
    refuses by name those it does not know."""

    def __contains__(self, name):
        return True


# ---- What of diffusers this stands on ----

def _missing():
    """The first private attribute that is not there or not of the kind known, None where all are."""
    wanted = [("AttentionBackendName", name, dict) for name in ("_member_map_", "_value2member_map_")]
    wanted += [("AttentionBackendName", "_member_names_", list), ("AttentionBackendName", "NATIVE", str)]
    wanted += [("_AttentionBackendRegistry", name, dict) for name in _TABLES]
    wanted += [("_AttentionBackendRegistry", "_supports_context_parallel", set)]
    for owner, name, kind in wanted:
        if not isinstance(getattr(getattr(_dispatch, owner, None), name, None), kind):
            return f"{owner}.{name}"
    names, registry = _dispatch.AttentionBackendName, _dispatch._AttentionBackendRegistry
    native = names.NATIVE               # it is in each: an enumeration inherits empty tables from Enum itself
    for name, key in (("_member_map_", "NATIVE"), ("_value2member_map_", "native"), ("_member_names_", "NATIVE")):
        if key not in getattr(names, name):
            return f"the native backend in AttentionBackendName.{name}"
    for name in _TABLES:
        if native not in getattr(registry, name):
            return f"the native backend in _AttentionBackendRegistry.{name}"
    return None if callable(getattr(_dispatch, "dispatch_attention_fn", None)) else "dispatch_attention_fn"


def _check(error):
    missing = _missing()
    if missing is not None:
        raise error(f"rapt.diffusers does not fit diffusers {_diffusers.__version__}: {missing} of "
                    "diffusers.models.attention_dispatch is missing or of another kind; 0.42.1 is known to fit. Nothing was "
                    "changed.")


# ---- The backend "rapt" ----

def _member():
    """The member of the enumeration of backends: found, or made."""
    names = _dispatch.AttentionBackendName
    member = names._value2member_map_.get(_NAME)
    if member is not None:
        return member
    member = str.__new__(names, _NAME)
    member._name_, member._value_ = _NAME.upper(), _NAME
    member.__objclass__, member._sort_order_ = names, len(names._member_names_)
    return member


def _register():
    _check(ImportError)
    names, registry = _dispatch.AttentionBackendName, _dispatch._AttentionBackendRegistry
    member = _member()
    name = member._name_
    names._value2member_map_[_NAME] = member
    names._member_map_[name] = member
    if name not in names._member_names_:
        names._member_names_.append(name)
    type.__setattr__(names, name, member)
    registry._backends[member] = _attention
    registry._constraints[member] = []          # rapt checks every call itself, after the autocast policy
    registry._supported_arg_names[member] = _Everything(_KEYWORDS)
    registry._supports_context_parallel.add(_NAME)


# ---- In the place of the native backend ----

_saved, _holders = None, 0


class Replaced:
    """What replace_native() returns: remove() or the end of a `with` gives the native backend back."""

    def __init__(self):
        self._mine = True

    def remove(self):
        """The last handle to be removed restores the entries of the native backend as they were."""
        global _saved, _holders
        with _lock:
            if not self._mine:
                return
            if _holders == 1:
                _restore()
                _saved = None
            _holders -= 1
            self._mine = False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()
        return False


def _restore():
    registry, native = _dispatch._AttentionBackendRegistry, _dispatch.AttentionBackendName.NATIVE
    if registry._backends.get(native) is not _attention:
        raise RuntimeError("rapt.diffusers: another native backend was registered after replace_native(); take that one "
                           "out first. Nothing was changed.")
    for table, entry in zip(_TABLES, _saved):
        getattr(registry, table)[native] = entry


def replace_native():
    """Every attention of diffusers that names no other backend, or "native", runs rapt: models made before and after,
    processors set before and after. Returns a handle: remove() it, or use it in a `with`.

    Calls nest: each handle counts, and the native backend is back when the last one is removed."""
    global _saved, _holders
    with _lock:
        if _holders == 0:
            _check(RuntimeError)
            registry, native = _dispatch._AttentionBackendRegistry, _dispatch.AttentionBackendName.NATIVE
            _saved = tuple(getattr(registry, table)[native] for table in _TABLES)
            for table, entry in zip(_TABLES, (_attention, [], _Everything(_KEYWORDS))):
                getattr(registry, table)[native] = entry
        _holders += 1
        return Replaced()


_register()
