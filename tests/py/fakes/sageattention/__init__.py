# SPDX-License-Identifier: Apache-2.0
"""SageAttention 2.1.1: swallows keywords that it does not know, hands back detached results, adds masks in base 2."""

import math

import torch

import rapt_fakes as fakes


def _attend(name, q, k, v, layout, is_causal, sm_scale, return_lse, attn_mask=None, swallowed=()):
    fakes.record(name, q=q, k=k, v=v, tensor_layout=layout, is_causal=is_causal, sm_scale=sm_scale,
                 return_lse=return_lse, attn_mask=attn_mask, swallowed=dict(swallowed))
    for t in (q, k, v):
        if t.device.type == "cpu" and not fakes.on_device:
            raise AssertionError("Input tensors must be on cuda.")
        if t.dtype not in (torch.float16, torch.bfloat16):
            raise AssertionError("Input tensors must be in dtype of torch.float16 or torch.bfloat16")
        if t.stride(-1) != 1:
            raise AssertionError("Last dim of qkv must be contiguous.")
    if q.shape[-1] > 128:
        raise ValueError(f"Unsupported head_dim: {q.shape[-1]}")
    if layout == "NHD":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    seen = fakes.span(q.shape[2], k.shape[2], 0, -1, 0 if is_causal else -1)
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            seen = seen & attn_mask
        else:
            bias = attn_mask.float() * math.log(2)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    with torch.no_grad():
        out, lse = fakes.attend(q, k, v, scale, seen, bias)
        if attn_mask is not None:
            out = torch.where(seen.any(-1)[..., None], out, torch.full_like(out, 3.0))     # undefined
    if layout == "NHD":
        out = out.transpose(1, 2)
    return fakes.done(name, (out, lse) if return_lse else out)


def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
    return _attend("sageattn", q, k, v, tensor_layout, is_causal, sm_scale, return_lse, None, kwargs)


def _member(name):
    def member(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
        return _attend(name, q, k, v, tensor_layout, is_causal, sm_scale, return_lse, None, kwargs)
    return member


sageattn_qk_int8_pv_fp16_cuda = _member("sageattn_qk_int8_pv_fp16_cuda")
sageattn_qk_int8_pv_fp8_cuda = _member("sageattn_qk_int8_pv_fp8_cuda")
sageattn_qk_int8_pv_fp8_cuda_sm90 = _member("sageattn_qk_int8_pv_fp8_cuda_sm90")


def sageattn_qk_int8_pv_fp16_triton(q, k, v, tensor_layout="HND", quantization_backend="triton", is_causal=False,
                                    attn_mask=None, sm_scale=None, smooth_k=True, return_lse=False, **kwargs):
    return _attend("sageattn_qk_int8_pv_fp16_triton", q, k, v, tensor_layout, is_causal, sm_scale, return_lse,
                   attn_mask, kwargs)


def sageattn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=False, sm_scale=None,
                    smooth_k=True, **kwargs):
    fakes.record("sageattn_varlen", q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                 max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, is_causal=is_causal, sm_scale=sm_scale,
                 swallowed=dict(kwargs))
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    with torch.no_grad():
        out, _ = fakes.packed(q, k, v, cu_seqlens_q, cu_seqlens_k, lambda a, b, c: fakes.attend(
            a, b, c, scale, fakes.span(a.shape[2], b.shape[2], 0, -1, 0 if is_causal else -1)))
    return fakes.done("sageattn_varlen", out)
