# SPDX-License-Identifier: Apache-2.0
"""The operators of the PyTorch binding: rapt::sdpa without autograd, rapt::sdpa_ag with it, and what tracing needs of
them. Their kernels are C (_torch_ops.c); a call of one is one node in a graph, and decides when it runs."""

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
from torch.nn import functional as F

from . import _call, _policy, _rapt
from ._errors import DTYPE, refuse
from ._report import set_last
from ._torch_request import MEMORY_LIMIT, _bar_own_rows, policy_cast

_ATEN = torch.ops.aten
FLASH = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
MATH = _ATEN._scaled_dot_product_attention_math.default

# The host's operators as they are now: install() overrides them later.
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_flash_kernel = torch.library.get_kernel(FLASH, "CPU")
_math_kernel = torch.library.get_kernel(MATH, "CPU")

STRICT, MIXED_KV, CONTIGUOUS, GRAD_Q, GRAD_K, GRAD_V, GRAD_BIAS = (1 << bit for bit in range(7))
_CODES = {torch.float16: DTYPE["fp16"], torch.bfloat16: DTYPE["bf16"], torch.float32: DTYPE["fp32"]}
_OF_CODE = {code: dtype for dtype, code in _CODES.items()}
_SEPARATOR = "\x01"


# ---- Preferences: read when a call runs, so that a compiled graph follows the scopes around its caller ----

def policy_text(require, prefer, forbid, memory_limit, origin=""):
    """The preferences of one call as the operators take them. origin: "site NAME" where they are a site's."""
    if require is None and prefer is None and forbid is None and memory_limit is None:
        return ""
    names = [_policy.names_text(value, field) or "" for value, field in
             ((require, "require"), (prefer, "prefer"), (forbid, "forbid"))]
    return _SEPARATOR.join([*names, origin, "" if memory_limit is None else str(memory_limit)])


def _bar_packages(options):
    """Rows of packages on a CPU are run by rapt.torch.sdpa with all its arguments, which an operator does not have."""
    origin = options.get("origin", "call")
    options["forbid"] = ",".join(filter(None, (options.get("forbid"), "flex,hub.fa2.cpu")))
    options["origin"] = f"operator and {origin}"


def _merge(text):
    """The same with the scopes of this task and thread joined in (D9)."""
    require, prefer, forbid, why, limit = text.split(_SEPARATOR) if text else [""] * 5
    scope = _policy.held()
    if why.startswith("site ") and scope is not None:           # what a model says gives way to a scope; its bans stay
        require, prefer = ("" if held else own for own, held in zip((require, prefer), scope))
    options = {}
    _policy.resolve(options, require or None, prefer or None, forbid or None, int(limit) if limit else None)
    if options.get("require") or options.get("prefer"):
        _bar_packages(options)
    if why:
        options["origin"] = f"{why} and {options['origin']}" if "origin" in options else why
    return _SEPARATOR.join(str(options.get(name, "")) for name in
                           ("require", "prefer", "forbid", "origin", "memory_limit"))


def _context():
    from . import torch as binding
    return binding.context.handle


_rapt.ops_register(_context, _merge)
sdpa_op, sdpa_lse_op = torch.ops.rapt.sdpa.default, torch.ops.rapt.sdpa.lse
sdpa_ag_op, host_op = torch.ops.rapt.sdpa_ag.default, torch.ops.rapt.host.default


# ---- Shapes: the one rule for fake and real results ----

def _axis_order(q):
    """Axes of q from the widest stride to the narrowest; an axis that does not count stands where the ones after it
    do (H2)."""
    weight, widest = [1] * q.dim(), 1
    for axis in reversed(range(q.dim())):
        stride = q.stride(axis)
        counts = guard_or_true(q.shape[axis] > 1) and guard_or_true(stride != 0)
        weight[axis] = stride if counts else widest
        if guard_or_false(weight[axis] > widest):
            widest = weight[axis]
    order = []
    for axis in range(q.dim()):
        at = axis
        while at > 0 and guard_or_false(weight[order[at - 1]] < weight[axis]):
            at -= 1
        order.insert(at, axis)
    return order


def _layout(q, dv, contiguous):
    """(sizes, strides) of the result: dense in the order of q's axes, or of its own."""
    sizes = (*q.shape[:-1], dv)
    strides, run = [0] * q.dim(), 1
    for axis in reversed(range(q.dim()) if contiguous else _axis_order(q)):
        strides[axis] = run
        size = sizes[axis]
        run = run * (torch.sym_max(size, 1) if isinstance(size, torch.SymInt) else max(size, 1))
    return sizes, strides


def _result_dtype(q, autocast):
    return _OF_CODE[autocast] if autocast and q.dtype in _CODES else q.dtype


def _arguments(q, k, v, scale=None, causal=False, mask=None, bias=None, align=0, q_offset=0, left=-1, right=-1,
               q_len=None, kv_len=None, offsets=None, flags=0, determinism=0, autocast=0, policy=""):
    return (q, k, v, scale, causal, mask, bias, align, q_offset, left, right, q_len, kv_len, offsets, flags,
            determinism, autocast, policy)


def _fake_out(q, k, v, flags, autocast):
    ranks = q.dim() in (3, 4) and q.dim() == k.dim() == v.dim()
    torch._check(ranks, lambda: f"RANK: query, key and value have {q.dim()}, {k.dim()} and {v.dim()} axes, not 3 or 4")
    same = autocast or flags & MIXED_KV or q.dtype == k.dtype == v.dtype
    torch._check(bool(same), lambda: "DTYPE_MIX: Expected query, key, and value to have the same dtype, but got "
                 f"query.dtype: {q.dtype} key.dtype: {k.dtype} and value.dtype: {v.dtype} instead.")
    sizes, strides = _layout(q, v.shape[-1], bool(flags & CONTIGUOUS))
    return torch.empty_strided(sizes, strides, dtype=_result_dtype(q, autocast), device=q.device)


def _fake(*args, **keywords):
    a = _arguments(*args, **keywords)
    return _fake_out(*a[:3], a[14], a[16])


def _new_lse(q):
    """fp32, fp64 for fp64 q (N8), dense."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.empty(q.shape[:-1], dtype=wide, device=q.device)


def _fake_lse(*args, **keywords):
    a = _arguments(*args, **keywords)
    return _fake_out(*a[:3], a[14], a[16]), _new_lse(a[0])


def _fake_host(q, k, v, scale, causal, mask, bias, flags, autocast, row):
    return _fake_out(q, k, v, flags, autocast), _new_lse(q)


torch.library.register_fake("rapt::sdpa", _fake)
torch.library.register_fake("rapt::sdpa.lse", _fake_lse)
torch.library.register_fake("rapt::sdpa_ag", _fake)
torch.library.register_fake("rapt::host", _fake_host)


# ---- The host's operator, for the calls the core gives to it ----

def saturated(tensor, dtype, bias):
    """The policy's cast, of what it casts (A2, A3); None, float64 and what is no float stay."""
    if tensor is None or tensor.dtype not in _CODES or tensor.dtype == dtype:
        return tensor
    return policy_cast(tensor, dtype, bias)


def _additive(mask, bias, dtype):
    if mask is None:
        return bias
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    return zeros if bias is None else zeros + bias


def _fits_flash(q, k, v, mask):
    """The host's own checks of its fast operator."""
    return (q.dim() == 4 and q.shape[0] == k.shape[0] == v.shape[0] and q.shape[-1] == k.shape[-1] == v.shape[-1]
            and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and 0 not in (*q.shape, *k.shape)
            and (mask is None or mask.dim() in (2, 4)) and q.dtype in (*_CODES, torch.float64))


def _host(q, k, v, scale, causal, mask, bias, flags, autocast, row):
    if autocast:
        dtype = _OF_CODE[autocast]
        q, k, v = (saturated(t, dtype, False) for t in (q, k, v))
        bias = saturated(bias, dtype, True)
    sizes, strides = _layout(q, v.shape[-1], bool(flags & CONTIGUOUS))
    mask = _additive(mask, bias, q.dtype)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        fused = torch._C._get_flash_sdp_enabled()
        if row == "torch.flash_cpu" or row == "torch.sdpa" and fused and _fits_flash(q, k, v, mask):
            out, lse = _flash_kernel.call_boxed(_CPU, q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
            lse = lse.contiguous()
        else:
            out, _ = _math_kernel.call_boxed(_CPU, q, k, v, mask, 0.0, causal, None, scale=scale,
                                             enable_gqa=q.shape[-3] != k.shape[-3])
            lse = _new_lse(q)           # nobody reads it: the core gives no call that wants one to this operator
    if list(out.stride()) != list(strides):
        out = torch.empty_strided(sizes, strides, dtype=out.dtype).copy_(out)
    return out, lse


_library = torch.library.Library("rapt", "FRAGMENT")
_library.impl("host", _host, "CPU")


# ---- Gradients: the host's, until the core has a backward ----

def _setup_context(ctx, inputs, output):
    a = _arguments(*inputs)
    ctx.save_for_backward(*a[:3], a[5], a[6])
    ctx.scale, ctx.causal, ctx.n = a[3], bool(a[4] or a[10] == 0), len(inputs)       # M6


def _reduced(grad, like):
    """A gradient summed over the axes along which its tensor was broadcast."""
    return grad.sum_to_size(like.shape).to(like.dtype)


def _by_formula(dout, q, k, v, mask, causal, scale):
    """(dq, dk, dv, dscores) in the accumulation dtype; what the host's math operator differentiates to."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[-3] // k.shape[-3]
    q, dout, k, v = (t.to(wide) for t in (q, dout, k, v))
    keys, values = (t.repeat_interleave(group, -3) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ keys.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores + mask.to(wide)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, -1)
    weights = torch.where((scores == float("-inf")).all(-1, keepdim=True), 0.0, weights)
    dweights = dout @ values.transpose(-2, -1)
    dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
    dkeys, dvalues = dscores.transpose(-2, -1) @ q * scale, weights.transpose(-2, -1) @ dout
    dk, dv = (t.unflatten(-3, (k.shape[-3], group)).sum(-3) for t in (dkeys, dvalues))
    return dscores @ keys * scale, dk, dv, dscores


def _backward(ctx, dout):
    q, k, v, mask, bias = ctx.saved_tensors
    additive = _additive(mask, bias, q.dtype)
    grads = [None] * ctx.n
    if 0 in (*q.shape, *k.shape, *v.shape):
        grads[:3] = (torch.zeros_like(t) for t in (q, k, v))
        grads[6:7] = [torch.zeros_like(bias)] if bias is not None and ctx.needs_input_grad[6] else [None]
        return tuple(grads[:ctx.n])
    if _fits_flash(q, k, v, additive) and not (ctx.n > 6 and ctx.needs_input_grad[6]):
        out, lse = FLASH(q, k, v, 0.0, ctx.causal, attn_mask=additive, scale=ctx.scale)
        grads[:3] = FLASH_BACKWARD(dout, q, k, v, out, lse, 0.0, ctx.causal, attn_mask=additive, scale=ctx.scale)
        return tuple(grads)
    dq, dk, dv, dscores = _by_formula(dout, q, k, v, additive, ctx.causal, ctx.scale)
    grads[:3] = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    if bias is not None and ctx.needs_input_grad[6]:
        grads[6] = _reduced(dscores, bias)
    return tuple(grads)


torch.library.register_autograd("rapt::sdpa_ag", _backward, setup_context=_setup_context)


# ---- vmap: the mapped axis joins the batch ----

def _vmap(op):
    def rule(info, dims, *args):
        a = list(_arguments(*args))
        d = list(dims) + [None] * (len(a) - len(dims))
        n, rank = info.batch_size, a[0].dim() - (d[0] is not None)
        q, k, v = (t.movedim(dim, 0) if dim is not None else t.expand(n, *t.shape) for t, dim in zip(a[:3], d))
        batch = q.shape[1] if rank == 4 else 1
        a[:3] = (t.flatten(0, 1) if rank == 4 else t for t in (q, k, v))
        for at in (5, 6):
            if a[at] is not None and d[at] is not None:
                t = a[at].movedim(d[at], 0)
                t = t.reshape(n, *[1] * (5 - t.dim()), *t.shape[1:])
                a[at] = t.expand(n, batch, *t.shape[2:]).flatten(0, 1)
            elif a[at] is not None and rank == 4 and a[at].dim() == 4 and a[at].shape[0] != 1:
                a[at] = a[at].expand(n, *a[at].shape).flatten(0, 1)
        for at in (11, 12, 13):
            if a[at] is not None:
                t = a[at].movedim(d[at], 0) if d[at] is not None else a[at].expand(n, *a[at].shape)
                a[at] = t.flatten().contiguous()
        result = op(*a)
        results = result if isinstance(result, tuple) else (result,)
        if rank == 4:
            results = tuple(t.unflatten(0, (n, batch)) for t in results)
        return (results, (0,) * len(results)) if isinstance(result, tuple) else (results[0], 0)
    return rule


torch.library.register_vmap(sdpa_op, _vmap(sdpa_op))
torch.library.register_vmap(sdpa_lse_op, _vmap(sdpa_lse_op))


# ---- Operands as the operators take them ----

class Operands:
    """q, k, v of rank 3 or 4 with one batch size and one count of kv heads, and a mask or bias that fits (S3, H4)."""

    def __init__(self, query, key, value, mask, bias):
        self.rank, self.batch = query.dim(), None
        q, k, v = query, key, value
        if self.rank == 2:
            q, k, v = (t.unsqueeze(0) for t in (q, k, v))
        elif self.rank >= 4:
            self.batch = q.shape[:-3]
            if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
                self.batch = torch.broadcast_shapes(*(t.shape[:-3] for t in (q, k, v)))
                q, k, v = (t.expand(*self.batch, *t.shape[-3:]) for t in (q, k, v))
        if self.rank > 4:
            q, k, v = (t.flatten(0, -4) for t in (q, k, v))
            mask, bias = (self._fold(t) for t in (mask, bias))
        heads = k.shape[-3] if k.shape[-3] != 1 else v.shape[-3]
        if k.shape[-3] != v.shape[-3]:
            k, v = (t.expand(*t.shape[:-3], heads, *t.shape[-2:]) for t in (k, v))
        self.q, self.k, self.v, self.mask, self.bias = q, k, v, mask, bias

    def _fold(self, t):
        lead = self.rank - 3
        if t is None or t.dim() <= 3:
            return t
        t = t.reshape(*[1] * (self.rank - t.dim()), *t.shape)
        if all(size == 1 for size in t.shape[:lead]):
            return t.flatten(0, -4)
        return t.expand(*self.batch, *t.shape[lead:]).flatten(0, -4)

    def unfold(self, result):
        if self.rank == 2:
            return result.squeeze(0)
        return result.unflatten(0, self.batch) if self.rank > 4 else result


# ---- The front under torch.compile and torch.export ----

def _whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ill_formed(dropout_p, is_causal, k):
    """Values that the eager front refuses, in its own words (E6). k: the keywords."""
    window, limit = k["window"], k["memory_limit"]
    return not (
        isinstance(is_causal, bool) and isinstance(k["enable_gqa"], bool) and _number(dropout_p)
        and all(k[name] is None or isinstance(k[name], bool) for name in ("return_lse", "strict", "mixed_kv"))
        and (k["scale"] is None or _number(k["scale"])) and (limit is None or _whole(limit) and limit >= 0)
        and (window is None or isinstance(window, (tuple, list)) and len(window) == 2 and all(map(_whole, window)))
        and (k["causal"] is None or isinstance(k["causal"], (bool, str)))
        and (k["align"] is None or isinstance(k["align"], str))
        and (k["q_offset"] is None or _whole(k["q_offset"]) or isinstance(k["q_offset"], torch.Tensor))
        and (k["determinism"] is None or k["determinism"] in _call.DETERMINISM)
        and k["autocast"] in (None, False, "off", "auto", "fp16", "bf16", "fp32"))


_UNSERVED = frozenset("softcap sinks slopes dropout seed offset cu_q cu_k verify".split())     # None: not given


def _leaves(query, attn_mask, mask, bias, other):
    """What the operators do not take; such a call leaves the graph."""
    if torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return True                     # a derivative that is taken there is not seen here
    if not torch._C._get_flash_sdp_enabled():
        return True                     # no graph is guarded by sdpa_kernel, which may end before the graph does
    if query.device.type != "cpu" or query.dim() < 2 or query.shape[-1] == 0 or forward_ad._current_level >= 0:
        return True
    if attn_mask is not None and (type(attn_mask).__name__ == "CausalBias" or
                                  not (attn_mask.dtype == torch.bool or attn_mask.is_floating_point())):
        return True
    twice = attn_mask is not None and (bias if attn_mask.is_floating_point() else mask) is not None
    return twice or any(name not in _UNSERVED or value is not None and value is not False
                        for name, value in other.items())


@torch._disable_dynamo
def _eager(*args, **keywords):
    from . import torch as binding
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise refuse("query", "under a function transform of torch.func, with options that the operators do not take",
                     "leave them out, or call outside the transform")
    return binding.sdpa(*args, **keywords)


def _position(is_causal, causal, align, q_offset):
    """(causal, alignment, number, array), or None for what the eager front has to refuse."""
    corner = causal if isinstance(causal, str) else align
    on = bool(is_causal or causal)
    if is_causal and (corner not in (None, "tl") or q_offset is not None) or \
            isinstance(causal, str) and align not in (None, causal):
        return None
    if is_causal and align is None:
        corner = "tl"
    if q_offset is not None:
        if corner is not None:
            return None
        array = isinstance(q_offset, torch.Tensor)
        return (on, _call.OFFSET_ARRAY, 0, q_offset) if array else (on, _call.OFFSET, q_offset, None)
    if corner is None:
        return on, 0, 0, None
    if corner.startswith("off:") and corner[4:].removeprefix("-").isdecimal():
        return on, _call.OFFSET, int(corner[4:]), None
    return (on, _call.CORNERS[corner], 0, None) if corner in _call.CORNERS else None


def _autocast_dtype(autocast):
    """The dtype to cast to, or None (A1). The host's state is part of what a compiled graph is guarded by."""
    if autocast is None:
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    if autocast in ("off", False):
        return None
    return torch.bfloat16 if autocast == "auto" else _OF_CODE.get(DTYPE.get(autocast))


def _one_mask(query, key, mask, bias, on, alignment, number, left, right, limit):
    """(mask, bias, causal, alignment, number, left, right) with all of them said as one mask where the host's operator,
    which runs what wants a gradient, does not take them apart; what _torch_host.joined does for eager calls."""
    given = mask, bias, on, alignment, number, left, right
    sq, skv = query.shape[-2], key.shape[-2]
    positional = on or left >= 0 or right >= 0
    plain = alignment in (0, _call.CORNERS["tl"]) and not (left >= 0 or right >= 0)
    if not (positional and not (plain and mask is None and bias is None)) and (mask is None or bias is None):
        return given
    if positional and alignment == 0 and guard_or_true(sq != skv):
        return given                    # the corner was not said: the core's to refuse
    if positional:
        off = {_call.OFFSET: number, _call.CORNERS["br"]: skv - sq}.get(alignment, 0)
        distance = torch.arange(skv, device=query.device) - (torch.arange(sq, device=query.device)[:, None] + off)
        seen = [distance <= 0] * bool(on) + [distance >= -left] * (left >= 0) + [distance <= right] * (right >= 0)
        for one in seen:
            mask = one if mask is None else mask & one
    if bias is not None:
        mask, bias = None, bias.masked_fill(~mask, float("-inf"))
    one = mask if bias is None else bias
    if guard_or_false(one.numel() * one.dtype.itemsize > (MEMORY_LIMIT if limit is None else limit)):
        return given                    # D17: more than the call may use
    return mask, bias, False, 0, 0, -1, -1


def compiled_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False,
                  mask=None, bias=None, causal=None, align=None, window=None, q_len=None, kv_len=None, q_offset=None,
                  return_lse=False, determinism=None, strict=False, mixed_kv=False, memory_limit=None, require=None,
                  prefer=None, forbid=None, autocast=None, _origin="", **other):
    """rapt.torch.sdpa as torch.compile and torch.export see it: one operator, no break."""
    keywords = dict(scale=scale, enable_gqa=enable_gqa, mask=mask, bias=bias, causal=causal, align=align,
                    window=window, q_len=q_len, kv_len=kv_len, q_offset=q_offset, return_lse=return_lse,
                    determinism=determinism, strict=strict, mixed_kv=mixed_kv, memory_limit=memory_limit,
                    require=require, prefer=prefer, forbid=forbid, autocast=autocast, **other)
    wrong = _ill_formed(dropout_p, is_causal, keywords)
    position = None if wrong else _position(is_causal, causal, align, q_offset)
    if position is None or _leaves(query, attn_mask, mask, bias, other):
        return _eager(query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    served = bias is mask is window is q_len is kv_len is None and position[1] in (0, 1) and not (return_lse or strict)
    if dropout_p and not (served and (attn_mask is None or not is_causal)):
        return _eager(query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    if attn_mask is not None:
        mask, bias = (attn_mask, bias) if attn_mask.dtype == torch.bool else (mask, attn_mask)
    heads = max(key.shape[-3], value.shape[-3]) if query.dim() > 2 else 1
    if not enable_gqa and query.dim() > 2 and heads != 1 and heads != query.shape[-3]:
        return _eager(query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    if dropout_p:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                              enable_gqa=enable_gqa)
    on, alignment, number, array = position
    flags = (STRICT if strict else 0) | (MIXED_KV if mixed_kv else 0)
    dtype = _autocast_dtype(autocast)
    left, right = (-1, -1) if window is None else window
    needs = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (query, key, value, bias)]
    graph = any(needs)
    if graph and dtype is not None:
        query, key, value = (saturated(t, dtype, False) for t in (query, key, value))
        bias, dtype = saturated(bias, dtype, True), None
    if graph and q_len is kv_len is array is None:
        mask, bias, on, alignment, number, left, right = _one_mask(query, key, mask, bias, on, alignment, number, left,
                                                                   right, memory_limit)
    o = Operands(query, key, value, mask, bias)
    for need, bit in zip(needs, (GRAD_Q, GRAD_K, GRAD_V, GRAD_BIAS)):
        flags |= bit if need else 0
    args = (o.q, o.k, o.v, None if scale is None else float(scale), on, o.mask, o.bias, alignment, number, left, right,
            q_len, kv_len, array, flags, _call.DETERMINISM[determinism] if determinism is not None else 0,
            0 if dtype is None else _CODES[dtype], policy_text(require, prefer, forbid, memory_limit, _origin))
    if not return_lse:
        return o.unfold(sdpa_ag_op(*args) if graph else sdpa_op(*args))
    if graph:
        return _eager(query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    out, lse = sdpa_lse_op(*args)
    return o.unfold(out), o.unfold(lse)


# ---- The front under the transforms of torch.func ----

def _differentiated(tensor):
    """Whether autograd knows a tensor or what it wraps: a mapped tensor does not say so of itself."""
    while tensor is not None and not tensor.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor is not None


def _only_vmap(tensors):
    """Whether nobody wants a derivative: then the operators' own rule folds the mapped axes into the batch."""
    vmap = torch._C._functorch.TransformType.Vmap
    if any(level.key() != vmap for level in torch._C._functorch.get_interpreter_stack()):
        return False
    return not (torch.is_grad_enabled() and any(map(_differentiated, tensors)))


def transformed_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    """rapt.torch.sdpa under vmap, grad and the other transforms: decided from the shapes of one sample. Where only vmap
    is active our rows may run; a derivative is the host's, whose operators compose with every transform."""
    from . import torch as binding
    r = binding._request(False, query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    if not _only_vmap((query, key, value, r.bias)) or dropout_p:
        if r.options.get("want_lse"):
            raise refuse("return_lse", "True under a function transform that takes derivatives",
                         "call it under vmap alone, or without return_lse", "GRAD")
        _bar_own_rows(r.options, "function transform")
    status, report, one = binding._decided(binding.context, r, False)
    if status:
        set_last(report)
        raise _call.failed(status, report, r.names, binding._mixed(r))
    if report.row.startswith("torch."):
        return _on_host_transformed(binding, r, one, report)
    return compiled_sdpa(query, key, value, attn_mask, dropout_p, is_causal, **keywords)


def _on_host_transformed(binding, r, one, report):
    """one: the request that was decided, r itself or r with one mask, which so far has a shape only."""
    mask, bias = r.mask, r.bias
    if one is not r:
        option = r.options.get
        mask, bias, *_ = _one_mask(r.query, r.key, mask, bias, bool(option("causal")), option("alignment", 0),
                                   option("q_offset", 0), option("window_left", -1), option("window_right", -1),
                                   report.json["policy"]["memory_limit"])
    call = binding.HostCall(one, report, _rapt.ctx_age(binding.context.handle))
    return call.run(r.query, r.key, r.value, mask, bias)
