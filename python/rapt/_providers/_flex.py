# SPDX-License-Identifier: Apache-2.0
"""FlexAttention: soft cap, windows, ALiBi, any corner, masks and biases by functions of the position.

On CUDA the compiled kernel runs. On a CPU the host's plain form does, which holds all scores in memory: the row counts
them (D17). The plain form is the operator's own, called without the compiler that its public entry starts at every
call. It multiplies hidden values by a weight of 0; NaN and Inf among them are kept out by a second pass."""

import math

import torch

from .._errors import BackendError

_compiled = None


def _module():
    from torch.nn.attention import flex_attention as module
    return module


def _score(call):
    """score_mod: soft cap, then bias and ALiBi (N1); None where there is nothing to do."""
    cap, bias, slopes, off = call.softcap, call.bias, call.slopes, call.off
    if not cap and bias is None and slopes is None:
        return None
    if bias is not None:
        bias = bias.expand(call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2])
    if slopes is not None:
        slopes = slopes.float().expand(call.q.shape[0], call.q.shape[1])

    def score_mod(score, b, h, i, j):
        if cap:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[b, h, i, j].to(score.dtype)
        if slopes is not None:
            score = score - slopes[b, h] * (i + off - j).abs()
        return score
    return score_mod


def _mask(call):
    """mask_mod: causal, window, mask, and what a bias of -inf hides; None where every pair is visible."""
    (left, right), mask, bias, off = call.bounds, call.mask, call.bias, call.off
    if left < 0 and right < 0 and mask is None and bias is None:
        return None
    shape = (call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2])
    mask = None if mask is None else mask.expand(shape)
    bias = None if bias is None else bias.expand(shape)

    def mask_mod(b, h, i, j):
        seen = j >= 0
        if left >= 0:
            seen = seen & (j >= i + off - left)
        if right >= 0:
            seen = seen & (j <= i + off + right)
        if mask is not None:
            seen = seen & mask[b, h, i, j]
        if bias is not None:
            seen = seen & (bias[b, h, i, j] != -math.inf)
        return seen
    return mask_mod


def _plain(call, v):
    """The operator without its compiler: (out, lse), lse natural."""
    module = _module()
    for name in ("flex_attention_hop", "_create_empty_block_mask"):
        if not hasattr(module, name):
            raise BackendError(f"rapt needs {name} of torch.nn.attention.flex_attention, which PyTorch "
                               f"{torch.__version__} does not have")
    blocks = module._create_empty_block_mask(call.q, call.k).as_tuple()
    mask_mod, score_mod = _mask(call), _score(call)
    if mask_mod is not None:
        blocks = (*blocks[:-1], mask_mod)
    options = {"PRESCALE_QK": False, "ROWS_GUARANTEED_SAFE": False, "BLOCKS_ARE_CONTIGUOUS": False, "WRITE_DQ": True,
               "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
    out, lse, _ = module.flex_attention_hop(call.q, call.k, v, score_mod or (lambda score, b, h, i, j: score), blocks,
                                            call.scale, options)
    return out, lse * math.log(2)                               # its lse is to the base 2


def on_cpu(call):
    bad = ~torch.isfinite(call.v)
    if not bool(bad.any()):
        return _plain(call, call.v)
    out, lse = _plain(call, call.v.masked_fill(bad, 0.0))
    reached, _ = _plain(call, bad.to(call.v.dtype))             # the weight with which each row sees such a value
    return out.masked_fill(reached != 0, math.nan), lse         # N10, M14


def _on_device(call):
    """fullgraph: where the compiler gives up it raises, in place of running the plain form with all its scores."""
    global _compiled
    module = _module()
    if _compiled is None:
        _compiled = torch.compile(module.flex_attention, fullgraph=True)
    mask_mod = _mask(call)
    blocks = None if mask_mod is None else module.create_block_mask(
        mask_mod, call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2], device=call.q.device)
    more = {"return_aux": module.AuxRequest(lse=True)} if call.lse else {}
    result = _compiled(call.q, call.k, call.v, score_mod=_score(call), block_mask=blocks, scale=call.scale,
                       enable_gqa=call.q.shape[1] != call.k.shape[1], **more)
    return (result[0], result[1].lse) if call.lse else (result, None)


def flex(call, package):
    return on_cpu(call) if call.q.device.type == "cpu" else _on_device(call)


OPERATORS = {"flex": flex}
