# SPDX-License-Identifier: Apache-2.0
"""What stands in the place of Keras' dot_product_attention on PyTorch: its arguments said as rapt's, nothing copied.

Traced, a call is one operator, and no probe of kernels is in the way (D19)."""

import functools
import sys

import numpy as np
import torch
from keras.src import backend

from . import _call, _ops, _rapt, _report
from . import torch as binding
from ._errors import ArgumentError, RefusedError, refuse
from ._report import Report
from ._torch_request import SPELLINGS, cast_bias, dtype_name
from .keras import FlashUnavailable

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_GRADS = _ops.GRAD_Q, _ops.GRAD_K, _ops.GRAD_V, _ops.GRAD_BIAS


# ---- Arguments ----

def _flag(value):
    """flash_attention as None, True or False."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    raise refuse("flash_attention", repr(value), "True, False or None is needed")


def _where_it_is(x):
    """For a question: tensors stay on their device, meta and fake ones too."""
    return x if isinstance(x, torch.Tensor) else backend.convert_to_tensor(x)


def _operands(query, key, value, tensor):
    """q, k, v as tensors of the dtype that Keras promotes them to (H7)."""
    query, key, value = tensor(query), tensor(key), tensor(value)
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 4:
            raise refuse(name, f"of {t.dim()} axes", "dot_product_attention takes 4: (B, T, N, H)", "RANK")
    if query.dtype == key.dtype == value.dtype and query.dtype in _FLOATS:
        return query, key, value
    dtype = backend.result_type(query.dtype, key.dtype, value.dtype)
    return tuple(backend.cast(t, dtype) for t in (query, key, value))


def _mask(mask):
    if mask.dtype != torch.bool:
        raise refuse("mask", dtype_name(mask.dtype),
                     "a bool mask is needed, True = may attend; numbers to be added go into bias", "DTYPE")
    return mask


def _bias(bias):
    """Added as it is given (M9), fp64 rounded to fp32, where finite stays finite (M10)."""
    if not bias.dtype.is_floating_point:
        raise refuse("bias", dtype_name(bias.dtype),
                     "a floating dtype is needed; what hides pairs goes into mask", "DTYPE")
    return bias if bias.dtype in _FLOATS else cast_bias(bias, torch.float32)


def _cap(value):
    """The soft cap as a number, None for none (M20)."""
    if value is None:
        return None
    cap = _call.number(value, "attn_logits_soft_cap")
    if not 0 <= cap < float("inf"):
        raise refuse("attn_logits_soft_cap", repr(value), "a finite number is needed, 0 for none", "SOFTCAP")
    return cap or None


class _Call:
    """One call with the axes rapt has: views of [B,N,T,H]; and the switches as rapt's own."""

    def __init__(self, query, key, value, bias, mask, scale, is_causal, flash, cap, tensor=backend.convert_to_tensor):
        flash = _flag(flash)
        query, key, value = _operands(query, key, value, tensor)
        self.mask = None if mask is None else _mask(tensor(mask))
        self.bias = None if bias is None else _bias(tensor(bias))
        self.flash, self.cap, self.causal = flash, _cap(cap), _call.flag(is_causal, "is_causal")
        self.q, self.k, self.v = (t.transpose(1, 2) for t in (query, key, value))
        self.keywords = {}
        if scale is not None:
            self.keywords["scale"] = scale
        if self.k.shape[1] != self.q.shape[1]:
            self.keywords["enable_gqa"] = True
        self.switches = {}
        if flash is not None:                                   # D11
            self.switches.update({"require": "class:fused"} if flash else {"forbid": "class:flash"})
        if self.cap is not None:
            self.keywords["softcap"] = self.cap
            if not flash:
                self.switches["prefer"] = "flex"                # the row that caps; it is never chosen unasked

    def arguments(self):
        """(arguments, keywords) of rapt.torch.sdpa. One of mask and bias goes where calls are known again by it."""
        first, keywords = self.mask if self.bias is None else self.bias, self.keywords
        if self.mask is not None and self.bias is not None:
            keywords = {**keywords, "mask": self.mask}
        return (self.q, self.k, self.v, first, 0.0, self.causal), keywords

    def named(self):
        """The same with mask and bias under the names that Keras has for them."""
        return (self.q, self.k, self.v, None, 0.0, self.causal), {**self.keywords, "mask": self.mask, "bias": self.bias}


# ---- Running it ----

def dot_product_attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None,
                          attn_logits_soft_cap=None):
    """Keras' function of this name on PyTorch, through rapt: [B,T,N,H], [B,S,K,H], [B,S,K,Hv] -> [B,T,N,Hv].

    mask is bool, bias floating; both, with is_causal, may be given. flash_attention=True requires a row of class fused
    (FlashUnavailable), False forbids class flash, None leaves the choice free. ArgumentError names what is wrong."""
    call = _Call(query, key, value, bias, mask, scale, is_causal, flash_attention, attn_logits_soft_cap)
    if call.q.device.type == "meta":                            # Keras asks for a shape
        return call.q.new_empty((*call.q.transpose(1, 2).shape[:3], call.v.shape[-1]))
    if torch.compiler.is_compiling():
        return _traced(call).transpose(1, 2)
    return _run(call).transpose(1, 2)


def _run(call):
    arguments, keywords = call.arguments()
    try:
        out = binding.sdpa(*arguments, **keywords, **call.switches)
    except ArgumentError:
        arguments, keywords = call.named()
        binding.sdpa(*arguments, **keywords, **call.switches)   # says the same of Keras' names
        raise
    except RefusedError as error:
        raise _refusal(error.report, call.flash) from None
    if call.flash is not None:
        report = _report._last.get()
        if type(report) is Report and not report.notes:         # a report is made once for all calls that are alike
            report.notes = _effect(call, report)
    return out


_outside = torch._disable_dynamo(_run)


def _refusal(report, flash):
    """The exception, in Keras' names for the arguments."""
    report._names = SPELLINGS[None]
    return FlashUnavailable(report) if flash else RefusedError(report)


def _effect(call, report):
    """What D11 wants said of a switch: whether it changed the choice."""
    arguments, keywords = call.arguments()
    other = {name: value for name, value in call.switches.items() if name == "prefer"}
    free = binding.explain(*arguments, **keywords, **other)
    return _compared(call, report, free)


def _compared(call, report, free):
    switch = f"flash_attention={call.flash}"
    if _choice(report) == _choice(free):
        return (f"{switch} has no effect on the choice",)
    return (f"{switch} changes the choice, which is {free.row or 'a refusal'} without it",)


def _choice(report):
    return report.row, tuple((report.json.get("chosen") or {}).get("classes", ()))


# ---- Traced ----

_SCHEMA = str(_ops.sdpa_op._schema).removeprefix("rapt::sdpa")
_library = torch.library.Library("rapt", "FRAGMENT")
_TAGS = torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order
_library.define("keras" + _SCHEMA, tags=_TAGS)
_library.define(f"keras_backward(Tensor dout, {_SCHEMA[1:].removesuffix('Tensor')}(Tensor, Tensor, Tensor, Tensor)",
                tags=_TAGS)


def _front(*args):
    """The operator's arguments as rapt.torch.sdpa takes them: (arguments, keywords)."""
    q, k, v, scale, causal, mask, bias, *_, flags, _, autocast, policy = _ops._arguments(*args)
    require, _, forbid, *_ = policy.split(_ops._SEPARATOR) if policy else [""] * 3
    wanted = [flags & bit for bit in _GRADS]
    q, k, v, bias = (t.detach().requires_grad_() if want else t for t, want in zip((q, k, v, bias), wanted))
    keywords = {"scale": scale, "enable_gqa": True, "mask": mask, "bias": bias, "require": require or None,
                "forbid": forbid or None, "autocast": _rapt.DTYPES[autocast] if autocast else "off"}
    return (q, k, v, None, 0.0, causal), keywords


def _on_cpu(*args):
    """rapt::sdpa, whose refusal is the one an eager call gets."""
    try:
        return _ops.sdpa_op(*args)
    except RuntimeError:
        arguments, keywords = _front(*args)
        with torch.enable_grad():
            report = binding.explain(*arguments, **keywords)
        if report.status != "REFUSED":
            raise
    _report.set_last(report)
    raise _refusal(report, True)


def _elsewhere(*args):
    """On other devices the front decides, and the host's or a package's operator runs."""
    arguments, keywords = _front(*args)
    try:
        with torch.enable_grad():                               # where a gradient is wanted, the decision must know
            return binding.sdpa(*arguments, **keywords).detach()
    except RefusedError as error:
        raise _refusal(error.report, bool(keywords["require"])) from None


def _elsewhere_backward(dout, *args):
    """Gradients of q, k, v and bias there, by the forward made again; of one that is not wanted, no elements."""
    (q, k, v, *rest), keywords = _front(*args)
    bias = keywords["bias"]
    inputs = [t for t in (q, k, v, bias) if t is not None and t.requires_grad]
    with torch.enable_grad():
        found = iter(torch.autograd.grad(binding.sdpa(q, k, v, *rest, **keywords), inputs, dout))
    return tuple(next(found).contiguous() if t is not None and t.requires_grad else dout.new_empty(0)
                 for t in (q, k, v, bias))


def _fake_backward(dout, *args):
    a = _ops._arguments(*args)
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) if a[14] & bit else dout.new_empty(0)
                 for t, bit in zip((*a[:3], a[6]), _GRADS))


def _setup_context(ctx, inputs, output):
    _ops._setup_context(ctx, inputs, output)
    ctx.flags, ctx.policy = _ops._arguments(*inputs)[14::3]


def _backward(ctx, dout):
    q, k, v, mask, bias = ctx.saved_tensors
    if q.device.type == "cpu":
        return _ops._backward(ctx, dout)
    found = torch.ops.rapt.keras_backward.default(dout, *_ops._arguments(
        q, k, v, ctx.scale, ctx.causal, mask, bias, _call.CORNERS["tl"] if ctx.causal else 0, flags=ctx.flags,
        policy=ctx.policy))
    grads = [None] * ctx.n
    for at, grad, bit in zip((0, 1, 2, 6), found, _GRADS):
        grads[at] = grad if ctx.flags & bit else None
    return tuple(grads)


_library.impl("keras", _on_cpu, "CPU")
_library.impl("keras", _elsewhere, "CompositeExplicitAutograd")
_library.impl("keras_backward", _elsewhere_backward, "CompositeExplicitAutograd")
torch.library.register_fake("rapt::keras", _ops._fake)
torch.library.register_fake("rapt::keras_backward", _fake_backward)
torch.library.register_autograd("rapt::keras", _backward, setup_context=_setup_context)
_operator = torch.ops.rapt.keras.default


def _traced(call):
    """One node of the graph."""
    if call.cap is not None:
        return _outside(call)                                   # the operators have no soft cap
    if call.q.device.type == "cpu" and not call.flash:
        arguments, keywords = call.arguments()
        return binding.sdpa(*arguments, **keywords, **call.switches)
    return _as_operator(call)


def _wants(*tensors):
    return [torch.is_grad_enabled() and t is not None and t.requires_grad for t in tensors]


def _as_operator(call):
    """rapt::keras, on operands that the policy has cast where a gradient goes through them."""
    q, k, v, mask, bias = call.q, call.k, call.v, call.mask, call.bias
    needs, kind = _wants(q, k, v, bias), q.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    causal, alignment = call.causal, _call.CORNERS["tl"] if call.causal else 0
    flags = sum(bit for bit, need in zip(_GRADS, needs) if need)
    if any(needs):
        if dtype is not None:
            q, k, v, bias = (_ops.saturated(t, dtype, t is bias) for t in (q, k, v, bias))
            dtype = None
        mask, bias, causal, alignment, *_ = _ops._one_mask(q, k, mask, bias, causal, alignment, 0, -1, -1, None)
    scale = call.keywords.get("scale")
    policy = _ops.policy_text(call.switches.get("require"), None, call.switches.get("forbid"), None)
    o = _ops.Operands(q, k, v, mask, bias)
    return o.unfold(_operator(o.q, o.k, o.v, None if scale is None else float(scale), causal, o.mask, o.bias, alignment,
                              0, -1, -1, None, None, None, flags, 0, 0 if dtype is None else _ops._CODES[dtype], policy))


# ---- Around it ----

def symbolic_rule(original):
    """Keras says that the result of symbolic operands has query's shape; with Dv != D that would be a lie."""
    @functools.wraps(original)
    def compute_output_spec(self, query, key, value, bias=None, mask=None, scale=None):
        d, dv = query.shape[-1], value.shape[-1]
        if len(query.shape) == len(value.shape) == 4 and d is not None and dv is not None and d != dv:
            raise refuse("value", f"of head width {dv} beside {d} of query, as symbolic tensors",
                         "Keras would give the result query's shape; use one width, or call it inside a layer", "VALUE_DIM")
        return original(self, query, key, value, bias=bias, mask=mask, scale=scale)
    return compute_output_spec


def forget_compiled():
    """What was compiled before holds the function of then: the next call compiles again."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def explain(query, key, value, bias, mask, scale, is_causal, flash, cap, device, facts):
    """rapt.keras.explain."""
    call = _Call(query, key, value, bias, mask, scale, is_causal, flash, cap, _where_it_is)
    arguments, keywords = call.named()
    where = {"device": device, "facts": facts}
    report = binding.explain(*arguments, **keywords, **call.switches, **where)
    if call.flash is not None and report.status != "ARG":
        free = {name: value for name, value in call.switches.items() if name == "prefer"}
        report.notes += _compared(call, report, binding.explain(*arguments, **keywords, **free, **where))
    return report
