# SPDX-License-Identifier: Apache-2.0
"""One call of diffusers' attention dispatcher as rapt.torch.sdpa takes it (H5)."""

import inspect

import torch

from . import _call, _ops, _torch_request
from . import torch as binding
from ._errors import argument_error, refuse, unknown_keyword

_OPERAND = "a tensor (B,S,H,D) is needed"


def _check_operand(tensor, name):
    if not isinstance(tensor, torch.Tensor):
        raise refuse(name, f"a {type(tensor).__name__}", _OPERAND, "RANK")
    if tensor.dim() != 4:
        raise refuse(name, f"of {tensor.dim()} axes", _OPERAND, "RANK")


def _shape(tensor):
    return "x".join(str(size) for size in tensor.shape)


def broadcastable(mask, batch, sq, skv):
    """The mask as a view that broadcasts against (B,H,Sq,Skv), so that every reading of it is the same one (H5)."""
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor):
        raise refuse("attn_mask", f"a {type(mask).__name__}",
                     "a bool or floating tensor is needed; a block mask belongs to the flex backend", "MASK")
    if mask.dim() == 1:
        return mask[None, None, None, :]
    if mask.dim() == 2:
        return _rank_2(mask, batch, sq, skv)
    if mask.dim() == 3:
        if mask.shape[0] != 1:
            raise refuse("attn_mask", f"of shape {_shape(mask)}, whose first axis may be the batch or the heads",
                         "pass it with 4 axes: mask[:, None] where it is the batch, mask[None] where it is the heads",
                         "RANK")
        return mask[None]
    if mask.dim() != 4:
        raise refuse("attn_mask", f"of {mask.dim()} axes", "1 to 4 are needed, at most (B,H,Sq,Skv)", "RANK")
    return mask


def _rank_2(mask, batch, sq, skv):
    """(B,Skv) is padding of the keys, (Sq,Skv) one mask for all; where both fit, nobody can know."""
    rows, keys = mask.shape
    if rows == 1:
        return mask[None, None]
    if rows == batch == sq:
        raise refuse("attn_mask", f"of shape {_shape(mask)}, and batch and query length are both {rows}, so that its first "
                     "axis may be either", "pass it with 4 axes: mask[:, None, None] where it is the batch, "
                     "mask[None, None] where it is the queries", "RANK")
    if rows == batch and keys == skv:
        return mask[:, None, None, :]
    if rows == sq:
        return mask[None, None]
    raise refuse("attn_mask", f"of shape {_shape(mask)}", f"(B,Skv) = {batch}x{skv} or (Sq,Skv) = {sq}x{skv} is needed",
                 "SHAPE")


def _window(window_size):
    """(left, right), None where both sides are open."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise refuse("window_size", repr(window_size), "two integers are needed, left and right, -1 for an open side",
                     "WINDOW") from None
    left, right = (-1 if side is None else side for side in (left, right))
    return None if left == right == -1 else (left, right)


def _on_meta(query, key, value, mask, dropout_p, is_causal, **keywords):
    """Only shapes are asked for (A12): the same faults, and a result of the same sizes and strides."""
    if not torch.compiler.is_compiling():
        report = binding.explain(query, key, value, mask, dropout_p, is_causal, **keywords)
        if report.error is not None:
            kind = None if mask is None else "bias" if mask.is_floating_point() else "mask"
            raise argument_error(report.error, _torch_request.SPELLINGS[kind], report)
    op = _ops.sdpa_lse_op if keywords.get("return_lse") else _ops.sdpa_op
    with torch.no_grad():
        return op(query, key, value)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
              return_lse=False, window_size=None, _parallel_config=None, **unknown):
    """The backend function: query (B,Sq,H,D), key and value (B,Skv,Hkv,D) with any strides, out (B,Sq,H,Dv); with
    return_lse also the log-sum-exp, fp32 (B,Sq,H). Corner top-left; heads of key and value may be fewer than query's.

    Raises rapt.ArgumentError for what is wrong or not known by name, rapt.RefusedError where nothing permitted runs."""
    if unknown:
        raise unknown_keyword(next(iter(unknown)), KEYWORDS)
    for tensor, name in ((query, "query"), (key, "key"), (value, "value")):
        _check_operand(tensor, name)
    is_causal = is_causal is not None and _call.flag(is_causal, "is_causal")
    enable_gqa, return_lse = _call.flag(enable_gqa, "enable_gqa"), _call.flag(return_lse, "return_lse")
    window = None if window_size is None else _window(window_size)
    mask = broadcastable(attn_mask, query.shape[0], query.shape[1], key.shape[1])
    parallel = getattr(_parallel_config, "context_parallel_config", None)
    if parallel is not None:
        from . import _diffusers_parallel
        return _diffusers_parallel.attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, return_lse,
                                             window, _parallel_config)
    keywords = {"scale": scale, "enable_gqa": enable_gqa or key.shape[2] != query.shape[2]}
    if window is not None:
        keywords.update(window=window, align="tl")
    if return_lse:
        keywords["return_lse"] = True
    run = _on_meta if query.is_meta else binding.sdpa
    result = run(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, float(dropout_p), is_causal,
                 **keywords)
    if not return_lse:
        return result.transpose(1, 2)
    return result[0].transpose(1, 2), result[1].transpose(1, 2).contiguous()       # H2: dense in the host's order


KEYWORDS = tuple(inspect.signature(attention).parameters)[:-1]
