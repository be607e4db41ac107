# SPDX-License-Identifier: Apache-2.0
"""torch_npu: atten_mask True = drop, scale 1.0 unless given, the sparse modes stand on a 2048 x 2048 mask."""

import rapt_fakes as fakes


def npu_fusion_attention(query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None,
                         scale=1.0, keep_prob=1.0, pre_tockens=2147483647, next_tockens=2147483647, inner_precise=0,
                         prefix=None, sparse_mode=0):
    fakes.record("npu_fusion_attention", query=query, key=key, value=value, head_num=head_num,
                 input_layout=input_layout, atten_mask=atten_mask, scale=scale, keep_prob=keep_prob,
                 pre_tockens=pre_tockens, next_tockens=next_tockens, sparse_mode=sparse_mode)
    if input_layout != "BNSD" or head_num != query.shape[1]:
        raise RuntimeError("layout and head_num do not fit the tensors")
    sq, skv, seen = query.shape[2], key.shape[2], None
    if sparse_mode in (2, 3, 4):
        if tuple(atten_mask.shape) != (2048, 2048):
            raise RuntimeError("sparse_mode 2 to 4 take the compressed mask of 2048 x 2048")
        off = 0 if sparse_mode in (2, 4) else skv - sq
        if sparse_mode == 4:
            seen = fakes.span(sq, skv, off, pre_tockens, next_tockens)
        else:
            seen = fakes.span(sq, skv, off, -1, 0)
    elif atten_mask is not None:
        seen = ~atten_mask
    out, _ = fakes.attend(query, key, value, scale, seen)
    return fakes.done("npu_fusion_attention", (out, None, None, None, 0, 0, 0))
