# SPDX-License-Identifier: Apache-2.0
"""xFormers, whose operators live in MSLK: (B,M,H,K), groups of heads as a fifth axis, masks as typed objects (H9)."""


def _groups(call):
    """q, k, v as [B,M,H,K], or [B,M,G,H,K] where several query heads share a kv head; no data moves."""
    q, k, v = (t.transpose(1, 2) for t in (call.q, call.k, call.v))
    heads, kv = q.shape[2], k.shape[2]
    if heads == kv:
        return q, k, v
    group = heads // kv
    q = q.unflatten(2, (kv, group))
    return q, *(t[:, :, :, None].expand(-1, -1, -1, group, -1) for t in (k, v))



def _typed(call, masks, grouped):
    """The mask object of causal, window and bias. A causal local mask counts its keys, the own one included; a two-sided
    one has both bounds as they are here."""
    left, right = call.bounds
    bias = call.bias
    if bias is not None and grouped:
        bias = bias.unflatten(1, (call.k.shape[1], -1))
    if left < 0 and right < 0:
        return bias
    bottom_right = call.off == call.k.shape[2] - call.q.shape[2]
    if left < 0 and right == 0:
        if bias is not None:
            return masks.LowerTriangularMaskWithTensorBias(bias)
        top_left = call.off == 0
        return masks.LowerTriangularMask() if top_left else masks.LowerTriangularFromBottomRightMask()
    if not bottom_right:
        raise ValueError("a local mask counts from the bottom right")
    if right == 0:
        return masks.LowerTriangularFromBottomRightLocalAttentionMask(left + 1)
    keys = call.k.shape[2]
    return masks.LocalAttentionFromBottomRightMask(keys if left < 0 else left, keys if right < 0 else right)


def _masks(package):
    fmha = package.fmha
    return fmha.attn_bias


def _op(package, name, grad):
    if name is None:
        return None
    module = getattr(package.fmha, name)
    return (module.FwOp, module.BwOp) if grad else (module.FwOp, None)


def _member(name):
    def run(call, package):
        q, k, v = _groups(call)
        grouped = q.dim() == 5
        typed = _typed(call, _masks(package), grouped)
        common = dict(attn_bias=typed, p=call.dropout, scale=call.scale, op=_op(package, name, call.grad))
        lse = None
        if call.lse:
            out, lse = package.fmha.memory_efficient_attention_forward_requires_grad(
                q, k, v, **{**common, "op": common["op"] and common["op"][0]})
            lse = _lse(call, lse)
        else:
            out = package.memory_efficient_attention(q, k, v, **common)
        return _heads_first(call, out), lse
    return run


def _lse(call, lse):
    """(B,H,M) or (B,G,H,M), its last axis perhaps padded."""
    if getattr(lse, "ndim", 0) == 4:
        lse = lse.flatten(1, 2)
    return lse[..., :call.q.shape[2]] if getattr(lse, "ndim", 0) == 3 else lse


def _heads_first(call, out):
    if getattr(out, "ndim", 0) == 5:
        out = out.flatten(2, 3)
    return out.transpose(1, 2) if getattr(out, "ndim", 0) == 4 else out


OPERATORS = {
    "mslk.auto": _member(None), "mslk.fa3": _member("flash3"), "mslk.fa2": _member("flash"),
    "mslk.cutlass": _member("cutlass"), "mslk.splitk": _member("triton_splitk"),
    "mslk.blackwell": _member("cutlass_blackwell"), "mslk.ck": _member("ck"),
}
