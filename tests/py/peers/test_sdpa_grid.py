# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own grid of scaled_dot_product_attention against its math in fp64, over both of our entries: the host's
function with rapt installed, and rapt.torch.sdpa. Counters say that what ran was decided by rapt (R1, D28)."""

import itertools

import pytest
import torch
from peers_common import DTYPES, HALVES, counted, own, rand
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rapt
import rapt.torch

# Absolute and relative tolerance of the peer's own tests.
TOLERANCE = {torch.float64: (1e-5, 5e-6), torch.float32: (1e-5, 5e-6), torch.bfloat16: (5e-2, 5e-2),
             torch.float16: (1e-2, 1e-2)}

# (B, Sq, Skv): the two lengths of the peer at its smaller batch, smaller partners at the larger.
SHAPES = [(2, 267, 514), (2, 1030, 179), (2, 267, 33), (12, 33, 267), (12, 17, 65)]
MASKS = [None, "2", "4", "keys", "queries", "heads", "expanded"]


def mask_of(kind, b, h, sq, skv, boolean):
    """A mask that leaves every row something, or one in thirteen nothing where it is bool (M14)."""
    if kind is None:
        return None
    shape = {"2": (sq, skv), "4": (b, h, sq, skv), "keys": (b, 1, 1, skv), "queries": (b, 1, sq, 1),
             "heads": (1, h, 1, skv), "expanded": (1, 1, sq, skv)}[kind]
    if boolean:
        mask = torch.rand(shape) > 0.2
        mask[..., :1] |= torch.arange(mask.shape[-2])[:, None] % 13 > 0
        return mask.expand(b, h, sq, skv) if kind == "expanded" else mask
    mask = rand(*shape)
    return mask.expand(b, h, sq, skv) if kind == "expanded" else mask


def run(function, operands, mask, grad, **keywords):
    """[out] or [out, dq, dk, dv]."""
    if grad is None:
        return [function(*operands, attn_mask=mask, **keywords)]
    operands = [t.detach().clone().requires_grad_() for t in operands]
    out = function(*operands, attn_mask=mask, **keywords)
    out.backward(grad.to(out.dtype))
    return [out.detach(), *(t.grad for t in operands)]


def reference(operands, mask, grad, is_causal=False, **keywords):
    """The host's math in fp64. It takes causal or a mask: the two are joined for it (M11)."""
    wide = mask.double() if mask is not None and mask.is_floating_point() else mask
    if is_causal and mask is not None:
        seen = torch.ones(operands[0].shape[-2], operands[1].shape[-2], dtype=torch.bool).tril()
        wide = mask & seen if mask.dtype is torch.bool else wide.masked_fill(~seen, -torch.inf)
        is_causal = False
    with sdpa_kernel(SDPBackend.MATH):
        keywords["is_causal"] = is_causal
        return run(F.scaled_dot_product_attention, [t.double() for t in operands], wide, grad, **keywords)


def check(function, dtype, operands, mask, grad, want, **keywords):
    """One call: right within the peer's tolerance, and run where the report says."""
    args = [t.to(dtype) for t in operands]
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    got, ours, hosts = counted(run, function, args, mask, grad, **keywords)
    report = rapt.last_report()
    assert ours + hosts == 1 and str(report).startswith(f"{report.row} ran "), str(report)
    assert own(report.row) == bool(ours)
    assert ours == (grad is None) or dtype is torch.float64, str(report)
    atol, rtol = TOLERANCE[dtype]
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, want):
        assert a.dtype is dtype
        # Gradients of halves are sums over a row or a column: the peer allows them ten times as much.
        times = 10 if name != "out" and dtype in HALVES else 1
        torch.testing.assert_close(a.double(), b, atol=times * atol, rtol=times * rtol, msg=lambda m: f"{name}: {m}")


ENTRIES = {"installed": F.scaled_dot_product_attention, "sdpa": rapt.torch.sdpa}


@pytest.mark.parametrize("d", [8, 16])
@pytest.mark.parametrize("h", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_the_peers_grid_d28_n13(shape, h, d):
    b, sq, skv = shape
    calls = 0
    for kind, causal, train in itertools.product(MASKS, (False, True), (False, True)):
        for boolean in (True, False) if kind is not None else (True,):
            operands = [rand(b, n, h, d).transpose(1, 2) if h > 1 else rand(b, h, n, d) for n in (sq, skv, skv)]
            mask = mask_of(kind, b, h, sq, skv, boolean)
            grad = rand(b, h, sq, d) / 16 if train else None
            want = reference(operands, mask, grad, is_causal=causal)
            for dtype, entry in itertools.product(DTYPES, ENTRIES):
                with rapt.torch.install() if entry == "installed" else torch.enable_grad():
                    check(ENTRIES[entry], dtype, operands, mask, grad, want, is_causal=causal)
                calls += 1
    assert calls == 8 * 4 * (1 + 6 * 2)


@pytest.mark.parametrize("heads", [(65, 5), (16, 4), (27, 1), (5, 1)], ids=lambda h: "x".join(map(str, h)))
def test_the_peers_grouped_heads_h4(heads):
    hq, hkv = heads
    for train, causal, dtype in itertools.product((False, True), (False, True), DTYPES):
        operands = rand(2, hq, 33, 16), rand(2, hkv, 65, 16), rand(2, hkv, 65, 16)
        grad = rand(2, hq, 33, 16) / 16 if train else None
        want = reference(operands, None, grad, is_causal=causal, enable_gqa=True)
        for entry, function in ENTRIES.items():
            with rapt.torch.install() if entry == "installed" else torch.enable_grad():
                check(function, dtype, operands, None, grad, want, is_causal=causal, enable_gqa=True)


def test_the_counters_tell_a_call_that_rapt_did_not_decide():
    """The fault put back: without install() the same check must fail."""
    operands = rand(2, 3, 17, 8), rand(2, 3, 33, 8), rand(2, 3, 33, 8)
    want = reference(operands, None, None)
    with pytest.raises(AssertionError):
        check(F.scaled_dot_product_attention, torch.float32, operands, None, None, want)


def test_the_tolerance_tells_a_wrong_corner_of_causal():
    """The fault put back: the bottom right corner in the place of the top left."""
    operands = rand(2, 3, 17, 8), rand(2, 3, 33, 8), rand(2, 3, 33, 8)
    want = reference(operands, None, None, is_causal=True)
    wrong = lambda q, k, v, attn_mask: rapt.torch.sdpa(q, k, v, causal="br")  # noqa: E731
    for dtype in DTYPES:
        with pytest.raises(AssertionError):
            check(wrong, dtype, operands, None, None, want)
