# SPDX-License-Identifier: Apache-2.0
"""The transforms of torch.func over the host's function with rapt installed, and over rapt.torch.sdpa: the host's
results, or its own refusal (contract section 11)."""

import warnings

import pytest
import torch
from peers_common import counted, own, rand
from torch.nn import functional as F

import rapt
import rapt.torch

sdpa = rapt.torch.sdpa
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.fixture(params=["installed", "sdpa"])
def function(request):
    """The host's function with rapt installed, and ours without."""
    if request.param == "sdpa":
        yield sdpa
        return
    with rapt.torch.install():
        yield F.scaled_dot_product_attention


def stock(transform, *args):
    rapt.torch.remove()
    return transform(F.scaled_dot_product_attention)(*args)


def close(got, want):
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want))):
        assert a.shape == b.shape and a.dtype is b.dtype
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def loss(f, **keywords):
    return lambda *args: f(*args, **keywords).square().sum()


def samples(rank, dv=8):
    return [rand(3, *(2, 4, n, d)[4 - rank:]) for n, d in ((5, 8), (7, 8), (7, dv))]


TRANSFORMS = {
    "vmap": torch.vmap,
    "vmap of one operand": lambda f: lambda q, k, v: torch.vmap(f, in_dims=(0, None, None))(q, k[0], v[0]),
    "vmap of another axis": lambda f: lambda q, k, v: torch.vmap(f, in_dims=(1, 1, 1), out_dims=1)(
        *(t.transpose(0, 1) for t in (q, k, v))),
    "vmap in chunks": lambda f: torch.vmap(f, chunk_size=2),
    "grad": lambda f: lambda q, k, v: torch.func.grad(loss(f), (0, 1, 2))(q[0], k[0], v[0]),
    "vjp": lambda f: lambda q, k, v: torch.func.vjp(f, q[0], k[0], v[0])[1](torch.ones(*q.shape[1:-1], v.shape[-1])),
    "gradients of each sample": lambda f: torch.vmap(torch.func.grad(loss(f), (0, 1, 2))),
    "jacrev": lambda f: lambda q, k, v: torch.func.jacrev(lambda q: f(q, k[0], v[0]).sum((-1, -2)))(q[0]),
    "causal": lambda f: torch.vmap(lambda *a: f(*a, is_causal=True)),
    "scale": lambda f: torch.vmap(lambda *a: f(*a, scale=-0.3)),
    "bool mask": lambda f: lambda q, k, v: torch.vmap(f)(q, k, v, torch.arange(105).reshape(3, 5, 7) % 4 > 0),
    "grad and bool mask": lambda f: lambda q, k, v: torch.func.grad(
        loss(f, attn_mask=torch.arange(35).reshape(5, 7) % 4 > 0), (0, 1, 2))(q[0], k[0], v[0]),
    "grad of the bias": lambda f: lambda q, k, v: torch.func.grad(
        lambda b: loss(f, attn_mask=b)(q[0], k[0], v[0]))(torch.arange(35.0).reshape(5, 7) / 35),
}


@pytest.mark.parametrize("dv", [8, 12])
@pytest.mark.parametrize("rank", [4, 3])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_the_host_gives_d28(function, name, rank, dv):
    args = samples(rank, dv)
    got = TRANSFORMS[name](function)(*args)
    close(got, stock(TRANSFORMS[name], *args))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_vmap_folds_into_the_batch_and_runs_our_rows_d12(rank):
    args = samples(rank)
    out, ours, hosts = counted(torch.vmap(sdpa), *args)
    assert (ours, hosts) == (1, 0) and own(rapt.last_report().row)
    for i in range(3):
        assert torch.equal(out[i], sdpa(*(t[i] for t in args)))


def test_what_only_we_have_works_under_transforms_too():
    q, k, v = samples(4)
    lengths = torch.tensor([[4, 7], [1, 2], [7, 7]])
    out, lse = torch.vmap(lambda q, k, v, n: sdpa(q, k, v, window=(2, 1), align="br", kv_len=n, return_lse=True))(
        q, k, v, lengths)
    for i in range(3):
        one = sdpa(q[i], k[i], v[i], window=(2, 1), align="br", kv_len=lengths[i], return_lse=True)
        assert torch.equal(out[i], one[0]) and torch.equal(lse[i], one[1])
    bias, mask = rand(5, 7), torch.arange(35).reshape(5, 7) % 4 > 0
    for keywords in ({"window": (2, 0), "align": "br"}, {"mask": mask, "bias": bias},
                     {"is_causal": True, "bias": bias}):
        got = torch.func.grad(loss(sdpa, **keywords))(q[0], k[0], v[0])
        assert rapt.last_report().row == "torch.sdpa" and str(rapt.last_report()).startswith("torch.sdpa ran")
        leaf = q[0].clone().requires_grad_()
        loss(sdpa, **keywords)(leaf, k[0], v[0]).backward()
        close(got, leaf.grad)


def test_vmap_inside_autograd_keeps_the_graph_b8():
    q, k, v = (t.requires_grad_() for t in samples(4))
    out, ours, hosts = counted(torch.vmap(sdpa), q, k, v)
    assert ours == 0 and hosts == 1 and out.requires_grad
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    want = torch.autograd.grad(sum(sdpa(*(t[i] for t in (q, k, v))).square().sum() for i in range(3)), (q, k, v))
    close(grads, want)


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.vmap(torch.func.grad(loss(f)))],
                         ids=["vmap", "gradients of each sample"])
def test_compiled_transforms_leave_the_graph_and_are_right_b8(transform):
    """What is differentiated inside a transform is not seen while it is traced: such a call is never one operator."""
    outer = transform is torch.vmap                             # else the host has no derivative of its derivative

    def result(function):
        args = [t.clone().requires_grad_(outer) for t in operands]
        out = function(*args)
        return (out, *torch.autograd.grad(out.square().sum(), args)) if outer else out

    operands = samples(4)
    want = stock(lambda f: lambda: result(transform(f)))
    ours, hosts = (lambda *a, f=f: transform(f)(*a) for f in (sdpa, F.scaled_dot_product_attention))
    close(result(torch.compile(ours, backend="aot_eager")), want)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        result(torch.compile(ours, backend="aot_eager", fullgraph=True))
    with rapt.torch.install():
        close(result(torch.compile(hosts, backend="aot_eager", fullgraph=True)), want)


def test_autocast_and_preferences_hold_under_transforms_a1_d9():
    q, k, v = samples(4)
    with torch.autocast("cpu"):
        out = torch.vmap(sdpa)(q, k, v.bfloat16())
        assert out.dtype is torch.bfloat16
        grad = torch.func.grad(loss(sdpa))(q[0], k[0], v[0].bfloat16())
        assert grad.dtype is torch.float32
    with rapt.policy(require="ref"):
        torch.vmap(sdpa)(q, k, v)
        assert rapt.last_report().row == "ref"
        with pytest.raises(rapt.RefusedError, match="function transform"):
            torch.func.grad(loss(sdpa))(q[0], k[0], v[0])


def test_what_is_not_taken_is_refused_by_name_e3():
    q, k, v = samples(4)
    with pytest.raises(rapt.ArgumentError, match="^HEADS"):
        torch.vmap(sdpa)(q, k[:, :, :2], v[:, :, :2])
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX"):
        torch.vmap(sdpa)(q, k, v.bfloat16())
    with pytest.raises(rapt.ArgumentError, match="^UNKNOWN_FIELD: attn_bias"):
        torch.vmap(lambda q: sdpa(q, k[0], v[0], attn_bias=None))(q)
    with pytest.raises(rapt.RefusedError, match="SOFTCAP"):
        torch.vmap(lambda q: sdpa(q, k[0], v[0], softcap=3.0))(q)
    with pytest.raises(rapt.ArgumentError, match="^GRAD: return_lse"):
        torch.func.grad(lambda q: sdpa(q, k[0], v[0], return_lse=True)[0].sum())(q[0])


def test_forward_mode_is_refused_as_by_the_host(function):
    q, k, v = (t[0] for t in samples(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotImplementedError, match="forward AD"):
            torch.func.jvp(lambda q: function(q, k, v), (q,), (torch.ones_like(q),))


def test_the_comparison_tells_a_transform_that_is_wrong():
    """The fault put back: a vmap that takes the first sample for all."""
    args = samples(4)
    with pytest.raises(AssertionError):
        close(torch.vmap(lambda *a: sdpa(*(t[0] for t in args)))(*args), stock(torch.vmap, *args))
