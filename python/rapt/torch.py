# SPDX-License-Identifier: Apache-2.0
"""F.scaled_dot_product_attention's signature and semantics over rapt, for PyTorch in eager mode.

The core decides and says why. Its own rows read the tensors where they lie; where it chooses the host's operator (a
call that needs a gradient, dropout, a device without rows of our own), this file calls that operator and keeps its
autograd graph (D28)."""

import functools
import inspect
import re

import torch
from torch.nn import functional as F

from . import _call, _rapt
from ._errors import FIELD, ArgumentError, BackendError, unknown_keyword, wrong
from ._report import set_last

_VERSION = re.match(r"\d+(\.\d+)*", torch.__version__).group()
if tuple(int(part) for part in _VERSION.split(".")[:2]) < (2, 13):
    raise ImportError(f"rapt.torch needs PyTorch 2.13 or later, this is {torch.__version__}")

from torch.nn.attention.bias import CausalBias, CausalVariant  # noqa: E402  after the version is known to have it

_DTYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.bool: "bool",
    torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float8_e4m3fn: "fp8e4m3", torch.float8_e5m2: "fp8e5m2",
}
_CODES = {dtype: _call.DTYPE[name] for dtype, name in _DTYPES.items()}
_OF_CODE = {code: dtype for dtype, code in _CODES.items()}


def _spelling(**other):
    names = [None] * len(_rapt.FIELDS)
    for field, name in {"q": "query", "k": "key", "v": "value", "q,k,v": "query, key and value",
                        "dropout": "dropout_p", **other}.items():
        names[FIELD[field]] = name
    return tuple(names)


# attn_mask is a mask or a bias, by its dtype; messages name what was passed (E3).
_SPELLINGS = {"mask": _spelling(mask="attn_mask"), "bias": _spelling(bias="attn_mask"), None: _spelling()}


def _register(handle):
    _rapt.ctx_register(handle, "torch", "torch.sdpa", None, {"torch": _VERSION}, None)


context = _call.Context(_register)


_UNFOLDABLE = "5 (its two batch axes do not fold into one without a copy)"


# ---- Tensors ----

_KINDS = {**_call.KINDS, "privateuseone": _call.KINDS["npu"]}
if torch.version.hip:
    _KINDS["cuda"] = _call.KINDS["hip"]


def _kind(device):
    kind = _KINDS.get(device.type)
    if kind is None:
        raise wrong("DEVICE", "q", device.type, "one of " + ", ".join(_KINDS), _SPELLINGS[None])
    return kind


class _View:
    """Sizes and strides of a tensor, seen through axes that may be added, folded or broadcast; no data moves."""

    __slots__ = ("tensor", "sizes", "strides")

    def __init__(self, tensor, name):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.dtype not in _CODES:
            what = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            raise wrong("DTYPE", "text", str(what).removeprefix("torch."), "a dense tensor of fp16, bf16, fp32 or fp64",
                        _named("text", name))
        if tensor.is_neg():             # its memory holds the negated values
            tensor = tensor.resolve_neg()
        self.tensor, self.sizes, self.strides = tensor, list(tensor.shape), list(tensor.stride())

    def fold(self, rank):
        """Rank 2 gets an axis before it, rank 5 folds its two first where strides can say so (S3)."""
        if rank == 2:
            self.sizes, self.strides = [1, *self.sizes], [0, *self.strides]
        elif rank == 5 and len(self.sizes) == 5:
            (n, m), (outer, inner) = self.sizes[:2], self.strides[:2]
            if n > 1 and m > 1 and outer != m * inner:
                return False
            self.sizes[:2], self.strides[:2] = [n * m], [inner if m > 1 else outer]
        return True

    def fold_mask(self, batch):
        """A mask or bias beside operands of rank 5: each of its batch axes has its own size or 1 (M12)."""
        if len(self.sizes) == 4:
            self.sizes, self.strides = [1, *self.sizes], [0, *self.strides]
        if len(self.sizes) == 5 and self.sizes[:2] != [1, 1]:
            self.broadcast(0, batch[0])
            self.broadcast(1, batch[1])
        return self.fold(len(self.sizes)) if len(self.sizes) == 5 else True

    def broadcast(self, axis, size):
        if axis < len(self.sizes) and self.sizes[axis] == 1 != size:
            self.sizes[axis], self.strides[axis] = size, 0

    def described(self, address):
        t = self.tensor
        return (t.data_ptr() if address else 0, _CODES[t.dtype], self.sizes, self.strides, _kind(t.device),
                t.device.index or 0)


def _named(field, name):
    names = [None] * len(_rapt.FIELDS)
    names[FIELD[field]] = name
    return tuple(names)


def _operands(query, key, value, enable_gqa):
    """q, k, v as the core takes them: rank 3 or 4, one batch size, one count of kv heads (H4)."""
    views = [_View(t, name) for t, name in ((query, "query"), (key, "key"), (value, "value"))]
    ranks = {len(view.sizes) for view in views}
    if len(ranks) != 1:
        return views                    # the core refuses it
    rank = ranks.pop()
    if rank == 5:
        for axis in (0, 1):
            size = max(view.sizes[axis] for view in views)
            for view in views:
                view.broadcast(axis, size)
    for view, name in zip(views, ("q", "k", "v")):
        if not view.fold(rank):
            raise wrong("RANK", name, _UNFOLDABLE, "3 or 4", _SPELLINGS[None])
    if rank not in (2, 3, 4, 5):
        return views
    if rank == 4:
        batch = max(view.sizes[0] for view in views)
        for view in views:
            view.broadcast(0, batch)
    q, k, v = views
    heads = max(k.sizes[-3], v.sizes[-3])
    k.broadcast(len(k.sizes) - 3, heads)
    v.broadcast(len(v.sizes) - 3, heads)
    if not enable_gqa and k.sizes[-3] not in (1, q.sizes[-3]):
        raise ArgumentError(
            f"HEADS: key and value have {k.sizes[-3]} heads, query has {q.sizes[-3]}, and enable_gqa is False. "
            f"Set enable_gqa=True, or use 1 or {q.sizes[-3]} heads.", "HEADS", "key", str(k.sizes[-3]),
            f"1 or {q.sizes[-3]}")
    return views


# ---- Arguments ----

class _Request:
    """One call: what the core is told, and what the host's operator would be called with."""

    __slots__ = ("query", "key", "value", "views", "mask", "bias", "tensors", "options", "names", "rank", "host",
                 "empty", "kind", "graph", "batch", "keep")


def _masks(r, attn_mask, mask, bias, keywords):
    """attn_mask: bool is a mask, a float is a bias, a CausalBias names its corner (H4)."""
    r.names = _SPELLINGS[None]
    if isinstance(attn_mask, CausalBias):
        corner = "tl" if attn_mask.variant is CausalVariant.UPPER_LEFT else "br"
        if keywords["causal"] not in (None, False, corner):
            raise wrong("ALIGNMENT", "align", f"attn_mask ({corner}) and causal", "named once", r.names)
        keywords["causal"] = corner
    elif attn_mask is not None:
        which = "mask" if _is_bool(attn_mask) else "bias"
        r.names = _SPELLINGS[which]
        if (mask if which == "mask" else bias) is not None:
            raise wrong("UNKNOWN_FIELD", which, f"given twice, also as {which}", "one of the two", r.names)
        mask, bias = (attn_mask, bias) if which == "mask" else (mask, attn_mask)
    r.mask, r.bias = mask, bias


def _is_bool(tensor):
    return isinstance(tensor, torch.Tensor) and not tensor.is_floating_point()


def _causal(is_causal, keywords):
    """is_causal means the top-left corner; causal= may name another, not a second one."""
    causal = keywords["causal"]
    if not is_causal:
        return
    if causal not in (None, False, True, "tl"):
        raise wrong("ALIGNMENT", "align", f"is_causal (tl) and causal={causal!r}", "named once", _SPELLINGS[None])
    if causal in (None, False):
        keywords["causal"] = True if keywords["align"] else "tl"


def _dropout(dropout_p, keywords, seed, offset):
    other = keywords["dropout"]
    if other is not None and dropout_p:
        raise wrong("UNKNOWN_FIELD", "dropout", "given twice, also as dropout", "one of the two", _SPELLINGS[None])
    keywords["dropout"] = p = float(dropout_p if other is None else other)
    for name, value in (("seed", seed), ("offset", offset)):
        if value is not None and p:
            raise wrong("UNKNOWN_FIELD", name, "not with the generator of the host's operator", "not in this version")


def autocast_state(device_type):
    """The host's autocast state for a device type, read now: a dtype's name, or None (A1, A12)."""
    try:
        on = torch.is_autocast_enabled(device_type)
    except RuntimeError:                # a device type without autocast, such as meta
        return None
    return _DTYPES[torch.get_autocast_dtype(device_type)] if on else None


def _gradients(r, sinks):
    """What autograd will want back (B8). Forward-mode tangents are not seen by our own rows either."""
    r.graph = False
    forward_ad = torch.autograd.forward_ad._current_level >= 0
    if not torch.is_grad_enabled() and not forward_ad:
        return
    for name, tensor in (("q", r.query), ("k", r.key), ("v", r.value), ("bias", r.bias), ("sinks", sinks)):
        if tensor is not None and (forward_ad or (tensor.requires_grad and torch.is_grad_enabled())):
            r.options["grad_" + name] = r.graph = True


def _describe_dense(r, array, name):
    """Arrays that the host reads: lengths, offsets, sinks, slopes. They are few numbers, so a copy may be dense."""
    view = _View(array, name)
    if array.device.type != "cpu":
        raise wrong("DEVICE", name, array.device.type, "cpu", r.names)
    if not array.is_contiguous():
        view = _View(array.contiguous(), name)
    r.keep.append(view)
    return view.described(True), _CODES[array.dtype], tuple(array.shape)


def _masks_described(r, address):
    for name, tensor in (("mask", r.mask), ("bias", r.bias)):
        if tensor is None:
            continue
        view = _View(tensor, name)
        if tensor.dim() > r.rank:
            raise wrong("RANK", name, tensor.dim(), f"at most {r.rank}", r.names)
        if r.rank == 5 and not view.fold_mask(r.batch):
            raise wrong("RANK", name, _UNFOLDABLE, "0 to 4", r.names)
        r.keep.append(view)
        r.tensors[name] = view.described(address)


def _request(address, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
             enable_gqa=False, mask=None, bias=None, causal=None, align=None, window=None, softcap=None, sinks=None,
             slopes=None, q_len=None, kv_len=None, q_offset=None, cu_q=None, cu_k=None, dropout=None, seed=None,
             offset=None, return_lse=False, determinism=None, strict=False, mixed_kv=False, memory_limit=None,
             verify=None, require=None, prefer=None, forbid=None, autocast=None, **unknown):
    for name in unknown:
        raise unknown_keyword(name, ["attn_mask", "dropout_p", "is_causal", "enable_gqa", "mask", "bias", "sinks",
                                     "slopes", "q_len", "kv_len", "cu_q", "cu_k", "seed", "offset", *_call.KEYWORDS])
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise wrong("UNKNOWN_FIELD", "text", "under a function transform", "not in this version",
                    _named("text", "query"))
    keywords = dict(causal=causal, align=align, window=window, scale=scale, softcap=softcap, q_offset=q_offset,
                    dropout=dropout, return_lse=return_lse, determinism=determinism, strict=strict, mixed_kv=mixed_kv,
                    memory_limit=memory_limit, verify=verify, require=require, prefer=prefer, forbid=forbid,
                    autocast=autocast)
    r = _Request()
    r.query, r.key, r.value, r.keep = query, key, value, []
    _masks(r, attn_mask, mask, bias, keywords)
    _causal(is_causal, keywords)
    _dropout(dropout_p, keywords, seed, offset)
    r.views = _operands(query, key, value, enable_gqa)
    r.rank, r.kind = query.dim(), _kind(query.device)
    r.batch = [max(t.shape[axis] for t in (query, key, value)) for axis in (0, 1)] if r.rank == 5 else []
    if autocast is None:
        keywords["autocast"] = autocast_state(query.device.type)
    r.tensors = {}
    r.options = _call.build_options(r.kind, r.names, **keywords)
    if query.device.type != "cpu":
        r.options["assume_finite"] = True                       # H3
    _gradients(r, sinks)
    r.empty = r.views[0].sizes[-1] == 0 and r.rank >= 2
    if r.empty:
        # D = 0: the host's answer is zeros (H4), which is the core's for a call without keys (S7, M16).
        for view in r.views[1:]:
            view.sizes[-2] = 0
        r.mask = r.bias = kv_len = None
        r.options["scale"] = 1.0
    r.tensors.update((name, view.described(address)) for name, view in zip("qkv", r.views))
    _masks_described(r, address)
    batch = r.views[0].sizes[0] if len(r.views[0].sizes) == 4 else 1
    lengths = {"q_len": q_len, "kv_len": kv_len, "cu_q": cu_q, "cu_k": cu_k}
    if r.options.get("alignment") == _call.OFFSET_ARRAY:
        lengths["q_offset"] = q_offset
    describe = functools.partial(_describe_dense, r)
    _call.add_lengths(r.options, r.tensors, batch, r.names, describe, **lengths)
    _call.add_extras(r.options, r.tensors, sinks, slopes, r.names, describe)
    r.host = dict(dropout_p=keywords["dropout"], scale=scale, enable_gqa=enable_gqa)
    return r


# ---- The host's operator ----

def _to(tensor, dtype, bias):
    """The policy's cast (A8): a finite bias stays finite, so that no number becomes a mask."""
    if not bias:
        return tensor.to(dtype)
    limit = torch.finfo(dtype)
    return torch.where(tensor.isfinite(), tensor.clamp(limit.min, limit.max), tensor).to(dtype)


def _operand(r, report, name, tensor):
    _, _, _, _, cast_dtype, casts = report.decision
    if tensor is None or not casts >> FIELD[name] & 1:
        return tensor
    return _to(tensor, _OF_CODE[cast_dtype], name == "bias")


def _host_causal(r):
    """One query row at the bottom right sees every key; elsewhere the core has seen to it that the corners agree."""
    bottom_right = r.options.get("alignment") == _call.CORNERS["br"]
    return bool(r.options.get("causal")) and not (bottom_right and r.views[0].sizes[-2] == 1)


def _additive(mask, dtype):
    """The members below the public operator add every mask; a bool one would be added as 0 and 1."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _flash_cpu(q, k, v, mask, p, causal, scale, enable_gqa):
    mask = _additive(mask, q.dtype)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, attn_mask=mask, scale=scale)


def _math(q, k, v, mask, p, causal, scale, enable_gqa):
    mask = _additive(mask, q.dtype)
    out, _ = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask, p, causal, None, scale=scale,
                                                               enable_gqa=enable_gqa)
    return out, None


def _sdpa(q, k, v, mask, p, causal, scale, enable_gqa):
    return F.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale, enable_gqa=enable_gqa), None


# Each returns (out, lse), lse None where the operator has none; the core has refused a call that wants it then.
_HOST_ROWS = {"torch.sdpa": _sdpa, "torch.math": _math, "torch.flash_cpu": _flash_cpu}


def _run_host(r, report):
    """Calls the chosen operator with the host's autocast suspended: what is cast has been cast (A13)."""
    operator = _HOST_ROWS.get(report.row)
    if operator is None:
        raise BackendError(f"no operator is known for row {report.row}", report)
    q, k, v = (_operand(r, report, n, t) for n, t in (("q", r.query), ("k", r.key), ("v", r.value)))
    bias = _operand(r, report, "bias", r.bias)
    if r.empty:
        k, v = k.narrow(-2, 0, 0), v.narrow(-2, 0, 0)           # as the core was told
    with torch.autocast(r.query.device.type, enabled=False):
        result = operator(q, k, v, bias if bias is not None else r.mask, r.host["dropout_p"], _host_causal(r),
                          r.host["scale"], r.host["enable_gqa"])
    _rapt.ctx_enter(context.handle, context.row_index(report.row))
    set_last(report)
    return result if r.options.get("want_lse") else result[0]


# ---- The calls ----

def _said(dtype):
    return {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half",
            torch.bfloat16: "c10::BFloat16"}.get(dtype, str(dtype).removeprefix("torch."))


def _sentence(r):
    """The host's own words on operands of different dtypes, for who looks for them (A7)."""
    return (" Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{_said(r.query.dtype)} key.dtype: {_said(r.key.dtype)} and value.dtype: {_said(r.value.dtype)} instead.")


def _mixed(r):
    return _sentence(r) if not r.query.dtype == r.key.dtype == r.value.dtype else ""


def _allocate(r, call, name, field):
    """The dense tensor the core describes, seen with the axes of query."""
    dtype, sizes, strides = _call.output(context, call, field, r.names, _mixed(r))
    tensor = torch.empty_strided(sizes, strides, dtype=_OF_CODE[dtype], device=r.query.device)
    _rapt.attach(call, name, (tensor.data_ptr(), dtype, sizes, strides, r.kind, 0))
    if r.options.get("cu"):
        return tensor.transpose(0, 1) if name == "out" else tensor              # the core's is [S,H,D]
    if r.rank == 3:
        return tensor[0]
    if r.rank == 2:
        return tensor[0, 0]
    return tensor.unflatten(0, r.batch) if r.rank == 5 else tensor


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    """F.scaled_dot_product_attention through rapt: the same signature and meaning, plus the keywords of rapt.attention.

    Beyond the host's own: attn_mask and is_causal may come together and both apply, Dv may differ from D on every
    route, and `bias`, `mask`, `window`, `align`, `return_lse`, `prefer` and the rest are there. The autocast state is
    read at every call. A call that needs gradients runs on the host's operator and keeps its graph."""
    r = _request(True, query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    call = _call.prepare(r.tensors, r.options, r.names)
    if r.graph:
        return _run_host(r, _call.decide(context, call, r.names, _mixed(r)))    # no own row serves a gradient yet
    out = _allocate(r, call, "out", _call.OUT)
    lse = _allocate(r, call, "lse", _call.LSE) if keywords.get("return_lse") else None
    report, done = _call.run(context, call, r.names, _mixed(r))
    if not done:
        return _run_host(r, report)
    return (out, lse) if lse is not None else out


def explain(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    """The report of the same call to sdpa(), without running anything. Meta and fake tensors will do."""
    r = _request(False, query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    return _call.explain(context, _call.prepare(r.tensors, r.options, r.names), r.names)[1]


def _signature(function):
    """Shows the keywords to help() and to tools; they are taken apart in one place, _request."""
    parameters = list(inspect.signature(_request).parameters.values())[1:-1]
    function.__signature__ = inspect.Signature(parameters)


_signature(sdpa)
_signature(explain)
