# SPDX-License-Identifier: Apache-2.0
import torch

import rapt_fakes as fakes

from . import attn_bias


class _Operator:
    def __init__(self, name):
        self.FwOp, self.BwOp = type("FwOp", (), {"NAME": name + "F"}), type("BwOp", (), {"NAME": name + "B"})


cutlass, flash, flash3, triton_splitk, cutlass_blackwell, ck = (
    _Operator(name) for name in ("cutlass", "fa2", "fa3", "triton_splitK", "cutlass-blackwell", "ck"))


def _attend(name, q, k, v, bias, p, scale, op):
    fakes.record(name, query=q, key=k, value=v, attn_bias=bias, p=p, scale=scale, op=op)
    for t in (q, k, v):
        if t.device.type == "cpu" and not fakes.on_device:
            raise NotImplementedError("No operator found for `memory_efficient_attention_forward`: device=cpu")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError("Query/Key/Value should either all have the same dtype")
    if q.dim() == 5 and torch.is_grad_enabled() and q.requires_grad:
        raise NotImplementedError("no operator found for a backward of 5 dimensions")
    if isinstance(bias, torch.Tensor):
        want = (q.shape[0], *q.shape[2:-1], q.shape[1], k.shape[1])
        if bias.dtype == torch.bool or bias.dtype != q.dtype or tuple(bias.shape) != want:
            raise ValueError(f"invalid attn_bias {bias.dtype} {tuple(bias.shape)}, expected {want}")
    groups = q.dim() == 5
    heads = (t.flatten(2, 3) if groups else t for t in (q, k, v))
    a, b, c = (t.transpose(1, 2) for t in heads)
    tensor = bias if isinstance(bias, torch.Tensor) else getattr(bias, "bias", None)
    if tensor is not None and groups:
        tensor = tensor.flatten(1, 2)
    seen = bias.seen(a.shape[2], b.shape[2]) if isinstance(bias, attn_bias.AttentionBias) else None
    out, lse = fakes.attend(a, b, c, q.shape[-1] ** -0.5 if scale is None else scale, seen, tensor, empty=0.0)
    out = out.transpose(1, 2)
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=9.0)
    if groups:
        out, lse = (t.unflatten(axis, q.shape[2:4]) for t, axis in ((out, 2), (lse, 1)))
    return out, lse


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
    name = "memory_efficient_attention"
    return fakes.done(name, _attend(name, query, key, value, attn_bias, p, scale, op)[0])


def memory_efficient_attention_forward_requires_grad(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None,
                                                     output_dtype=None):
    name = "memory_efficient_attention_forward_requires_grad"
    return fakes.done(name, _attend(name, query, key, value, attn_bias, p, scale, op))
