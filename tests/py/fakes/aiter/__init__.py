# SPDX-License-Identifier: Apache-2.0
"""AITER 0.1.9: the third number of a window counts sinks; a side of 0 is no window; a gradient wants return_lse."""

import math

import torch

import rapt_fakes as fakes


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1, 0), bias=None,
                    alibi_slopes=None, deterministic=True, return_lse=False, return_attn_probs=False,
                    how_v3_bf16_cvt=1, sink_ptr=None):
    fakes.record("aiter.flash_attn_func", q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale,
                 causal=causal, window_size=window_size, bias=bias, alibi_slopes=alibi_slopes,
                 deterministic=deterministic, return_lse=return_lse, sink_ptr=sink_ptr)
    a, b, c = (t.transpose(1, 2) for t in (q, k, v))
    fakes.half_on_device("aiter::mha_fwd", a, b, c)
    fakes.heads_divide(a, b)
    if torch.is_grad_enabled() and q.requires_grad and not return_lse:
        raise AssertionError("return_lse is needed for a backward")
    sq, skv = a.shape[2], b.shape[2]
    if bias is not None and tuple(bias.shape) != (sq, skv):
        raise RuntimeError("bias must be (sq, skv)")
    left, right, sink_size = window_size
    if sink_size:
        raise RuntimeError("no sink tokens were asked for")
    if left == 0 or (right == 0 and left < 0):
        left = right = -1                                       # a zero side is not seen
    right = 0 if causal and sq > 1 else right
    added = None if alibi_slopes is None else fakes.alibi(alibi_slopes, a.shape[0], a.shape[1], sq, skv, skv - sq)
    added = bias if added is None else added
    out, lse = fakes.attend(a, b, c, softmax_scale, fakes.span(sq, skv, skv - sq, left, right), added, 0.0, sink_ptr,
                            empty=math.inf)
    out = out.transpose(1, 2).contiguous()
    return fakes.done("aiter.flash_attn_func", (out, lse) if return_lse else out)
