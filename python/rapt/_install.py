# SPDX-License-Identifier: Apache-2.0
"""install() and remove(): every F.scaled_dot_product_attention on a CPU goes through rapt's decision.

Two operators below the public one are overridden: the fast one in C (_torch_ops.c), which keeps to the host's own
kernel where a gradient is wanted, so that forward and backward stay a pair; and the general one here. The host's
kernels were taken hold of before (_ops.py)."""

import sys
import threading

import torch

from . import _call, _ops, _rapt
from ._report import set_last

_KEYS = {"CPU": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)}
_KEYS["AutogradCPU"] = _KEYS["CPU"] | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
_NAMES = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math")
_BANS = {"FORBIDDEN", "NOT_REQUIRED", "MEMORY"}
_lock = threading.Lock()
_state = None                           # while installed: (library, the compile cache's tag before)
_kernels = {key: torch.library.get_kernel(_ops.MATH, key) for key in _KEYS}


# ---- The general operator ----

def _unservable(q, k, v, mask, dropout_mask):
    """Calls that are not the core's to decide: those it has given to the host, a user's sdpa_kernel(MATH), a transform,
    operands that the host itself refuses."""
    if _rapt.ops_host(0) or not torch._C._get_flash_sdp_enabled():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return True
    floats = all(t.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) for t in (q, k, v))
    if not floats or dropout_mask is not None or min(q.dim(), k.dim(), v.dim()) < 2 or q.shape[-1] == 0:
        return True
    return mask is not None and not (mask.dtype == torch.bool or mask.is_floating_point())


def _mask_fits(mask, q, k, v):
    """Whether a mask broadcasts against the scores without making them larger."""
    batch = (max(sizes) for sizes in zip(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
    full = (*batch, *q.shape[-3:-1], k.shape[-2])
    return mask.dim() <= q.dim() and all(size in (1, wanted) for size, wanted in zip(mask.shape[::-1], full[::-1]))


def _shapes_fit(q, k, v, mask, is_causal, enable_gqa):
    """What the host refuses stays the host's to refuse, in its own words."""
    if mask is not None and is_causal:
        return False
    if k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1] or not q.dim() == k.dim() == v.dim():
        return False
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype) or not q.dtype == k.dtype == v.dtype:
        return False
    if mask is not None and not _mask_fits(mask, q, k, v):
        return False
    if q.dim() < 3:
        return True
    heads, other = k.shape[-3], v.shape[-3]
    if heads != other and heads != 1 and other != 1:
        return False
    heads = other if heads == 1 else heads
    return heads == 1 or q.shape[-3] == heads or enable_gqa and q.shape[-3] % heads == 0


def _hosts_own(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa):
    """The report of a call with a gradient or dropout, which is the host's unless a package's row was chosen; None for
    one that is being traced. Preferences that forbid it are heard here; a call that they do not forbid has passed the
    host's own checks, and must run."""
    if type(q) is not torch.Tensor and not isinstance(q, torch.nn.Parameter) or torch._C._len_torch_dispatch_stack():
        return None
    from . import torch as binding
    context, options, known = binding.context, {"scale": scale, "enable_gqa": enable_gqa}, None
    if torch._C._get_tracing_state() is None:
        known = binding._key(q, k, v, mask, dropout_p, is_causal, options)
    report, age = context.seen.get((_hosts_own, known), (None, None))
    if known is not None and age == _rapt.ctx_age(context.handle):
        return report
    request = binding._request(False, q, k, v, mask, dropout_p, is_causal, **options)
    age = _rapt.ctx_age(context.handle)
    status, report, request = binding._decided(context, request, False)
    if report.status == "REFUSED" and _BANS.intersection(report.codes("torch.math")):
        set_last(report)
        raise _call.failed(status, report, request.names)
    if known is not None:
        context.keep((_hosts_own, known), (report, age))
    return report


def _has_run(report):
    if report is not None:
        set_last(report if report.row is None else report.entered())


def _math(key):
    def kernel(query, key_, value, attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None,
               enable_gqa=False):
        def host():
            return _kernels[key].call_boxed(_KEYS[key], query, key_, value, attn_mask, dropout_p, is_causal,
                                            dropout_mask, scale=scale, enable_gqa=enable_gqa)

        q, k, v = query, key_, value
        if _unservable(q, k, v, attn_mask, dropout_mask) or \
                not _shapes_fit(q, k, v, attn_mask, is_causal, enable_gqa):
            return host()
        wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, attn_mask))
        if wanted or dropout_p:
            report = _hosts_own(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if report is not None and report.row is not None and not report.row.startswith("torch."):
                from . import torch as binding
                out = binding.sdpa(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
                return out.contiguous(), q.new_empty(0)
            result = host()
            _has_run(report)
            return result
        boolean = attn_mask is not None and attn_mask.dtype == torch.bool
        try:
            o = _ops.Operands(q, k, v, *((attn_mask, None) if boolean else (None, attn_mask)))
        except RuntimeError:            # shapes that do not broadcast: the host's own words
            return host()
        out = _ops.sdpa_op(o.q, o.k, o.v, scale, is_causal, o.mask, o.bias, 1 if is_causal else 0, 0, -1, -1, None,
                           None, None, _ops.CONTIGUOUS)
        return o.unfold(out), q.new_empty(0)    # in the place of the weights, which are never made
    return kernel


# ---- Putting in and taking out ----

class Installed:
    """What install() returns: a context manager that takes out what it has put in."""

    def __init__(self, mine):
        self._mine = mine               # the state that it has put in; None for none

    def remove(self):
        """The host's own operators are back. Nothing happens where this handle has put nothing in, or no longer."""
        _remove(self._mine)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()
        return False


def _free():
    """Another library's override of the same operators would be lost silently."""
    for name in _NAMES:
        for key in _KEYS:
            if f"aten/{name}/{key}" in torch.library._impls:
                raise RuntimeError(f"rapt.torch.install: another library holds aten::{name} at {key}; remove it first")


_OVERLOADS = (_ops.FLASH, _ops.MATH)


def _known_to_tracers():
    """Which kernel a tracer takes for an operator is kept with the operator, and a registration does not clear it."""
    for overload in _OVERLOADS:
        if not hasattr(getattr(overload, "_dispatch_cache", None), "clear"):
            raise RuntimeError("rapt.torch.install: torch._ops.OpOverload._dispatch_cache is not there in PyTorch "
                               f"{torch.__version__}; compiled calls could go past rapt, so nothing was installed")
    return [overload._dispatch_cache for overload in _OVERLOADS]


def _forget_compiled():
    """What was compiled before holds the operators of then: the next call compiles again."""
    for known in _known_to_tracers():
        known.clear()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def installed():
    """Whether F.scaled_dot_product_attention on a CPU goes through rapt now."""
    return _state is not None


def install():
    """F.scaled_dot_product_attention on a CPU runs rapt, eager and compiled, until the handle's remove(), or the end of a
    `with`.

    Returns the handle; where rapt is installed already, one whose remove() does nothing. RuntimeError, and nothing is
    changed: another library holds one of the operators, or this PyTorch lacks something that is needed."""
    global _state
    with _lock:
        if _state is not None:
            return Installed(None)
        _free()
        _known_to_tracers()
        library = torch.library.Library("aten", "IMPL")
        try:
            for key in _KEYS:
                library.impl(_NAMES[1], _math(key), key)
            _rapt.ops_override(True)
        except BaseException:
            library._destroy()
            raise
        # The compile caches on disk do not look at overrides: a tag of their own keeps the two kinds apart.
        tag = torch.compiler.config.cache_key_tag
        torch.compiler.config.cache_key_tag = f"{tag}+rapt-{_rapt.VERSION}"
        _state = library, tag
        _forget_compiled()
        return Installed(_state)


def remove():
    """The host's own operators are back. Nothing happens where nothing is installed."""
    _remove(_state)


def _remove(mine):
    """mine: what is to be taken out, if it still is what is installed."""
    global _state
    with _lock:
        if mine is None or _state is not mine:
            return
        library, tag = _state
        _state = None
        _rapt.ops_override(False)
        library._destroy()
        torch.compiler.config.cache_key_tag = tag
        _forget_compiled()
