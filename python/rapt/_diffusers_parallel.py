# SPDX-License-Identifier: Apache-2.0
"""diffusers' context parallelism over rapt: its own templates move the pieces, rapt computes them.

A ring passes keys and values round and merges the parts by their log-sum-exp (N9); Ulysses exchanges sequence for
heads and makes one call. The templates are autograd functions, so a backward is given here, from (q, k, v, out, lse)."""

import torch
from diffusers.models import attention_dispatch
from torch.distributed import _functional_collectives as collectives

from . import _ops
from . import torch as binding
from ._errors import refuse

_TEMPLATE = "_templated_context_parallel_attention"


def _arrived(tensor):
    """A piece sent by another process is a promise of its data until somebody waits for it."""
    return tensor.wait() if isinstance(tensor, collectives.AsyncCollectiveTensor) else tensor


def _forward(ctx, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse=False,
             _save_ctx=True, _parallel_config=None):
    """One piece. dropout_p, is_causal and enable_gqa are off: attention() has refused them."""
    query, key, value = (_arrived(t) for t in (query, key, value))
    save = _save_ctx and any(ctx.needs_input_grad)
    result = binding.sdpa(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask, scale=scale,
                          return_lse=return_lse or save)
    out, lse = result if return_lse or save else (result, None)
    out, lse = out.transpose(1, 2), None if lse is None else lse.transpose(1, 2).contiguous()
    if save:
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.attn_mask, ctx.scale = attn_mask, scale
    return (out, lse) if return_lse else out


def _backward(ctx, grad_out, *_, query=None, key=None, value=None, out=None, lse=None, **__):
    """Gradients (B,S,H,D) in the accumulation dtype. A ring gives the piece, with out and lse of the whole."""
    given = (query, key, value, out, lse)
    query, key, value, out, lse = (saved if other is None else other for saved, other in zip(ctx.saved_tensors, given))
    query, key, value = (_arrived(t) for t in (query, key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, o, do = (t.transpose(1, 2).to(wide) for t in (query, key, value, out, grad_out))
        lse = lse.transpose(1, 2)[..., None].to(wide)
        scale = q.shape[-1] ** -0.5 if ctx.scale is None else ctx.scale
        logits = q @ k.mT * scale
        if ctx.attn_mask is not None:
            hidden = ctx.attn_mask.dtype == torch.bool
            logits = logits.masked_fill(~ctx.attn_mask, float("-inf")) if hidden else logits + ctx.attn_mask.to(wide)
        weights = torch.where(lse == float("-inf"), 0.0, torch.exp(logits - lse))
        scores = weights * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * scale
        return tuple(t.transpose(1, 2) for t in (scores @ k, scores.mT @ q, weights.mT @ do))


def _refuse(config, query, key, mask, dropout_p, is_causal, enable_gqa, return_lse, window, needs_grad):
    """What the templates do not support, or would compute wrongly without a word."""
    without = "not served under context parallelism; leave it out, or do not split this model"
    for name, value in (("dropout_p", dropout_p), ("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if value:
            raise refuse(name, repr(value), without)
    if window is not None:
        raise refuse("window_size", repr(window), without)
    if key.shape[2] != query.shape[2]:
        raise refuse("key", f"of {key.shape[2]} heads, query of {query.shape[2]}", without, "HEADS")
    if return_lse and needs_grad:
        raise refuse("return_lse", "True in a call that needs gradients", "no gradient goes through lse; call under "
                     "torch.no_grad()", "GRAD")
    if needs_grad and (config.ring_anything or config.ulysses_anything):
        raise refuse("_parallel_config", "ring_anything or ulysses_anything in a call that needs gradients",
                     "diffusers has no backward for it; call under torch.no_grad()", "GRAD")
    if mask is None:
        return
    if mask.requires_grad and torch.is_grad_enabled():
        raise refuse("attn_mask", "a tensor that requires gradients", "the templates of diffusers give none; detach it",
                     "GRAD_BIAS")
    if config.ring_degree > 1:
        raise refuse("attn_mask", "given with ring_degree > 1, where one mask would be used for every piece",
                     "use ulysses_degree instead", "MASK")
    if mask.shape[1] != 1 or mask.shape[2] != 1:
        shape = "x".join(str(size) for size in mask.shape)
        raise refuse("attn_mask", f"of shape {shape} with ulysses_degree > 1, which splits queries and heads",
                     "a mask of the keys alone is needed, (B,1,1,Skv)", "MASK")


def attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, return_lse, window, parallel_config):
    """The local part of (B,S,H,D) operands that are split over processes; mask broadcasts against (B,H,Sq,Skv)."""
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    config = parallel_config.context_parallel_config
    _refuse(config, query, key, mask, dropout_p, is_causal, enable_gqa, return_lse, window, needs_grad)
    template = getattr(attention_dispatch, _TEMPLATE, None)
    if template is None:
        raise refuse("_parallel_config", "set", f"this diffusers has no {_TEMPLATE}, which rapt builds on")
    device = query.device.type
    if torch.is_autocast_enabled(device):           # before the pieces are sent, each is cast once (A9)
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (_ops.saturated(t, dtype, False) for t in (query, key, value))
        mask = mask if mask is None or mask.dtype == torch.bool else _ops.saturated(mask, dtype, True)
    if not query.dtype == key.dtype == value.dtype:
        raise refuse("query, key and value", f"{query.dtype}, {key.dtype} and {value.dtype}", "one dtype is needed",
                     "DTYPE_MIX")
    if mask is not None:
        mask = mask.contiguous()                    # it is sent
    return template(query, key, value, mask, 0.0, False, scale, False, return_lse, forward_op=_forward,
                    backward_op=_backward, _parallel_config=parallel_config)
