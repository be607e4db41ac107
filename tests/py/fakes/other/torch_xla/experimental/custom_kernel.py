# SPDX-License-Identifier: Apache-2.0
"""torch_xla's flash_attention: top-left, sm_scale 1.0 unless given, ab added and of full shape."""

import rapt_fakes as fakes


def flash_attention(q, k, v, causal=False, q_segment_ids=None, kv_segment_ids=None, sm_scale=1.0, *, ab=None,
                    partition_spec=None, mesh=None):
    fakes.record("xla.flash_attention", q=q, k=k, v=v, causal=causal, sm_scale=sm_scale, ab=ab)
    if q.shape[1] != k.shape[1] or q.shape[-1] != v.shape[-1]:
        raise AssertionError("shapes of q, k and v must agree")
    if ab is not None and tuple(ab.shape) != (*q.shape[:3], k.shape[2]):
        raise AssertionError("ab must be (B, H, Sq, Skv)")
    seen = fakes.span(q.shape[2], k.shape[2], 0, -1, 0 if causal else -1)
    return fakes.done("xla.flash_attention", fakes.attend(q, k, v, sm_scale, seen, ab)[0])
