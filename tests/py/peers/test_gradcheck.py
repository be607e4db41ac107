# SPDX-License-Identifier: Apache-2.0
"""Gradients in fp64 wherever they run: rapt.torch.sdpa, the host's function with rapt installed, and both compiled; and
the shapes, strides and dtypes that their fakes promise (contract B7, B8, H2, N8)."""

import pytest
import torch
from peers_common import DTYPES, counted, outcome, rand
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.nn import functional as F

import rapt.torch
from rapt import _ops

FLASH, BACKWARD = _ops.FLASH, _ops.FLASH_BACKWARD


def wide(*shape):
    return rand(*shape, dtype=torch.float64).requires_grad_()


def operands(hkv=2, dv=4):
    return wide(1, 2, 3, 4), wide(1, hkv, 4, 4), wide(1, hkv, 4, dv)


MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1]], dtype=torch.bool)        # a row that sees nothing (M14)

# Calls that PyTorch's function takes too, then ours alone: (operands and biases with gradients, keywords).
COMMON = {
    "plain": lambda: (operands(), {}), "causal": lambda: (operands(), {"is_causal": True}),
    "scale": lambda: (operands(), {"scale": -0.3}), "mask": lambda: (operands(), {"attn_mask": MASK}),
    "bias": lambda: ((*operands(), wide(3, 4)), {}), "bias of keys": lambda: ((*operands(), wide(1, 1, 1, 4)), {}),
    "gqa": lambda: (operands(hkv=1), {"enable_gqa": True}), "dv": lambda: (operands(dv=3), {}),
    "dv, causal": lambda: (operands(dv=3), {"is_causal": True}),
    "dv, mask": lambda: (operands(dv=3), {"attn_mask": MASK}),
    "rank 3": lambda: ([t[0].detach().requires_grad_() for t in operands()], {}),
    "views": lambda: ([wide(1, n, 2, 4).transpose(1, 2).detach().requires_grad_() for n in (3, 4, 4)], {}),
}
OWN = {
    "window": lambda: (operands(), {"window": (1, 0), "align": "tl"}), "br": lambda: (operands(), {"causal": "br"}),
    "mask and causal": lambda: (operands(), {"attn_mask": MASK, "is_causal": True}),
    "bias and causal": lambda: ((*operands(), wide(3, 4)), {"is_causal": True}),
    "mask and bias": lambda: ((*operands(), wide(3, 4)), {"mask": MASK}),
}


def call(function, keywords):
    return lambda *args: function(*args, **keywords)


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("name", [*COMMON, *OWN])
def test_gradcheck_of_our_function_b8(name):
    args, keywords = (COMMON.get(name) or OWN[name])()
    assert gradcheck(call(rapt.torch.sdpa, keywords), args)
    assert rapt.last_report().row.startswith("torch.")
    assert gradcheck(compiled(call(rapt.torch.sdpa, keywords)), args, fast_mode=True)


@pytest.mark.parametrize("name", COMMON)
def test_gradcheck_of_the_hosts_function_installed_b8(name, installed):
    args, keywords = COMMON[name]()
    assert gradcheck(call(F.scaled_dot_product_attention, keywords), args)
    if name in ("plain", "dv, mask", "bias"):
        assert gradcheck(compiled(call(F.scaled_dot_product_attention, keywords)), args, fast_mode=True)


def test_gradcheck_tells_a_wrong_backward(monkeypatch):
    """The fault put back: a backward that forgets the scale."""
    right = _ops._by_formula
    monkeypatch.setattr(_ops, "_by_formula", lambda *a: (right(*a)[0] * 2, *right(*a)[1:]))
    args, keywords = COMMON["dv"]()
    flags = _ops.GRAD_Q | _ops.GRAD_K | _ops.GRAD_V
    with pytest.raises(GradcheckError):
        gradcheck(lambda q, k, v: _ops.sdpa_ag_op(q, k, v, flags=flags), args)


# ---- Gradients of gradients: as upstream ----

def second(function, args, keywords):
    out = function(*args, **keywords)
    grads = torch.autograd.grad(out.square().sum(), args, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in grads), args)


@pytest.mark.parametrize("name", ["plain", "mask", "dv", "bias", "rank 3"])
def test_double_backward_is_the_hosts_or_refused_as_by_it_b8(name):
    args, keywords = COMMON[name]()
    want, refusal = outcome(second, F.scaled_dot_product_attention, args, keywords)
    results = [outcome(second, rapt.torch.sdpa, args, keywords)]
    with rapt.torch.install():
        results.append(outcome(second, F.scaled_dot_product_attention, args, keywords))
    assert (refusal is not None) == (name in ("plain", "mask"))
    for got, error in results:
        assert type(error) is type(refusal)
        if refusal is not None:
            assert "is not implemented" in str(refusal) and str(error).splitlines()[0] == str(refusal).splitlines()[0]
        else:
            assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_double_backward_of_our_operator_is_right_or_refused():
    flags = _ops.GRAD_Q | _ops.GRAD_K | _ops.GRAD_V
    function = lambda q, k, v: _ops.sdpa_ag_op(q, k, v, flags=flags)  # noqa: E731
    assert gradgradcheck(function, operands(dv=3))              # the formula, which can be differentiated again
    args = operands()
    with pytest.raises(RuntimeError, match="is not implemented"):
        second(function, args, {})
    for keywords in ({}, {"is_causal": True}):
        with pytest.raises(RuntimeError, match="double backward"):
            second(compiled(call(rapt.torch.sdpa, keywords)), args, {})


# ---- What fakes promise of the overridden operators ----

LAYOUTS = {
    "bhsd": lambda b, h, s, d: rand(b, h, s, d), "bshd": lambda b, h, s, d: rand(b, s, h, d).transpose(1, 2),
    "packed": lambda b, h, s, d: rand(b, s, 3, h, d).permute(2, 0, 3, 1, 4)[1],
    "expanded": lambda b, h, s, d: rand(b, 1, s, d).expand(b, h, s, d),
    "one head": lambda b, h, s, d: rand(b, s, 1, d).transpose(1, 2), "one row": lambda b, h, s, d: rand(b, h, 1, d),
}


def described(tensors):
    return [(t.shape, t.stride(), t.dtype) for t in tensors]


def pair(q, k, v, mask, causal):
    """The overridden operator and its backward: (out, lse, dq, dk, dv)."""
    out, lse = FLASH(q, k, v, 0.0, causal, attn_mask=mask)
    grads = BACKWARD(torch.ones_like(out), q, k, v, out, lse, 0.0, causal, attn_mask=mask)
    return out, lse, *grads


@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_lse_and_gradients_have_the_strides_of_a_fake_run_h2_n8(layout, installed):
    for dtype in DTYPES:
        q, k, v = (LAYOUTS[layout](2, 3, s, 8).to(dtype) for s in (5, 7, 7))
        mask = rand(k.shape[-2], dtype=dtype).expand(q.shape[-2], k.shape[-2]) if dtype is not torch.float16 else None
        real, ours, hosts = counted(pair, q, k, v, mask, True)
        assert ours + hosts == 1 and (ours == 1 or dtype is torch.float64)
        mode = torch._subclasses.FakeTensorMode()
        with mode:
            fakes = [t if t is None else mode.from_tensor(t) for t in (q, k, v, mask)]
            assert described(pair(*fakes, True)) == described(real)
        rapt.torch.remove()
        stock = pair(q, k, v, mask, True)
        rapt.torch.install()
        assert described(stock) == described(real)
        tolerance = {torch.bfloat16: 3e-2, torch.float16: 5e-3}.get(dtype, 1e-5)
        for a, b in zip(real, stock):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_general_operator_has_the_strides_of_a_fake_run_h2(layout, installed):
    q, k = (LAYOUTS[layout](2, 3, s, 8) for s in (5, 7))
    v = LAYOUTS[layout](2, 3, 7, 12)
    real = F.scaled_dot_product_attention(q, k, v)
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = F.scaled_dot_product_attention(*(mode.from_tensor(t) for t in (q, k, v)))
    assert described([fake]) == described([real])
