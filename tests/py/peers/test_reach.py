# SPDX-License-Identifier: Apache-2.0
"""Every kind of call of F.scaled_dot_product_attention on a CPU, with rapt installed and without: the same result or
the same kind of exception, run where it is said to run (contract section 11, D28). The routes that nothing reaches are
in the table too, with no run of anybody."""

import warnings

import pytest
import torch
from peers_common import counted, outcome, rand
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

import rapt.torch

OURS, HOSTS, NOBODY = (1, 0), (0, 1), (0, 0)
sdpa = F.scaled_dot_product_attention


def qkv(sq=5, skv=7, d=8, dv=None, b=2, h=4, hkv=None, dtype=torch.float32, lead=True):
    """q, k and v, [B,H,S,D]."""
    hkv = h if hkv is None else hkv
    return rand(b, h, sq, d, dtype=dtype), rand(b, hkv, skv, d, dtype=dtype), rand(b, hkv, skv, dv or d, dtype=dtype)


def bshd(t):
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def last_stride_2(t):
    return t.repeat_interleave(2, -1)[..., ::2]


def under(context, *args, **keywords):
    with context:
        return sdpa(*args, **keywords)


def trained(*args, **keywords):
    """(out, every gradient)."""
    args = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in args]
    out = sdpa(*args, **keywords)
    out.square().sum().backward()
    return out.detach(), *(t.grad for t in args if t.grad is not None)


def compiled(*args, mark=(), dynamic=None, context=None, train=False, **keywords):
    function = torch.compile(lambda *a: sdpa(*a, **keywords), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    args = [t.clone() for t in args]
    for i, axis in mark:
        torch._dynamo.mark_dynamic(args[i], axis)
    if train:
        args = [t.requires_grad_() for t in args]
        out = function(*args)
        out.square().sum().backward()
        return out.detach(), *(t.grad for t in args)
    with context or torch.enable_grad():
        return function(*args)


def exported(*args, decomposed=False):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v)

    program = torch.export.export(Block(), args)
    return (program.run_decompositions() if decomposed else program).module()(*args)


def traced(*args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(lambda q, k, v: sdpa(q, k, v), args, check_trace=False)(*args)


def attention_layer(train=False, fast=True, weights=False, kind=torch.nn.MultiheadAttention):
    torch.manual_seed(5)
    layer = kind(16, 2, batch_first=True).train(train) if kind is torch.nn.MultiheadAttention else \
        kind(16, 2, 32, 0.0, batch_first=True).train(train)
    x = rand(2, 5, 16)
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with torch.set_grad_enabled(train):
            if kind is not torch.nn.MultiheadAttention:
                return layer(x).detach()
            return layer(x, x, x, need_weights=weights)[0].detach()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def gradcheck():
    args = [t[:1, :2, :3, :4].double().requires_grad_() for t in qkv()]
    return torch.autograd.gradcheck(sdpa, args)


def jvp():
    q, k, v = qkv()
    return torch.func.jvp(lambda q: sdpa(q, k, v), (q,), (torch.ones_like(q),))


# (name, call, who runs, or the kind of exception). A pair of numbers: runs of our rows, runs of the host's.
REACHES = [
    ("eager", lambda: sdpa(*qkv()), OURS),
    ("no_grad", lambda: under(torch.no_grad(), *qkv()), OURS),
    ("inference_mode", lambda: under(torch.inference_mode(), *qkv()), OURS),
    ("a gradient not wanted", lambda: under(torch.no_grad(), *(t.requires_grad_() for t in qkv())), OURS),
    ("autocast", lambda: under(torch.autocast("cpu"), *qkv()), OURS),
    ("autocast, mixed", lambda: under(torch.autocast("cpu"), *qkv()[:2], qkv(dtype=torch.bfloat16)[2]), OURS),
    ("autocast, fp16", lambda: under(torch.autocast("cpu", dtype=torch.float16), *qkv()), OURS),
    ("gradients", lambda: trained(*qkv()), HOSTS),
    ("gradients, mask", lambda: trained(*qkv(), torch.rand(5, 7) > 0.3), HOSTS),
    ("gradients, causal and mask", lambda: trained(*qkv(), torch.rand(5, 7) > 0.3, is_causal=True), HOSTS),
    ("gradcheck", gradcheck, None),
    ("func.grad", lambda: torch.func.grad(lambda q, k, v: sdpa(q, k, v).sum())(*qkv()), OURS),
    ("vmap of rank 4", lambda: torch.vmap(sdpa)(*(t[None] for t in qkv())), OURS),
    ("gqa", lambda: sdpa(*qkv(hkv=2), enable_gqa=True), OURS),
    ("causal", lambda: sdpa(*qkv(), is_causal=True), OURS),
    ("causal, more rows than keys", lambda: sdpa(*qkv(9, 4), is_causal=True), OURS),
    ("scale", lambda: sdpa(*qkv(), scale=2.0), OURS),
    ("negative scale", lambda: sdpa(*qkv(), scale=-0.5), OURS),
    ("zero scale", lambda: sdpa(*qkv(), scale=0.0), OURS),
    ("fp64", lambda: sdpa(*qkv(dtype=torch.float64)), HOSTS),
    ("bf16", lambda: sdpa(*qkv(dtype=torch.bfloat16)), OURS),
    ("fp16", lambda: sdpa(*qkv(dtype=torch.float16)), OURS),
    ("bshd views", lambda: sdpa(*map(bshd, qkv())), OURS),
    ("mask of rank 2", lambda: sdpa(*qkv(), torch.rand(5, 7) > 0.3), OURS),
    ("mask of rank 4", lambda: sdpa(*qkv(), torch.rand(2, 4, 5, 7) > 0.3), OURS),
    ("mask of keys", lambda: sdpa(*qkv(), torch.rand(2, 1, 1, 7) > 0.3), OURS),
    ("expanded mask", lambda: sdpa(*qkv(), (torch.rand(1, 1, 5, 7) > 0.3).expand(2, 4, 5, 7)), OURS),
    ("bias", lambda: sdpa(*qkv(), rand(5, 7)), OURS),
    ("fp32 bias, bf16 operands", lambda: sdpa(*qkv(dtype=torch.bfloat16), rand(5, 7)), OURS),
    ("mask and causal", lambda: sdpa(*qkv(), torch.rand(5, 7) > 0.3, is_causal=True), OURS),
    ("mask and causal, fp64", lambda: sdpa(*qkv(dtype=torch.float64), torch.rand(5, 7) > 0.3, is_causal=True), HOSTS),
    ("causal bias", lambda: sdpa(*qkv(), causal_lower_right(5, 7)), OURS),
    ("sdpa_kernel with flash", lambda: under(sdpa_kernel(SDPBackend.FLASH_ATTENTION), *qkv()), OURS),
    ("the operator", lambda: torch.ops.aten.scaled_dot_product_attention(*qkv()), OURS),
    ("MultiheadAttention in training", lambda: attention_layer(train=True), HOSTS),
    ("MultiheadAttention without the fast path", lambda: attention_layer(fast=False), OURS),
    ("TransformerEncoderLayer without the fast path",
     lambda: attention_layer(fast=False, kind=torch.nn.TransformerEncoderLayer), OURS),
    ("TransformerEncoderLayer in training",
     lambda: attention_layer(True, kind=torch.nn.TransformerEncoderLayer), HOSTS),
    ("exported", lambda: exported(*qkv()), OURS),
    ("jit.trace", lambda: traced(*qkv()), (2, 0)),              # the trace itself is a call
]

MATH = [
    ("mask of rank 3", lambda: sdpa(*qkv(), torch.rand(4, 5, 7) > 0.3), OURS),
    ("bias with a gradient", lambda: trained(*qkv(), rand(5, 7)), HOSTS),
    ("bias with a gradient, not wanted", lambda: under(torch.no_grad(), *qkv(), rand(5, 7).requires_grad_()), OURS),
    ("dv", lambda: sdpa(*qkv(dv=12)), OURS),
    ("dv, gradients", lambda: trained(*qkv(dv=12)), HOSTS),
    ("dv, fp64", lambda: sdpa(*qkv(dv=12, dtype=torch.float64)), HOSTS),
    ("dropout", lambda: sdpa(*qkv(), dropout_p=0.5), HOSTS),
    ("rank 2", lambda: sdpa(*(t[0, 0] for t in qkv())), OURS),
    ("rank 3", lambda: sdpa(*(t[0] for t in qkv())), OURS),
    ("rank 5", lambda: sdpa(*(t[None] for t in qkv())), OURS),
    ("rank 6", lambda: sdpa(*(t[None, None] for t in qkv())), OURS),
    ("batch of one", lambda: sdpa(*qkv()[:1], *(t[:1] for t in qkv()[1:])), OURS),
    ("one kv head", lambda: sdpa(*qkv(hkv=1)), OURS),
    ("two counts of kv heads", lambda: sdpa(*qkv(hkv=2)[:2], qkv(hkv=1)[2], enable_gqa=True), OURS),
    ("q strided", lambda: sdpa(last_stride_2(qkv()[0]), *qkv()[1:]), OURS),
    ("k strided", lambda: sdpa(qkv()[0], last_stride_2(qkv()[1]), qkv()[2]), OURS),
    ("v strided", lambda: sdpa(*qkv()[:2], last_stride_2(qkv()[2])), OURS),
    ("transposed k", lambda: sdpa(qkv()[0], qkv()[1].mT.contiguous().mT, qkv()[2]), OURS),
    ("no keys", lambda: sdpa(*qkv(skv=0)), NOBODY),
    ("no rows", lambda: sdpa(*qkv(sq=0)), NOBODY),
    ("no batch", lambda: sdpa(*qkv(b=0)), NOBODY),
    ("sdpa_kernel with math", lambda: under(sdpa_kernel(SDPBackend.MATH), *qkv()), NOBODY),
    ("vmap of rank 3", lambda: torch.vmap(sdpa)(*qkv()), NOBODY),
    ("func.grad, dv", lambda: torch.func.grad(lambda q, k, v: sdpa(q, k, v).sum())(*qkv(dv=12)), NOBODY),
    ("MultiheadAttention's fast path", lambda: attention_layer(), NOBODY),
    ("MultiheadAttention with weights", lambda: attention_layer(fast=False, weights=True), NOBODY),
    ("decomposed at export", lambda: exported(*qkv(), decomposed=True), OURS),
]

COMPILED = [
    ("compiled", lambda: compiled(*qkv()), OURS),
    ("compiled, dynamic", lambda: compiled(*qkv(), dynamic=True), OURS),
    ("compiled, lengths dynamic", lambda: compiled(*qkv(), mark=((0, 2), (1, 2), (2, 2))), OURS),
    ("compiled, batch and heads dynamic",
     lambda: compiled(*qkv(), mark=((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1))), OURS),
    ("compiled, mask", lambda: compiled(*qkv(), torch.rand(5, 7) > 0.3, dynamic=True), OURS),
    ("compiled, mask of rank 4", lambda: compiled(*qkv(), torch.rand(2, 1, 5, 7) > 0.3, is_causal=True), OURS),
    ("compiled, autocast", lambda: compiled(*qkv(), context=torch.autocast("cpu")), OURS),
    ("compiled, inference_mode", lambda: compiled(*qkv(), context=torch.inference_mode()), OURS),
    ("compiled, dv", lambda: compiled(*qkv(dv=12)), OURS),
    ("compiled, rank 3", lambda: compiled(*(t[0] for t in qkv()), dynamic=True), OURS),
    # Traced below autograd: the forward is ours, the backward the host's.
    ("compiled, gradients", lambda: compiled(*qkv(), train=True), OURS),
]

RAISES = [
    ("mask of rank 1", lambda: sdpa(*qkv(), torch.rand(7) > 0.3), IndexError),
    ("fp64 bias", lambda: sdpa(*qkv(), rand(5, 7).double()), RuntimeError),
    ("bf16 bias", lambda: sdpa(*qkv(), rand(5, 7).bfloat16()), RuntimeError),
    ("integer mask", lambda: sdpa(*qkv(), torch.ones(5, 7, dtype=torch.int32)), RuntimeError),
    ("gqa without the flag", lambda: sdpa(*qkv(hkv=2)), RuntimeError),
    ("heads that do not divide", lambda: sdpa(*qkv(hkv=3), enable_gqa=True), RuntimeError),
    ("mixed dtypes", lambda: sdpa(*qkv()[:2], qkv(dtype=torch.bfloat16)[2]), RuntimeError),
    ("widths that differ", lambda: sdpa(qkv()[0], qkv(d=12)[1], qkv(d=12)[2]), RuntimeError),
    ("a mask that does not broadcast", lambda: sdpa(*qkv(), torch.rand(5, 6) > 0.3), RuntimeError),
    ("rank 1", lambda: sdpa(*(t[0, 0, 0] for t in qkv())), (RuntimeError, IndexError)),
    ("dropout above 1", lambda: sdpa(*qkv(), dropout_p=1.5), RuntimeError),
    ("mask of rank 3 and causal", lambda: sdpa(*qkv(), torch.rand(4, 5, 7) > 0.3, is_causal=True), RuntimeError),
    ("no tensor", lambda: sdpa(None, *qkv()[1:]), TypeError),
    ("an unknown keyword", lambda: sdpa(*qkv(), window=(1, 1)), TypeError),
    ("jvp", jvp, NotImplementedError),
]

REWORDED = {"a mask that does not broadcast": "SHAPE: attn_mask is 5x6, axis 1 must be 7 or 1."}

KINDS = REACHES + MATH + COMPILED


def tensors(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def both(call):
    """((result, exception) of the host alone, the same with rapt installed, runs of our rows, runs of the host's)."""
    torch.manual_seed(17)
    stock = outcome(call)
    torch._dynamo.reset()
    with rapt.torch.install():
        torch.manual_seed(17)
        return stock, *counted(outcome, call)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, call, runs", KINDS, ids=[kind[0] for kind in KINDS])
def test_a_call_gives_what_it_gave_before_d28(name, call, runs):
    (want, error), (got, ours_error), ours, hosts = both(call)
    assert error is None and ours_error is None
    assert runs is None or (ours, hosts) == runs
    for a, b in zip(tensors(got), tensors(want)):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(a.dtype, 1e-5)
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, call, kind", RAISES, ids=[kind[0] for kind in RAISES])
def test_a_call_raises_what_it_raised_before_e3(name, call, kind):
    (_, stock), (_, installed), ours, hosts = both(call)
    assert isinstance(stock, kind) and type(installed) is type(stock) and (ours, hosts) == NOBODY
    assert str(installed).splitlines()[0] == str(stock).splitlines()[0] or \
        str(installed).startswith(REWORDED[name])


def test_the_table_is_whole():
    names = [kind[0] for kind in KINDS + RAISES]
    assert len(names) == len(set(names)) and (len(REACHES), len(MATH), len(COMPILED), len(RAISES)) == (40, 27, 11, 15)


def test_the_check_tells_a_call_that_went_past_rapt(monkeypatch):
    """The fault put back: an install() that does nothing."""
    monkeypatch.setattr(rapt.torch, "install", torch.enable_grad)
    call = dict((name, call) for name, call, _ in KINDS)["eager"]
    assert both(call)[2:] == NOBODY
