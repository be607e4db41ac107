# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2, 2.8.3: (B,S,H,D), bottom-right corner, windows with both ends, lse natural (B,H,S), +inf where empty."""

import math

import rapt_fakes as fakes

__version__ = "2.8.3"


def _dense(q, k, v, p, scale, causal, window, softcap, slopes, attn_probs, name):
    fakes.half_on_device("flash_attn::_flash_attn_forward", q, k, v)
    fakes.heads_divide(q, k)
    if q.shape[-1] > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    if softcap and p:
        raise RuntimeError("Softcapping does not support dropout for now")
    sq, skv = q.shape[2], k.shape[2]
    left, right = window
    if causal and sq > 1:
        right = 0
    bias = None if slopes is None else fakes.alibi(slopes, q.shape[0], q.shape[1], sq, skv, skv - sq)
    seen = fakes.span(sq, skv, skv - sq, left, right)
    return fakes.attend(q, k, v, scale, seen, bias, softcap, empty=math.inf)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    fakes.record("flash_attn_func", q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                 window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
                 return_attn_probs=return_attn_probs)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = _dense(*(t.transpose(1, 2) for t in (q, k, v)), dropout_p, scale, causal, window_size, softcap,
                      alibi_slopes, return_attn_probs, "flash_attn_func")
    out = out.transpose(1, 2).contiguous()
    return fakes.done("flash_attn_func", (out, lse, None) if return_attn_probs else out)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    fakes.record("flash_attn_varlen_func", q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                 max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, dropout_p=dropout_p, causal=causal,
                 softmax_scale=softmax_scale, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes)
    result = fakes.packed(q, k, v, cu_seqlens_q, cu_seqlens_k, lambda a, b, c: _dense(
        a, b, c, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, True, ""))
    return fakes.done("flash_attn_varlen_func", (*result, None) if return_attn_probs else result[0])
