# SPDX-License-Identifier: Apache-2.0
"""sageattn3 1.0.0: changes k in place, takes a mask and a scale without using them."""

import torch

import rapt_fakes as fakes


def sageattn3_blackwell(q, k, v, attn_mask=None, is_causal=False, per_block_mean=True, **kwargs):
    fakes.record("sageattn3_blackwell", q=q, k=k, v=v, attn_mask=attn_mask, is_causal=is_causal, swallowed=dict(kwargs))
    with torch.no_grad():
        seen = fakes.span(q.shape[2], k.shape[2], 0, -1, 0 if is_causal else -1)
        out, _ = fakes.attend(q, k, v, q.shape[-1] ** -0.5, seen)
        k -= k.mean(-2, keepdim=True)
    return fakes.done("sageattn3_blackwell", out)
