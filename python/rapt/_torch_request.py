# SPDX-License-Identifier: Apache-2.0
"""A call of rapt.torch as the core takes it: tensors described where they lie, arguments, the state of the host."""

import functools
import sys

import torch

from . import _call, _rapt
from ._errors import FIELD, ArgumentError, refuse, unknown_keyword, wrong

DTYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.bool: "bool",
    torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float8_e4m3fn: "fp8e4m3", torch.float8_e5m2: "fp8e5m2",
}
CODES = {dtype: _call.DTYPE[name] for dtype, name in DTYPES.items()}
OF_CODE = {code: dtype for dtype, code in CODES.items()}
MEMORY_LIMIT = 256 << 20                # D17, where a call gives none


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def cast_bias(bias, dtype):
    """A floating mask in another floating dtype: no finite value becomes infinite, no infinite one finite (A8). Clamped
    after the cast: the limit of the one dtype may be no number of the other."""
    cast, limit = bias.to(dtype), torch.finfo(dtype).max
    if torch.finfo(bias.dtype).max <= limit:
        return cast
    return torch.where(bias.isinf(), cast, cast.clamp(-limit, limit))


def policy_cast(tensor, dtype, bias):
    """The policy's cast of one tensor. bias: whether it is one, which is added to logits."""
    return cast_bias(tensor, dtype) if bias else tensor.to(dtype)


def _spelling(**other):
    names = [None] * len(_rapt.FIELDS)
    for field, name in {"q": "query", "k": "key", "v": "value", "q,k,v": "query, key and value",
                        "dropout": "dropout_p", **other}.items():
        names[FIELD[field]] = name
    return tuple(names)


# attn_mask is a mask or a bias, by its dtype; messages name what was passed (E3).
SPELLINGS = {"mask": _spelling(mask="attn_mask"), "bias": _spelling(bias="attn_mask"), None: _spelling()}

_UNFOLDABLE = "5 (its two batch axes do not fold into one without a copy)"

# ---- Tensors ----

_KINDS = {**_call.KINDS, "privateuseone": _call.KINDS["npu"]}
if torch.version.hip:
    _KINDS["cuda"] = _call.KINDS["hip"]
_TYPES = {kind: name for name, kind in _KINDS.items()}


def kind_of(device_type):
    kind = _KINDS.get(device_type)
    if kind is None:
        raise refuse("query", f"on {device_type}", "one of " + ", ".join(_KINDS) + " is needed", "DEVICE")
    return kind


def type_of(kind):
    """The host's name of a device kind."""
    return _TYPES[kind]


def check_tensor(t, name, address):
    """One place for tensors whose memory rapt cannot read, each refused by name with what to do. address: whether this
    call will read memory at all; a shape-only call takes meta and fake tensors."""
    if not isinstance(t, torch.Tensor):
        hint = "; torch.from_numpy makes one" if type(t).__name__ == "ndarray" else ""
        raise TypeError(f"{name} must be a torch.Tensor, not {type(t).__name__}{hint}")
    if t.is_nested:
        raise refuse(name, "a nested tensor", "pad it and pass kv_len=, or call once a sequence", "DTYPE")
    if t.layout is not torch.strided:
        raise refuse(name, str(t.layout).removeprefix("torch."), "a dense tensor is needed: .to_dense()", "DTYPE")
    if t.dtype not in CODES:
        raise refuse(name, dtype_name(t.dtype), "fp16, bf16, fp32 or fp64 is needed", "DTYPE")
    if not address:
        return
    if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise refuse(name, f"a {type(t).__name__}, which has no memory of its own",
                     "pass the tensors that hold the data, or ask rapt.torch.explain", "DEVICE")
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        raise refuse(name, "a tensor of a function transform that has ended, without memory of its own",
                     "return it from the transformed function, and use what that gives", "DEVICE")
    if t.device.type == "meta":
        raise refuse(name, "on meta, without data", "a tensor with data is needed; rapt.torch.explain takes this one",
                     "DEVICE")


class _View:
    """Sizes and strides of a tensor, seen through axes that may be added, folded or broadcast; no data moves."""

    __slots__ = ("tensor", "sizes", "strides")

    def __init__(self, tensor, name, address=True):
        check_tensor(tensor, name, address)
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

    def described(self, address, kind=None):
        """kind: another device than the tensor's own, for a what-if."""
        t = self.tensor
        where = (kind_of(t.device.type), t.device.index or 0) if kind is None else (kind, 0)
        return (t.data_ptr() if address else 0, CODES[t.dtype], self.sizes, self.strides, *where)


def _operands(query, key, value, enable_gqa, address):
    """q, k, v as the core takes them: rank 3 or 4, one batch size, one count of kv heads (H4)."""
    views = [_View(t, name, address) for t, name in ((query, "query"), (key, "key"), (value, "value"))]
    rank = len(views[0].sizes)
    for view, name in zip(views, ("query", "key", "value")):
        if len(view.sizes) not in (2, 3, 4, 5):
            raise refuse(name, f"of {len(view.sizes)} axes",
                         "2 to 5 are needed: (S,D), (H,S,D), (B,H,S,D) or (B0,B1,H,S,D)", "RANK")
        if len(view.sizes) != rank:
            raise refuse(name, f"of {len(view.sizes)} axes", f"query has {rank}; add or fold axes with views", "RANK")
    if rank == 5:
        for axis in (0, 1):
            size = max(view.sizes[axis] for view in views)
            for view in views:
                view.broadcast(axis, size)
    for view, name in zip(views, ("q", "k", "v")):
        if not view.fold(rank):
            raise wrong("RANK", name, _UNFOLDABLE, "2 to 4", SPELLINGS[None])
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

class Request:
    """One call: what the core is told, and what the host's operator would be called with."""

    __slots__ = ("query", "key", "value", "views", "mask", "bias", "tensors", "options", "names", "rank", "host",
                 "empty", "kind", "graph", "batch", "keep", "notes", "corner", "extras")


def causal_bias(value):
    """Whether this is one of the host's causal biases, without importing their module, which brings a compiler along."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(value, module.CausalBias)


def _masks(r, attn_mask, mask, bias, sinks, slopes, keywords):
    """attn_mask: bool is a mask, a float is a bias, a CausalBias names its corner (H4)."""
    for name, tensor in (("mask", mask), ("bias", bias), ("sinks", sinks), ("slopes", slopes)):
        if tensor is not None:
            check_tensor(tensor, name, False)
    r.names = SPELLINGS[None]
    if causal_bias(attn_mask):
        corner = "tl" if attn_mask.variant.name == "UPPER_LEFT" else "br"
        if keywords["causal"] not in (None, False, corner):
            raise refuse(f"attn_mask ({corner}) and causal={keywords['causal']!r}", "more than one corner",
                         "name it once", "ALIGNMENT")
        size, want = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (r.query.shape[-2:-1] + r.key.shape[-2:-1])
        if size != tuple(want):
            raise refuse("attn_mask", f"a causal bias of {size[0]}x{size[1]}",
                         f"query and key make it {'x'.join(map(str, want))}", "SHAPE")
        keywords["causal"] = corner
    elif attn_mask is not None:
        check_tensor(attn_mask, "attn_mask", False)
        which = "bias" if attn_mask.is_floating_point() else "mask"
        r.names = SPELLINGS[which]
        if (mask if which == "mask" else bias) is not None:
            raise refuse("attn_mask", f"given twice, also as {which}", "give one of the two")
        mask, bias = (attn_mask, bias) if which == "mask" else (mask, attn_mask)
    r.mask, r.bias = mask, bias


def _causal(is_causal, keywords):
    """is_causal means the top-left corner; causal= may name another, not a second one."""
    causal = keywords["causal"]
    if not is_causal:
        return
    if isinstance(causal, str) and causal != "tl":
        raise refuse(f"is_causal (tl) and causal={causal!r}", "more than one corner", "name it once", "ALIGNMENT")
    if causal in (None, False):
        keywords["causal"] = True if keywords["align"] else "tl"


def _dropout(dropout_p, keywords, seed, offset):
    other, p = keywords["dropout"], _call.number(dropout_p, "dropout_p")
    if other is not None and p:
        raise refuse("dropout_p", "given twice, also as dropout", "give one of the two")
    keywords["dropout"] = p = p if other is None else _call.number(other, "dropout")
    for name, value in (("seed", seed), ("offset", offset)):
        if value is not None and p:
            raise refuse(name, "not taken by the generator of the host's operator", "leave it out in this version")


def autocast_state(device_type):
    """The host's autocast state for a device type, read now: a dtype's name, or None (A1, A12)."""
    try:
        on = torch.is_autocast_enabled(device_type)
    except RuntimeError:                # a device type without autocast, such as meta
        return None
    return DTYPES[torch.get_autocast_dtype(device_type)] if on else None


def _gradients(r, sinks):
    """What autograd will want back (B8). Forward-mode tangents are not seen by our own rows either."""
    r.graph = False
    forward_ad = torch.autograd.forward_ad._current_level >= 0
    if not torch.is_grad_enabled() and not forward_ad:
        return
    for name, tensor in (("q", r.query), ("k", r.key), ("v", r.value), ("bias", r.bias), ("sinks", sinks)):
        if tensor is not None and (forward_ad or (tensor.requires_grad and torch.is_grad_enabled())):
            r.options["grad_" + name] = r.graph = True
    if r.graph and r.options.get("want_lse"):
        raise refuse("return_lse", "True in a call that needs gradients, and no row of this version has one through lse",
                     "call under torch.no_grad(), or without return_lse", "GRAD")


def _describe_dense(r, address, array, name):
    """Arrays that the host reads: lengths, offsets, sinks, slopes. They are few numbers, so a copy may be dense. Sinks and
    slopes may lie beside query."""
    view = _View(array, name, address)
    beside = name in ("sinks", "slopes") and array.device == r.query.device
    if array.device.type != "cpu" and not beside:
        raise wrong("DEVICE", name, array.device.type, "cpu", r.names)
    if not array.is_contiguous():
        view = _View(array.contiguous(), name, address)
    r.keep.append(view)
    return view.described(address), CODES[array.dtype], tuple(array.shape)


def describe_masks(r, address, kind):
    for name, tensor in (("mask", r.mask), ("bias", r.bias)):
        r.tensors.pop(name, None)
        if tensor is None:
            continue
        spelled = r.names[FIELD[name]] or name
        view = _View(tensor, spelled, address)
        if tensor.dim() > r.rank:
            raise wrong("RANK", name, tensor.dim(), f"at most {r.rank}", r.names)
        if r.rank == 5 and not view.fold_mask(r.batch):
            full = tuple(map(max, (*r.batch, 1, 1, 1), (1,) * (5 - tensor.dim()) + tuple(tensor.shape)))
            raise refuse(spelled, f"of shape {tuple(tensor.shape)}, whose two batch axes do not fold into one without a copy",
                         f"make the copy: .expand{full}.contiguous()", "RANK")
        r.keep.append(view)
        r.tensors[name] = view.described(address, kind)


def _bar_own_rows(options, why):
    """Bans add up (D9): no require lifts this one, and the report names the reason."""
    named = any(options.get(field) for field in ("require", "prefer", "forbid"))
    origin = options.get("origin", "call" if named else None)
    options["forbid"] = ",".join(filter(None, (options.get("forbid"), "cpu,ref")))
    options["origin"] = f"{why} and {origin}" if origin else why


def _host_only(r, address):
    """What the host has been told about its own operator holds: our rows must not stand in for it."""
    if r.kind:
        return
    if not torch._C._get_flash_sdp_enabled():
        _bar_own_rows(r.options, "sdpa_kernel")
    if address and torch._C._len_torch_dispatch_stack():
        _bar_own_rows(r.options, "dispatch mode")       # it is to see the operator, which it cannot in our own rows


_KEYWORDS = ["attn_mask", "dropout_p", "is_causal", "enable_gqa", "mask", "bias", "sinks", "slopes", "q_len", "kv_len",
             "cu_q", "cu_k", "seed", "offset", *_call.KEYWORDS]


def request(address, device, /, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
            enable_gqa=False, mask=None, bias=None, causal=None, align=None, window=None, softcap=None, sinks=None,
            slopes=None, q_len=None, kv_len=None, q_offset=None, cu_q=None, cu_k=None, dropout=None, seed=None,
            offset=None, return_lse=False, determinism=None, strict=False, mixed_kv=False, memory_limit=None,
            verify=None, require=None, prefer=None, forbid=None, autocast=None, **unknown):
    """device: the kind the tensors count as, None = where they are."""
    for name in unknown:
        raise unknown_keyword(name, _KEYWORDS)
    is_causal, enable_gqa = _call.flag(is_causal, "is_causal"), _call.flag(enable_gqa, "enable_gqa")
    keywords = dict(causal=causal, align=align, window=window, scale=scale, softcap=softcap, q_offset=q_offset,
                    dropout=dropout, return_lse=return_lse, determinism=determinism, strict=strict, mixed_kv=mixed_kv,
                    memory_limit=memory_limit, verify=verify, require=require, prefer=prefer, forbid=forbid,
                    autocast=autocast)
    r = Request()
    r.query, r.key, r.value, r.keep, r.notes = query, key, value, [], ()
    r.views = _operands(query, key, value, enable_gqa, address)
    _masks(r, attn_mask, mask, bias, sinks, slopes, keywords)
    _causal(is_causal, keywords)
    _dropout(dropout_p, keywords, seed, offset)
    r.rank, r.kind = query.dim(), kind_of(query.device.type) if device is None else device
    r.batch = [max(t.shape[axis] for t in (query, key, value)) for axis in (0, 1)] if r.rank == 5 else []
    if autocast is None:
        keywords["autocast"] = autocast_state(query.device.type if device is None else type_of(device))
    r.tensors = {}
    r.options = _call.build_options(r.kind, r.names, **keywords)
    if r.kind:
        r.options["assume_finite"] = True                       # H3
    _gradients(r, sinks)
    _host_only(r, address)
    r.empty = r.views[0].sizes[-1] == 0
    if r.empty:
        # D = 0: the host's answer is zeros (H4), which is the core's for a call without keys (S7, M16).
        for view in r.views[1:]:
            view.sizes[-2] = 0
        r.mask = r.bias = kv_len = None
        r.options["scale"] = 1.0
    r.tensors.update((name, view.described(address, device)) for name, view in zip("qkv", r.views))
    describe_masks(r, address, device)
    batch = r.views[0].sizes[0] if len(r.views[0].sizes) == 4 else 1
    lengths = {"q_len": q_len, "kv_len": kv_len, "cu_q": cu_q, "cu_k": cu_k}
    r.extras = {**lengths, "sinks": sinks, "slopes": slopes}
    if r.options.get("alignment") == _call.OFFSET_ARRAY:
        lengths["q_offset"] = q_offset
    describe = functools.partial(_describe_dense, r, address)
    _call.add_lengths(r.options, r.tensors, batch, r.names, describe, **lengths)
    _call.add_extras(r.options, r.tensors, sinks, slopes, r.names, describe)
    r.host = dict(dropout_p=keywords["dropout"], scale=r.options.get("scale"), enable_gqa=enable_gqa)
    return r
