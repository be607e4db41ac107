# SPDX-License-Identifier: Apache-2.0
"""AITER on ROCm, from its package and from the hub: (B,S,H,D), the third number of a window counts sink tokens."""

from ._flash import _bshd, _moved, _pair, _slopes, fa2


def ck(call, package):
    """A window side of 0 is not seen there, so (-1, 0) goes as causal; the row refuses others. With a gradient the entry
    asserts that lse is asked for."""
    left, right = call.bounds
    causal = right == 0
    window = (-1, -1, 0) if left < 0 and causal else (left, 0 if causal else right, 0)
    more = {} if call.sinks is None else {"sink_ptr": call.sinks.float()}
    if call.bias is not None:
        more["bias"] = call.bias.reshape(call.bias.shape[-2:])
    lse = call.lse or call.grad
    result = package.flash_attn_func(*_bshd(call), dropout_p=call.dropout, softmax_scale=call.scale, causal=causal,
                                     window_size=window, alibi_slopes=_slopes(call), deterministic=True,
                                     return_lse=lse, **more)
    out, lse = _pair(result, call.lse)
    return _moved(out), lse


def hub_ck(call, package):
    """Unknown keywords are ignored there: only those of its page are sent."""
    more = {} if call.sinks is None else {"s_aux": call.sinks.float()}
    result = package.flash_attn_func(*_bshd(call), softmax_scale=call.scale, causal=call.causal,
                                     return_attn_probs=call.lse, **more)
    out, lse = _pair(result, call.lse)
    return _moved(out), lse


OPERATORS = {"aiter.ck": ck, "hub.aiter_ck": hub_ck, "hub.aiter_triton": fa2}
