# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4: None = open side; a causal window of two sides and (-1, 0) lose what docs/backends.md says they lose."""

import math

import rapt_fakes as fakes


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None,
                    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, return_lse=False):
    fakes.record("fa4.flash_attn_func", q=q, k=k, v=v, softmax_scale=softmax_scale, causal=causal,
                 window_size=window_size, learnable_sink=learnable_sink, softcap=softcap, return_lse=return_lse)
    a, b, c = (t.transpose(1, 2) for t in (q, k, v))
    fakes.half_on_device("flash_attn.cute", a, b, c)
    fakes.heads_divide(a, b)
    left, right = window_size
    if left is not None and right is not None and left + right < 0:
        left = right = None                                     # silently no window at all
    if causal:
        right = 0
    seen = fakes.span(a.shape[2], b.shape[2], b.shape[2] - a.shape[2], -1 if left is None else left,
                      -1 if right is None else right)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out, lse = fakes.attend(a, b, c, scale, seen, None, softcap or 0.0, learnable_sink, empty=-math.inf)
    return fakes.done("fa4.flash_attn_func", (out.transpose(1, 2).contiguous(), lse if return_lse else None))
