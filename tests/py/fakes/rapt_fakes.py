# SPDX-License-Identifier: Apache-2.0
"""What the fake packages of this folder share: they write down what they receive, check it as the kernel does, with its
words, and compute the answer by plain loops over the package's own conventions (docs/backends.md).

`on_device`: CPU tensors count as lying on the package's device. `spoil`: a function (name, result) -> result that makes
a package misbehave; it may raise."""

import math

import torch

calls = []                              # (name, keywords) of every call, oldest first
on_device = False
spoil = None


def reset():
    global on_device, spoil
    calls.clear()
    on_device, spoil = False, None


def record(name, **what):
    calls.append((name, what))


def done(name, result):
    return result if spoil is None else spoil(name, result)


def half_on_device(op, *tensors):
    """The texts of the real kernels."""
    for t in tensors:
        if t.device.type == "cpu" and not on_device:
            raise NotImplementedError(f"Could not run '{op}' with arguments from the 'CPU' backend.")
        if t.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if len({t.dtype for t in tensors}) != 1:
        raise RuntimeError("query, key, and value must have the same dtype")


def heads_divide(q, k):
    if q.shape[1] % k.shape[1]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


def span(sq, skv, off, left=-1, right=-1):
    """bool [sq, skv]: off + i - left <= j <= off + i + right, -1 = open."""
    seen = torch.ones(sq, skv, dtype=torch.bool)
    for i in range(sq):
        for j in range(skv):
            d = j - (i + off)
            seen[i, j] = (left < 0 or d >= -left) and (right < 0 or d <= right)
    return seen


def attend(q, k, v, scale, seen=None, bias=None, softcap=0.0, sinks=None, empty=-math.inf):
    """(out in q's dtype, lse fp32 natural) of [B,H,S,D] tensors in fp32, autograd kept. empty: lse of a row without keys."""
    group = q.shape[1] // k.shape[1]
    kk, vv = (t.float().repeat_interleave(group, 1) for t in (k, v))
    x = q.float() @ kk.transpose(-1, -2) * scale
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    if bias is not None:
        x = x + bias.float()
    if seen is not None:
        x = x.masked_fill(~seen, -math.inf)
    joined = x if sinks is None else torch.cat([x, sinks.float()[:, None, None].expand(*x.shape[:2], x.shape[2], 1)], -1)
    lse = joined.logsumexp(-1)
    dead = (x == -math.inf).all(-1)
    weights = torch.exp(x - torch.where(lse.isinf(), 0.0, lse)[..., None])
    out = (weights @ vv).masked_fill(dead[..., None], 0.0)
    if sinks is None:
        lse = lse.masked_fill(dead, empty)
    return out.to(q.dtype), lse.float()


def alibi(slopes, batch, heads, sq, skv, off):
    distance = (torch.arange(sq)[:, None] + off - torch.arange(skv)[None]).abs()
    return -slopes.float().expand(batch, heads)[:, :, None, None] * distance


def packed(q, k, v, cu_q, cu_k, dense):
    """(out [T,H,D], lse [H,T]) a sequence at a time; tokens of no sequence stay as torch.empty might leave them."""
    if cu_q.dtype != torch.int32 or cu_k.dtype != torch.int32:
        raise RuntimeError("cu_seqlens_q must have dtype int32")
    out = torch.full((*q.shape[:2], v.shape[-1]), 7.0, dtype=q.dtype)
    lse = torch.full((q.shape[1], q.shape[0]), 7.0)
    ends_q, ends_k = cu_q.tolist(), cu_k.tolist()
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        one = (t[None].transpose(1, 2) for t in (q[a:b], k[c:d], v[c:d]))
        o, lse_one = dense(*one)
        out[a:b], lse[:, a:b] = o[0].transpose(0, 1), lse_one[0]
    return out, lse
