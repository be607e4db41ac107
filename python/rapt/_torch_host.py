# SPDX-License-Identifier: Apache-2.0
"""The host's own operator: what it is called with, and calls said in a way that it can take."""

import torch
from torch.nn import functional as F

from . import _call, _rapt
from ._errors import FIELD, BackendError
from ._report import set_last
from ._torch_request import MEMORY_LIMIT, OF_CODE, Request, describe_masks, dtype_name, policy_cast

# ---- Calling it ----

def _additive(mask, dtype):
    """The members below the public operator add every mask; a bool one would be added as 0 and 1."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _flash_cpu(q, k, v, mask, p, causal, scale, enable_gqa):
    """It takes operands of 4 axes, and a mask of 2 or 4."""
    mask, short = _additive(mask, q.dtype), 4 - q.dim()
    q, k, v = (t[(None,) * short] for t in (q, k, v))
    if mask is not None and mask.dim() == 3:
        mask = mask[None]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, attn_mask=mask, scale=scale)
    return out[(0,) * short], lse[(0,) * short]


def _math(q, k, v, mask, p, causal, scale, enable_gqa):
    mask = _additive(mask, q.dtype)
    out, _ = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask, p, causal, None, scale=scale,
                                                               enable_gqa=enable_gqa)
    return out, None


def _sdpa(q, k, v, mask, p, causal, scale, enable_gqa):
    return F.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale, enable_gqa=enable_gqa), None


def _eights(q, k, v, scale):
    """Widths that are a multiple of 8, as the flash operator wants them; scale is that of the width given."""
    short = -q.shape[-1] % 8
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (*(F.pad(t, (0, short)) for t in (q, k, v)), scale) if short else (q, k, v, scale)


def _flash(q, k, v, mask, p, causal, scale, enable_gqa):
    width = v.shape[-1]
    q, k, v, scale = _eights(q, k, v, scale)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, causal, scale=scale)[:2]
    return out[..., :width], lse


def _efficient(q, k, v, mask, p, causal, scale, enable_gqa):
    """Its lse is padded to a multiple of 32 rows."""
    mask = _additive(mask, q.dtype)
    if mask is not None:
        mask = mask.expand(*q.shape[:-1], k.shape[-2])
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, p, causal, scale=scale)[:2]
    return out, lse[..., :q.shape[-2]]


def _cudnn(q, k, v, mask, p, causal, scale, enable_gqa):
    """Its lse has an axis of one at its end from PyTorch 2.9 on."""
    mask = _additive(mask, q.dtype)
    out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, p, causal, scale=scale)[:2]
    return out, lse.squeeze(-1) if lse.dim() == 4 else lse


# Each returns (out, lse), lse None where the operator has none; the core has refused a call that wants it then.
_OPERATORS = {"torch.sdpa": _sdpa, "torch.math": _math, "torch.flash_cpu": _flash_cpu, "torch.flash": _flash,
              "torch.efficient": _efficient, "torch.cudnn": _cudnn}


def known(row):
    """Whether this is one of the host's own operators."""
    return row in _OPERATORS


def _causal(r):
    """A window with a right side of 0 is causal too (M6). One query row at the bottom right sees every key; elsewhere the
    core has seen to it that the corners agree."""
    bottom_right = r.options.get("alignment") == _call.CORNERS["br"]
    capped = bool(r.options.get("causal")) or r.options.get("window_right") == 0
    return capped and not (bottom_right and r.views[0].sizes[-2] == 1)


class HostCall:
    """A decision for the host's operator without the tensors: good for every call that the core would decide alike."""

    __slots__ = ("report", "operator", "casts", "dtype", "empty", "arguments", "lse", "device", "age")

    def __init__(self, r, report, age):
        self.operator = _OPERATORS.get(report.row)
        if self.operator is None:
            raise BackendError(f"no operator is known for row {report.row}", report)
        _, _, _, _, cast_dtype, self.casts = report.decision
        self.dtype = OF_CODE[cast_dtype] if self.casts else None
        self.report, self.age, self.empty, self.device = report, age, r.empty, r.query.device.type
        self.arguments = (r.host["dropout_p"], _causal(r), r.host["scale"], r.host["enable_gqa"])
        self.lse = bool(r.options.get("want_lse"))

    def _cast(self, name, tensor):
        if tensor is None or not self.casts >> FIELD[name] & 1:
            return tensor
        return policy_cast(tensor, self.dtype, name == "bias")

    def run(self, query, key, value, mask, bias):
        """With the host's autocast suspended: what is cast has been cast (A13)."""
        if self.casts:
            query, key, value = (self._cast(n, t) for n, t in (("q", query), ("k", key), ("v", value)))
            bias = self._cast("bias", bias)
        if self.empty:
            key, value = key.narrow(-2, 0, 0), value.narrow(-2, 0, 0)           # as the core was told
        _rapt.ops_host(1)               # the host's own, whatever is installed
        try:
            if torch.is_autocast_enabled(self.device):
                with torch.autocast(self.device, enabled=False):
                    result = self.operator(query, key, value, mask if bias is None else bias, *self.arguments)
            else:
                result = self.operator(query, key, value, mask if bias is None else bias, *self.arguments)
        finally:
            _rapt.ops_host(-1)
        set_last(self.report.entered())
        return result if self.lse else result[0]


# ---- One mask for what the operator cannot take apart ----

_POSITION = ("causal", "alignment", "q_offset", "window_left", "window_right")


def _offset(r):
    """M2's off, None where it is not one number that is known here."""
    alignment = r.options.get("alignment", 0)
    if alignment == _call.OFFSET:
        return r.options["q_offset"]
    if alignment == _call.OFFSET_ARRAY:
        return None
    q, k = r.views[0].sizes[-2], r.views[1].sizes[-2]
    return k - q if alignment == _call.CORNERS["br"] else 0


def _visible(r, off, device):
    """M5 and M6 as a bool mask [Sq, Skv]."""
    sq, skv = r.views[0].sizes[-2], r.views[1].sizes[-2]
    distance = torch.arange(skv, device=device) - (torch.arange(sq, device=device)[:, None] + off)
    left, right = r.options.get("window_left", -1), r.options.get("window_right", -1)
    seen = torch.ones(sq, skv, dtype=torch.bool, device=device)
    if r.options.get("causal"):
        seen &= distance <= 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def joined(r, report, address, kind):
    """The same call with causal, window, mask and bias said as one mask, which is how the host's operator takes them;
    None where that is not possible, or not within the memory that the call may use (D17)."""
    positional = bool(r.options.get("causal")) or "window_left" in r.options
    off = _offset(r)
    lengths = any(name in r.tensors for name in ("q_len", "kv_len", "cu_q", "cu_k"))
    if r.empty or lengths or off is None or not (positional or (r.mask is not None and r.bias is not None)):
        return None
    shape = torch.broadcast_shapes(*(t.shape for t in (r.mask, r.bias) if t is not None),
                                   (r.views[0].sizes[-2], r.views[1].sizes[-2]))
    dtype = torch.bool if r.bias is None else r.bias.dtype
    limit = report.json["policy"]["memory_limit"]
    size = dtype.itemsize * shape.numel()
    if size > (MEMORY_LIMIT if limit is None else limit):
        return None
    parts = [name for name, there in (("causal", r.options.get("causal")), ("window", "window_left" in r.options),
                                      ("mask", r.mask is not None), ("bias", r.bias is not None)) if there]
    other = Request()
    for name in Request.__slots__:
        if hasattr(r, name):
            setattr(other, name, getattr(r, name))
    device = r.query.device if address else "meta"
    other.options = {name: value for name, value in r.options.items() if name not in _POSITION}
    other.mask, other.bias = _one(r, positional, off, device) if address else (
        (torch.empty(shape, dtype=dtype, device=device), None)[:: 1 if r.bias is None else -1])
    other.tensors, other.keep = dict(r.tensors), list(r.keep)
    describe_masks(other, address, r.kind if kind is None else kind)
    words = " and ".join(parts) if len(parts) > 1 else parts[0] + " said as"
    other.notes = (f"{words}{' joined into' if len(parts) > 1 else ''} one {dtype_name(dtype)} mask of "
                   f"{'x'.join(map(str, shape))} ({size} bytes) for the host's operator",)
    return other


def _one(r, positional, off, device):
    visible = _visible(r, off, device) if positional else None
    if r.mask is not None:
        visible = r.mask if visible is None else visible & r.mask
    if r.bias is None:
        return visible, None
    return None, r.bias.masked_fill(~visible, float("-inf"))
