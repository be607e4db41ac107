# SPDX-License-Identifier: Apache-2.0
"""Kernels of one kind of device: Ascend, TPU, and the host's own packed operator on CUDA."""

import torch

_NO_BOUND = 2147483647


def _compressed(device):
    """The 2048 x 2048 mask, True = drop, that the sparse modes 2 to 4 stand for."""
    return torch.triu(torch.ones(2048, 2048, dtype=torch.bool, device=device), diagonal=1)


def npu(call, package):
    """atten_mask is True where nothing may be attended; scale is 1.0 there unless given; seven values come back."""
    left, right = call.bounds
    more = {}
    if call.mask is not None:
        more["atten_mask"] = ~call.mask
    elif left < 0 and right == 0:
        more.update(atten_mask=_compressed(call.q.device), sparse_mode=2)
    elif (left, right) != (-1, -1):
        more.update(atten_mask=_compressed(call.q.device), sparse_mode=4,
                    pre_tockens=_NO_BOUND if left < 0 else left, next_tockens=_NO_BOUND if right < 0 else right)
    result = package.npu_fusion_attention(call.q, call.k, call.v, call.q.shape[1], input_layout="BNSD",
                                          scale=call.scale, keep_prob=1.0 - call.dropout, **more)
    return result[0], None


def xla(call, package):
    """sm_scale is 1.0 there unless given; ab is added and has the full shape."""
    return package.flash_attention(call.q, call.k, call.v, causal=call.causal, sm_scale=call.scale, ab=call.bias), None


def varlen(call, package):
    """torch.nn.attention.varlen: causal exists as the window (-1, 0) alone."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn
    left, right = call.bounds
    more = {"return_aux": AuxRequest(lse=True)} if call.lse else {}
    result = varlen_attn(call.q, call.k, call.v, call.cu_q, call.cu_k, call.max_q, call.max_k, scale=call.scale,
                         window_size=(left, right), **more)
    return result if call.lse else (result, None)


OPERATORS = {"npu": npu, "xla": xla, "torch.varlen": varlen}
