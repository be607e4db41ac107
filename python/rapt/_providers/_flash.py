# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2, -3 and -4, from their own packages and from the hub.

Entry layout (B,S,H,D), packed (total,H,D). The corner is bottom right, which the rows have seen to. Dropout 0 reaches the
kernel as exactly 0: any other value chooses another kernel."""


def _bshd(call):
    return tuple(t.transpose(1, 2) for t in (call.q, call.k, call.v))


def _back(out):
    return out.transpose(1, 2)


def _pair(result, want_lse):
    """(out, lse) of an entry that returns a tensor or, as betas do and when lse is asked for, a tuple."""
    parts = result if isinstance(result, tuple) else (result,)
    return parts[0], (parts[1] if want_lse and len(parts) > 1 else None)


def _moved(value):
    """Back to heads first, where it is a tensor of four axes; anything else is looked at by the caller."""
    return _back(value) if getattr(value, "ndim", 0) == 4 else value


def _common(call):
    return dict(softmax_scale=call.scale, causal=call.causal, window_size=call.window, softcap=call.softcap,
                deterministic=call.deterministic, return_attn_probs=call.lse)


def _slopes(call):
    return None if call.slopes is None else call.slopes.float()


def _lengths(call):
    return dict(cu_seqlens_q=call.cu_q, cu_seqlens_k=call.cu_k, max_seqlen_q=call.max_q, max_seqlen_k=call.max_k)


def fa2(call, package):
    out, lse = _pair(package.flash_attn_func(*_bshd(call), dropout_p=call.dropout, alibi_slopes=_slopes(call),
                                             **_common(call)), call.lse)
    return _moved(out), lse


def fa2_varlen(call, package):
    result = package.flash_attn_varlen_func(call.q, call.k, call.v, **_lengths(call), dropout_p=call.dropout,
                                            alibi_slopes=_slopes(call), **_common(call))
    return _pair(result, call.lse)


def fa3(call, package):
    """No dropout, ALiBi or mask: the row has refused them. attention_chunk stays at its default, 0."""
    out, lse = _pair(package.flash_attn_func(*_bshd(call), **_common(call)), call.lse)
    return _moved(out), lse


def fa3_varlen(call, package):
    return _pair(package.flash_attn_varlen_func(call.q, call.k, call.v, **_lengths(call), **_common(call)), call.lse)


def _open(side):
    return None if side < 0 else side


def fa4(call, package):
    """An open side is None there. A window of (-1, 0) would be dropped, and one beside causal loses the diagonal: causal
    goes as causal alone, or as the right bound 0 of a window."""
    left, right = call.bounds
    causal = left < 0 and right == 0
    window = (None, None) if causal else (_open(left), _open(right))
    more = {"return_lse": True} if call.lse else {}
    if call.sinks is not None:
        more["learnable_sink"] = call.sinks
    result = package.flash_attn_func(*_bshd(call), softmax_scale=call.scale, causal=causal, window_size=window,
                                     softcap=call.softcap, deterministic=call.deterministic, **more)
    out, lse = _pair(result, call.lse)
    return _moved(out), lse


def hub_cpu(call, package):
    """Varlen forward alone; ALiBi, softcap, dropout are ignored there and lse is undefined: the row refuses them."""
    result = package.flash_attn_varlen_func(call.q, call.k, call.v, **_lengths(call), softmax_scale=call.scale,
                                            causal=call.causal)
    return _pair(result, False)


OPERATORS = {
    "fa2": fa2, "fa2.rocm_ck": fa2, "fa2.rocm_triton": fa2, "hub.fa2.cuda": fa2, "hub.fa2.xpu": fa2,
    "fa2.varlen": fa2_varlen, "hub.fa2.varlen": fa2_varlen, "hub.fa2.cpu": hub_cpu,
    "fa3": fa3, "hub.fa3": fa3, "fa3.varlen": fa3_varlen, "hub.fa3.varlen": fa3_varlen,
    "fa4": fa4, "hub.fa4": fa4,
}
