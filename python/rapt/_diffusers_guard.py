# SPDX-License-Identifier: Apache-2.0
"""guard(): every attention backend of diffusers gets one dtype under autocast, and loses no argument on the way.

All models share one function, dispatch_attention_fn, and hold it by name in their own modules; so guard() puts other code
into that very function. The new code refuses what the chosen backend would drop or misread, casts as the autocast of the
moment says, before anything else of the dispatcher has seen the tensors, and then runs the code that was there."""

import inspect
import threading
import types

import torch
from diffusers import __version__ as _VERSION
from diffusers.models import attention_dispatch as _dispatch

from ._errors import ArgumentError, refuse
from ._guard import is_floating_mask
from ._torch_request import cast_bias, dtype_name

_ELIGIBLE = (torch.float16, torch.bfloat16, torch.float32)                      # A2, A10
_CODES = {"dropout_p": "DROPOUT", "is_causal": "ALIGNMENT", "scale": "SCALE", "enable_gqa": "HEADS", "attn_mask": "MASK",
          "window_size": "WINDOW", "softcap": "SOFTCAP", "return_lse": "LSE", "deterministic": "DETERMINISM"}


# ---- One dtype (section 6 of the contract) ----

def _state(query):
    """(device type, dtype) of the autocast that is on for query's device, None where none is (A1, A12)."""
    if not isinstance(query, torch.Tensor):
        return None
    kind = query.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    dtype = torch.get_autocast_dtype(kind)
    if dtype not in _ELIGIBLE:
        raise refuse("autocast", dtype_name(dtype), "float16, bfloat16 or float32 is needed", "AUTOCAST_DTYPE")
    return kind, dtype


def _cast(name, value, kind, dtype):
    """A2, A3, A8: each tensor by itself; float64, bool, integers, other devices and objects that are no tensors stay."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _ELIGIBLE or value.device.type != kind:
        return value
    if name != "attn_mask":
        return value.to(dtype)
    return cast_bias(value, dtype) if is_floating_mask(value) else value


def _check_mix(given, cast):
    """A7: what still differs is refused, with the host's own sentence for who looks for it."""
    operands = ("query", "key", "value")
    if any(not isinstance(cast[name], torch.Tensor) for name in operands):
        return
    if cast["query"].dtype == cast["key"].dtype == cast["value"].dtype:
        return
    said = ", ".join(f"{name} is {dtype_name(given[name].dtype)} -> {dtype_name(cast[name].dtype)}" for name in operands)
    got = ", ".join(f"{name}.dtype: {dtype_name(cast[name].dtype)}" for name in operands)
    raise ArgumentError(f"DTYPE_MIX: under autocast {said}; cast them to one dtype. Expected query, key, and value to have "
                        f"the same dtype, but got {got} instead.", "DTYPE_MIX", ",".join(operands), said, "one dtype")


# ---- Arguments that the dispatcher filters away, because the backend's function does not name them ----

# Kernels that read the heads off the tensors and need no switch for key and value with fewer of them.
_GROUPING = frozenset((
    "flash", "flash_hub", "flash_varlen", "flash_varlen_hub", "flash_4_hub", "_flash_3", "_flash_varlen_3", "_flash_3_hub",
    "_flash_3_varlen_hub", "aiter_fa2_hub", "sage", "sage_hub", "sage_varlen", "_sage_qk_int8_pv_fp16_cuda",
    "_sage_qk_int8_pv_fp16_triton", "_sage_qk_int8_pv_fp8_cuda", "_sage_qk_int8_pv_fp8_cuda_sm90", "_native_npu"))


def _is_default_scale(scale, query):
    return isinstance(scale, (int, float)) and scale > 0 and abs(scale * scale * query.shape[-1] - 1) < 2 ** -22


def _context_parallel(config):
    return getattr(config, "context_parallel_config", None)


def _without_effect(argument, value, given, backend):
    """D6: a value that changes nothing may be dropped."""
    if value is None:
        return True
    if argument in ("is_causal", "return_lse", "deterministic", "return_attn_probs"):
        return not value
    if argument in ("dropout_p", "softcap"):
        return isinstance(value, (int, float)) and value == 0
    if argument == "window_size":
        return isinstance(value, (tuple, list)) and all(side is None or side == -1 for side in value)
    if argument == "scale":
        return _is_default_scale(value, given["query"])
    if argument == "enable_gqa":
        return not value or backend in _GROUPING or given["key"].shape[-2] == given["query"].shape[-2]
    if argument == "_parallel_config":
        return _context_parallel(value) is None
    return False


def _takers(argument):
    return [name.value for name, known in _dispatch._AttentionBackendRegistry._supported_arg_names.items()
            if argument in set(known)]


def _said(value):
    return f"a tensor of {dtype_name(value.dtype)}" if isinstance(value, torch.Tensor) else repr(value)


def _check_named(backend, supported, given):
    for argument, value in given.items():
        if argument in supported or _without_effect(argument, value, given, backend):
            continue
        takers = _takers(argument)
        other = f"use a backend that has it ({', '.join(takers)})" if takers else "no backend has it"
        raise refuse(argument.removeprefix("_"), _said(value), f"the backend {backend} has no such argument and diffusers "
                     f"would have dropped it without a word; leave it out, or {other}", _CODES.get(argument, "UNKNOWN_FIELD"))


# ---- Arguments that diffusers' own functions name and then ignore or misread (docs/backends.md section 1) ----

def _differs(mask, axis):
    """Whether a mask has rows of its own along an axis, as far as its shape tells."""
    return mask.dim() >= -axis and mask.shape[axis] > 1 and mask.stride(axis) != 0


def _flex(backend, given):
    mask = given["attn_mask"]
    tensor = isinstance(mask, torch.Tensor)
    if given["is_causal"]:
        lost = "would take it in the place of attn_mask" if tensor else "would ignore it"
        raise refuse("is_causal", "True", f"the backend {backend} {lost}; pass one bool mask or block mask that has both, or "
                     "use another backend", "MASK" if tensor else "ALIGNMENT")
    if tensor and mask.dim() == 2:
        raise refuse("attn_mask", "of 2 axes", f"the backend {backend} would hide queries with it instead of keys; pass "
                     "attn_mask[:, None, None], with 4 axes", "MASK")
    if tensor and mask.dtype is torch.bool and _differs(mask, -3):
        raise refuse("attn_mask", "a bool mask of its own for each head", f"the backend {backend} would look at the first "
                     "head's only; pass a floating mask, or use another backend", "MASK")


def _xformers(backend, given):
    mask = given["attn_mask"]
    if mask is None:
        return
    if given["is_causal"]:
        raise refuse("is_causal", "True", f"the backend {backend} would take it in the place of attn_mask; pass one mask "
                     "that has both", "MASK")
    if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and mask.dim() == 4:
        raise refuse("attn_mask", "a bool mask of 4 axes", f"the backend {backend} would add it as 0 and 1; pass a floating "
                     "mask, 0 where a pair may attend and -inf elsewhere", "MASK")


def _npu(backend, given):
    if is_floating_mask(given["attn_mask"]):
        raise refuse("attn_mask", f"of {dtype_name(given['attn_mask'].dtype)}", f"the backend {backend} would read every "
                     "number but 0 as may attend, and so turn an additive mask around; pass a bool mask, True where a pair may "
                     "attend", "MASK")


def _cudnn(backend, given):
    mask, parallel = given["attn_mask"], _context_parallel(given["_parallel_config"])
    if parallel is None or not isinstance(mask, torch.Tensor):
        return
    if parallel.ring_degree > 1:
        raise refuse("attn_mask", "given under ring attention", f"the backend {backend} would lay it over every chunk of the "
                     "keys alike; use Ulysses, or leave it out", "MASK")
    if mask.dtype is torch.bool:
        raise refuse("attn_mask", "a bool mask under context parallelism", f"the backend {backend} would hand it over as an "
                     "additive one; pass a floating mask, 0 where a pair may attend and -inf elsewhere", "MASK")


def _packing(prefix):
    """Backends that pack the keys a bool mask leaves: each batch entry has one set of them, for some a leading run. They
    read the mask's values themselves, so this may."""
    def check(backend, given):
        mask = given["attn_mask"]
        if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or mask.device.type == "meta":
            return
        keys = mask
        if mask.dim() in (3, 4):
            keys = mask.any(dim=tuple(range(1, mask.dim() - 1)), keepdim=True)
            alike = not any(_differs(mask, axis) for axis in range(1 - mask.dim(), -1))
            if not alike and bool((mask != keys).any()):
                raise refuse("attn_mask", "another one for some queries or heads", f"the backend {backend} would use one set "
                             "of keys for all of them; pass (B,Skv), or use another backend", "MASK")
        if prefix and bool((keys[..., 1:] & ~keys[..., :-1]).any()):
            raise refuse("attn_mask", "with gaps or padding in front", f"the backend {backend} would take as many keys from "
                         "the start instead; put the padding behind, or use another backend", "MASK")
    return check


_prefixes, _sets = _packing(True), _packing(False)
_MISREAD = {"flex": _flex, "xformers": _xformers, "_native_npu": _npu, "_native_cudnn": _cudnn, "flash_varlen": _prefixes,
            "_flash_varlen_3": _prefixes, "sage_varlen": _prefixes, "flash_varlen_hub": _sets, "_flash_3_varlen_hub": _sets}


def _check_kept(member, given):
    """Refuses by name what the backend would have dropped. An unknown backend is the dispatcher's to complain about."""
    registry = _dispatch._AttentionBackendRegistry
    backend, supported = member.value, registry._supported_arg_names.get(member)
    if supported is None or not isinstance(given["query"], torch.Tensor) or not isinstance(given["key"], torch.Tensor):
        return
    _check_named(backend, supported, given)
    if _context_parallel(given["_parallel_config"]) is not None and backend not in registry._supports_context_parallel:
        raise refuse("parallel_config", "given", f"the backend {backend} would attend to this device's part of the keys "
                     f"only; use one of {', '.join(sorted(registry._supports_context_parallel))}", "UNKNOWN_FIELD")
    misread = _MISREAD.get(backend)                             # another function under that name is another matter
    if misread is not None and getattr(registry._backends[member], "__module__", None) == _dispatch.__name__:
        misread(backend, given)


# ---- The dispatcher ----

def dispatch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, attention_kwargs, backend,
             parallel_config):
    """One call of diffusers' dispatch_attention_fn, guarded."""
    if backend is None:
        member = _dispatch._AttentionBackendRegistry.get_active_backend()[0]
    elif isinstance(backend, _dispatch.AttentionBackendName):
        member = backend
    else:
        member = _dispatch.AttentionBackendName(backend)
    given = {"query": query, "key": key, "value": value, "attn_mask": attn_mask, "dropout_p": dropout_p,
             "is_causal": is_causal, "scale": scale, **(attention_kwargs or {}), "_parallel_config": parallel_config,
             "enable_gqa": enable_gqa}                          # later ones win, as in the dispatcher
    _check_kept(member, given)
    state = _state(given["query"])
    if state is None:
        return _original(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, attention_kwargs,
                         backend=backend, parallel_config=parallel_config)
    kind, dtype = state
    cast = {name: _cast(name, given[name], kind, dtype) for name in ("query", "key", "value", "attn_mask")}
    _check_mix(given, cast)
    if attention_kwargs:
        attention_kwargs = {name: cast.get(name, other) for name, other in attention_kwargs.items()}
    with torch.autocast(kind, enabled=False):                   # A13: what is cast has been cast
        return _original(cast["query"], cast["key"], cast["value"], cast["attn_mask"], dropout_p, is_causal, scale,
                         enable_gqa, attention_kwargs, backend=backend, parallel_config=parallel_config)


def _code(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
          attention_kwargs=None, *, backend=None, parallel_config=None):
    """Runs as diffusers' function and sees the names of its module only."""
    from rapt._diffusers_guard import dispatch
    return dispatch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, attention_kwargs, backend,
                    parallel_config)


# ---- Putting in and taking out ----

_lock = threading.Lock()
_holders = 0
_function = _original = None            # diffusers' function; the code that was in it, as a function of its own


def _missing():
    """The first thing of diffusers that is not there or not as known, None where all is."""
    registry = getattr(_dispatch, "_AttentionBackendRegistry", None)
    for name, kind in (("_backends", dict), ("_supported_arg_names", dict), ("_supports_context_parallel", set),
                       ("get_active_backend", types.MethodType)):
        if not isinstance(getattr(registry, name, None), kind):
            return f"_AttentionBackendRegistry.{name}"
    if not isinstance(getattr(_dispatch, "AttentionBackendName", None), type):
        return "AttentionBackendName"
    function = getattr(_dispatch, "dispatch_attention_fn", None)
    if not isinstance(function, types.FunctionType) or function.__globals__ is not vars(_dispatch) or function.__closure__:
        return "dispatch_attention_fn, as a function of that module,"
    if list(inspect.signature(function).parameters) != list(inspect.signature(_code).parameters):
        return f"dispatch_attention_fn{inspect.signature(_code)}"
    return None


def _install():
    global _function, _original
    missing = _missing()
    if missing is not None:
        raise RuntimeError(f"rapt.diffusers.guard does not fit diffusers {_VERSION}: {missing} of "
                           "diffusers.models.attention_dispatch is missing or of another kind; 0.42.1 is known to fit. "
                           "Nothing was changed.")
    function = _dispatch.dispatch_attention_fn
    if _original is None or _original.__code__ is not function.__code__:        # compiled callers know this one again
        _original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        _original.__kwdefaults__ = function.__kwdefaults__
    _function = function
    function.__code__ = _code.__code__                          # the one change, and an atomic one


class Guarded:
    """What guard() returns: remove() or the end of a `with` takes the guard out again."""

    def __init__(self):
        self._mine = True

    def remove(self):
        """The last handle to be removed gives the dispatcher its own code back."""
        global _holders
        with _lock:
            if not self._mine:
                return
            if _holders == 1:
                if _function.__code__ is not _code.__code__:
                    raise RuntimeError("rapt.diffusers.guard: the code of dispatch_attention_fn was changed after guard(); "
                                       "take that change out first. Nothing was changed.")
                _function.__code__ = _original.__code__
            _holders -= 1
            self._mine = False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()
        return False


def guard():
    """Every backend of diffusers' attention dispatcher, rapt or not, gets one dtype under autocast and every argument.

    query, key, value and a floating mask in float16, bfloat16 or float32 are cast to the dtype of torch.autocast, each by
    itself; finite mask values stay finite; autocast is off while the backend runs. An argument that the chosen backend
    would drop or misread is an ArgumentError with its name, in or out of autocast, and so are operands that differ after
    the cast. Other calls outside autocast reach the backend as they are. Returns a handle: remove() it, or use it in a
    `with`. Calls nest: each handle counts, and the dispatcher is itself again when the last one is removed."""
    global _holders
    with _lock:
        if _holders == 0:
            _install()
        _holders += 1
        return Guarded()
