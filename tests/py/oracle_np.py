# SPDX-License-Identifier: Apache-2.0
"""Attention in fp64 from the written formula (N1, M13), and the error that N13 allows. Shares nothing with rapt."""

import numpy as np

UNIT_OUT = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24, "fp64": 2.0**-53}
TINY = {"fp32": 2.0**-126, "fp64": 2.0**-1022}


def visible(shape, mask=None, off=None, causal=False, window=(-1, -1), q_len=None, kv_len=None):
    """M13 without the bias: bool [B,Hq,Sq,Skv]; off: P_i - i for each batch entry (M2)."""
    b, _, sq, skv = shape
    off = np.zeros(b, np.int64) if off is None else np.broadcast_to(np.asarray(off, np.int64), (b,))
    p = (off[:, None] + np.arange(sq))[:, None, :, None]
    j = np.arange(skv)[None, None, None, :]
    seen = np.ones(shape, bool)
    if causal:
        seen &= j <= p
    left, right = window
    if left >= 0:
        seen &= j >= p - left
    if right >= 0:
        seen &= j <= p + right
    if q_len is not None:
        seen &= (np.arange(sq)[None, :] < np.asarray(q_len)[:, None])[:, None, :, None]
    if kv_len is not None:
        seen &= (np.arange(skv)[None, :] < np.asarray(kv_len)[:, None])[:, None, None, :]
    if mask is not None:
        seen &= np.broadcast_to(mask, shape)
    return seen


def attention(q, k, v, *, dtype="fp32", out_dtype=None, bias=None, scale=None, strict=False, **visibility):
    """(o, lse, bound of o, bound of lse) for q, k, v [B,H,S,D] of a dtype's values."""
    out_dtype = out_dtype or dtype
    q, k, v = (np.asarray(a).astype(np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    d, shape = q.shape[-1], (*q.shape[:3], k.shape[2])
    sigma = 1.0 / np.sqrt(d) if scale is None else scale
    logits = sigma * (q @ k.swapaxes(-1, -2))
    size = abs(sigma) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2))
    added = np.zeros(shape) if bias is None else np.broadcast_to(np.asarray(bias).astype(np.float64), shape)
    seen = visible(shape, **visibility) & (added != -np.inf)
    logits = np.where(seen, logits + np.where(seen, added, 0.0), -np.inf)
    top = np.where(seen.any(-1, keepdims=True), logits.max(-1, keepdims=True, initial=-np.inf), 0.0)
    weights = np.where(seen, np.exp(logits - top), 0.0)
    total = weights.sum(-1, keepdims=True)
    some = total > 0
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=some)
    o = weights @ v
    lse = np.where(some, top + np.log(np.where(some, total, 1.0)), -np.inf)[..., 0]

    acc = "fp64" if dtype == "fp64" else "fp32"
    u = 2.0**-53 if acc == "fp64" else 2.0**-24
    gamma = lambda t: t * u / (1.0 - t * u)  # noqa: E731
    n = seen.sum(-1, keepdims=True)
    rho = 0.0 if strict or dtype in ("fp32", "fp64") else UNIT_OUT[dtype]
    tau = 2.0**-25 if "fp16" in (out_dtype, dtype if rho else None) else TINY[acc]
    error = gamma(d + 8) * np.where(seen, size, 0.0).max(-1, keepdims=True, initial=0.0)
    error = error + 8 * u * np.where(seen, np.abs(added), 0.0).max(-1, keepdims=True, initial=0.0)
    terms = 2 * n + 64
    spread = weights @ np.abs(v)
    largest = np.where(seen[..., None], np.abs(v)[:, :, None], 0.0).max(-2, initial=0.0)
    bound = spread * (np.expm1(2 * error) + 2 * gamma(terms) + 16 * u + rho)
    bound = bound + n * tau * largest + UNIT_OUT[out_dtype] * np.abs(o) + tau
    bound_lse = error[..., 0] + 2 * gamma(terms[..., 0]) + 8 * u * (1 + np.abs(np.where(np.isinf(lse), 0.0, lse)))
    factor = 2.0 if dtype == "fp64" else 1.0                   # the oracle itself is fp64
    return o, lse, factor * bound, factor * bound_lse


def check(got, want, bound, times=1.0):
    """Every element within the bound, infinities and zeros in the same places."""
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    exact = ~np.isfinite(want)
    assert np.array_equal(got[exact], want[exact])
    excess = np.abs(got[~exact] - want[~exact]) - times * bound[~exact]
    assert excess.size == 0 or excess.max() <= 0, f"over the bound by {excess.max()}"
