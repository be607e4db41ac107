# SPDX-License-Identifier: Apache-2.0
"""rapt.torch.install(): F.scaled_dot_product_attention on a CPU through rapt's decision (contract section 11, D28)."""

import contextlib
import os
import threading

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@pytest.fixture(autouse=True)
def clean():
    torch.manual_seed(3)
    torch._dynamo.reset()
    yield
    rapt.torch.remove()


@pytest.fixture
def installed():
    with rapt.torch.install():
        yield


def rand(*shape, dtype=torch.float32):
    return (torch.rand(shape) * 2 - 1).to(dtype)


def numpy(tensor):
    return tensor.detach().to(torch.float64).numpy()


def runs():
    """How often rows of our own have run (R1)."""
    return sum(n for row, n in rapt.torch.context.entered().items() if row.startswith("cpu.") or row == "ref")


def counted(function, *args, **keywords):
    before = runs()
    return function(*args, **keywords), runs() - before


def operands(name):
    q, k, v = rand(2, 4, 9, 16), rand(2, 4, 11, 16), rand(2, 4, 11, 16)
    return {
        "bhsd": (q, k, v), "bshd": tuple(rand(2, n, 4, 16).transpose(1, 2) for n in (9, 11, 11)),
        "dv": (q, k, rand(2, 4, 11, 24)), "rank 3": (q[0], k[0], v[0]), "rank 2": (q[0, 0], k[0, 0], v[0, 0]),
        "rank 5": (q[None], k[None], v[None]), "gqa": (q, k[:, :2], v[:, :2]), "mqa": (q, k[:, :1], v[:, :1]),
        "batch of one": (q, k[:1], v[:1]), "last stride 2": tuple(rand(2, 4, n, 32)[..., ::2] for n in (9, 11, 11)),
        "transposed k": (q, rand(2, 4, 16, 11).transpose(-1, -2), v), "no keys": (q, k[:, :, :0], v[:, :, :0]),
        "one row": (q[:, :, :1], k, v),
        "expanded": (q, rand(2, 1, 11, 16).expand_as(k), rand(2, 1, 11, 16).expand_as(v)),
    }[name]


EVERY = ["bhsd", "bshd", "dv", "rank 3", "rank 2", "rank 5", "gqa", "mqa", "batch of one", "last stride 2",
         "transposed k", "one row", "expanded"]


# ---- What reaches rapt, and that it is right ----

@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", EVERY)
def test_every_shape_runs_on_a_row_of_ours_within_the_bound_n13_d28(name, dtype):
    q, k, v = (t.to(dtype) for t in operands(name))
    host = F.scaled_dot_product_attention(q, k, v, enable_gqa=name == "gqa")
    with rapt.torch.install():
        out, n = counted(F.scaled_dot_product_attention, q, k, v, enable_gqa=name == "gqa")
    assert n == 1 and rapt.last_report().row.startswith("cpu.")
    assert out.shape == host.shape and out.dtype == host.dtype and out.stride() == host.stride()
    if q.dim() == 4:
        full = [t.expand(q.shape[0], *t.shape[1:]) for t in (q, k, v)]
        exact, _, bound, _ = oracle_np.attention(*map(numpy, full), dtype=NAMES[dtype])
        oracle_np.check(numpy(out), exact, bound)
        oracle_np.check(numpy(host), numpy(out), bound, times=2.0)


MASKS = {
    "rank 2 bool": lambda: torch.rand(9, 11) > 0.3, "rank 4 bool": lambda: torch.rand(2, 4, 9, 11) > 0.3,
    "keys": lambda: torch.rand(2, 1, 1, 11) > 0.3, "rank 2": lambda: rand(9, 11), "rank 4": lambda: rand(2, 1, 9, 11),
    "rank 3": lambda: rand(4, 9, 11), "expanded": lambda: rand(1, 1, 9, 11).expand(2, 4, 9, 11),
    "empty rows": lambda: torch.arange(9)[:, None].expand(9, 11) > 2,
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_and_causal_are_applied_m8_m9_m14(mask, causal):
    q, k, v = operands("bhsd")
    m = MASKS[mask]()
    if causal and m.dim() == 3:
        for around in (contextlib.nullcontext(), rapt.torch.install()):         # the host's general operator refuses both
            with around, pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
                F.scaled_dot_product_attention(q, k, v, m, is_causal=True)
        return
    host = F.scaled_dot_product_attention(q, k, v, m, is_causal=causal)
    with rapt.torch.install():
        out, n = counted(F.scaled_dot_product_attention, q, k, v, m, is_causal=causal)
    assert n == 1
    kind = {"mask": numpy(m) > 0} if m.dtype == torch.bool else {"bias": numpy(m)}
    exact, _, bound, _ = oracle_np.attention(numpy(q), numpy(k), numpy(v), dtype="fp32",
                                             causal="tl" if causal else None, **kind)
    oracle_np.check(numpy(out), exact, bound)
    oracle_np.check(numpy(host), numpy(out), bound, times=2.0)


def test_scales_and_contexts_reach_rapt(installed):
    q, k, v = operands("bhsd")
    for scale in (0.0, -0.5, 2.0):
        assert counted(F.scaled_dot_product_attention, q, k, v, scale=scale)[1] == 1
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with context:
            assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
    with torch.autocast("cpu"):
        out, n = counted(F.scaled_dot_product_attention, q, k, v.bfloat16())
        assert n == 1 and out.dtype == torch.bfloat16
    assert counted(torch.ops.aten.scaled_dot_product_attention, q, k, v)[1] == 1
    assert counted(F.scaled_dot_product_attention, q, k, v, causal_lower_right(9, 11))[1] == 1
    assert counted(torch.vmap(F.scaled_dot_product_attention), q[None], k[None], v[None])[1] == 1
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = rand(2, 5, 16)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            assert counted(layer.eval(), x, x, x, need_weights=False)[1] == 1
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_what_cannot_be_reached_runs_as_before(installed):
    q, k, v = operands("dv")
    with sdpa_kernel(SDPBackend.MATH):
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 0
        assert counted(F.scaled_dot_product_attention, q, k, k)[1] == 0
    assert counted(torch.vmap(F.scaled_dot_product_attention), q, k, v)[1] == 0
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        out, n = counted(F.scaled_dot_product_attention, dual, k, v)
        assert n == 0 and torch.autograd.forward_ad.unpack_dual(out).tangent is not None
    grad = torch.func.grad(lambda q: F.scaled_dot_product_attention(q, k, v).sum())(q)
    assert grad.shape == q.shape
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    with torch.no_grad():
        x = q[0]
        assert counted(layer, x, x, x, need_weights=False)[1] == 0


def test_the_hosts_own_errors_stay(installed):
    q, k, v = operands("bhsd")
    for args in ((q, k.double(), v), (q, k[:, :2], v[:, :2]), (q, k, v, rand(9, 11).double())):
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(*args)
    with pytest.raises(RuntimeError, match="SHAPE"):            # the host alone reads past the end of value
        F.scaled_dot_product_attention(q, k, v[:, :, :3])
    assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
    out, n = counted(F.scaled_dot_product_attention, *operands("no keys"))
    assert n == 0 and not out.any()                             # answered above every operator


# ---- Gradients ----

def gradients(q, k, v, mask=None, **keywords):
    q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
    bias = mask.clone().requires_grad_() if mask is not None and mask.is_floating_point() else mask
    out = F.scaled_dot_product_attention(q, k, v, bias, **keywords)
    out.square().sum().backward()
    return [out, q.grad, k.grad, v.grad] + ([bias.grad] if bias is not mask else [])


@pytest.mark.parametrize("mask", [None, "rank 2 bool", "empty rows", "rank 2"])
@pytest.mark.parametrize("name", ["bhsd", "bshd", "dv", "gqa", "rank 3"])
def test_gradients_are_bit_for_bit_the_hosts_b8(name, mask):
    q, k, v = operands(name)
    m = None if mask is None else MASKS[mask]()
    before = gradients(q, k, v, m, enable_gqa=name == "gqa")
    with rapt.torch.install():
        after, n = counted(gradients, q, k, v, m, enable_gqa=name == "gqa")
        report = rapt.last_report()
    assert n == 0 and report.row.startswith("torch.") and "GRAD" in report.codes("cpu.scalar")
    for a, b in zip(after, before):
        assert torch.equal(a, b)


def test_gradients_wanted_of_one_operand_only(installed):
    q, k, v = operands("bhsd")
    for i in range(3):
        args = [t.clone().requires_grad_(i == j) for j, t in enumerate((q, k, v))]
        out, n = counted(F.scaled_dot_product_attention, *args)
        assert n == 0 and out.requires_grad
        with torch.no_grad():
            assert counted(F.scaled_dot_product_attention, *args)[1] == 1


def test_the_hosts_backward_takes_our_forwards_results_m14(installed):
    """Compiled training runs the forward where no gradient is seen to be wanted: the pair must fit, empty rows too."""
    q, k, v = operands("bhsd")
    mask = torch.zeros(9, 11).masked_fill(torch.arange(9)[:, None] < 3, float("-inf"))
    aten, grad = torch.ops.aten, rand(2, 4, 9, 16)

    def pair():
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)
        return out, lse, *aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, False,
                                                                                   attn_mask=mask)

    ours, n = counted(pair)
    rapt.torch.remove()
    assert n == 1
    for a, b in zip(ours, pair()):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride() and a.dtype == b.dtype


def test_compiled_training_gives_the_hosts_gradients_b8():
    for name, given in (("dv", None), ("bshd", MASKS["empty rows"]())):
        operand = operands(name)
        before = gradients(*operand, given)
        with rapt.torch.install():
            function = torch.compile(F.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
            args = [t.detach().clone().requires_grad_() for t in operand]
            out = function(*args, given)
            out.square().sum().backward()
        for a, b in zip([out] + [t.grad for t in args], before):
            torch.testing.assert_close(a, b)


def test_gradcheck_through_install(installed):
    q, k, v = (rand(1, 2, n, 4, dtype=torch.float64).requires_grad_() for n in (3, 4, 4))
    assert torch.autograd.gradcheck(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), (q, k, v))
    assert torch.autograd.gradcheck(F.scaled_dot_product_attention, (q, k, v[..., :3].detach().requires_grad_()))


def test_dropout_stays_the_hosts_x5(installed):
    q, k, v = operands("bhsd")
    torch.manual_seed(1)
    out, n = counted(F.scaled_dot_product_attention, q, k, v, dropout_p=0.5)
    assert n == 0 and "DROPOUT" in rapt.last_report().codes("cpu.scalar")
    rapt.torch.remove()
    torch.manual_seed(1)
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


def test_float64_is_the_hosts_with_its_own_lse_n1(installed):
    q, k, v = (t.double() for t in operands("bhsd"))
    out, n = counted(F.scaled_dot_product_attention, q, k, v)
    assert n == 0 and rapt.last_report().row.startswith("torch.")
    lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[1]
    assert lse.dtype == torch.float64


# ---- Preferences, reports ----

def test_scopes_hold_for_the_hosts_call_d9(installed):
    q, k, v = operands("bhsd")
    with rapt.policy(forbid="cpu,ref"):
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 0
        assert rapt.last_report().row.startswith("torch.")
    with rapt.policy(require="cpu"):
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
        with pytest.raises(RuntimeError, match="GRAD"):
            F.scaled_dot_product_attention(q.clone().requires_grad_(), k, v)
        with pytest.raises(rapt.RefusedError):
            F.scaled_dot_product_attention(q.clone().requires_grad_(), k, v[..., :8])
    assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1


# ---- In and out ----

def test_all_or_nothing_and_back_to_the_hosts_own():
    q, k, v = operands("dv")
    host, tag = F.scaled_dot_product_attention(q, k, v), torch.compiler.config.cache_key_tag
    with rapt.torch.install() as handle:
        assert rapt.torch.install() is not handle               # a second one takes nothing out
        rapt.torch.install().remove()
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
        assert torch.compiler.config.cache_key_tag != tag
    out, n = counted(F.scaled_dot_product_attention, q, k, v)
    assert n == 0 and torch.equal(out, host) and torch.compiler.config.cache_key_tag == tag
    assert counted(F.scaled_dot_product_attention, q, k, k)[1] == 0
    rapt.torch.remove()
    other = torch.library.Library("aten", "IMPL")
    other.impl("_scaled_dot_product_attention_math", lambda *a, **k: None, "CPU")
    try:
        with pytest.raises(RuntimeError, match="another library"):
            rapt.torch.install()
    finally:
        other._destroy()
    assert counted(F.scaled_dot_product_attention, q, k, k)[1] == 0 and torch.compiler.config.cache_key_tag == tag


def test_a_handle_takes_out_what_it_has_put_in_and_nothing_later():
    q, k, v = operands("bhsd")
    old = rapt.torch.install()
    rapt.torch.remove()
    with rapt.torch.install():
        old.remove()
        assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 1
    assert counted(F.scaled_dot_product_attention, q, k, v)[1] == 0


def test_an_exception_inside_the_block_takes_it_out():
    with pytest.raises(KeyError), rapt.torch.install():
        raise KeyError
    assert counted(F.scaled_dot_product_attention, *operands("bhsd"))[1] == 0


@pytest.mark.parametrize("name", ["bhsd", "dv", "rank 3", "mqa"])
def test_install_and_remove_change_the_next_call_of_a_compiled_function(name):
    q, k, v = operands(name)
    function = torch.compile(F.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    counts = [counted(function, q, k, v)[1]]
    for _ in range(2):
        with rapt.torch.install():
            counts.append(counted(function, q, k, v)[1])
        counts.append(counted(function, q, k, v)[1])
    assert counts == [0, 1, 0, 1, 0]


def test_compiled_calls_are_whole_and_dynamic(installed):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), fullgraph=True,
                             dynamic=True, backend=counter)
    for n in (9, 17):
        for dv in (16, 24):
            q, k, v, m = rand(2, 4, n, 16), rand(2, 4, n + 2, 16), rand(2, 4, n + 2, dv), torch.rand(n, n + 2) > 0.2
            out, ran = counted(function, q, k, v, m)
            assert ran == 1 and torch.equal(out, F.scaled_dot_product_attention(q, k, v, m))
    with torch.autocast("cpu"):
        out, ran = counted(function, q, k, v, m)
        assert ran == 1 and out.dtype == torch.bfloat16
    with torch.inference_mode():
        assert counted(function, q, k, v, m)[1] == 1


def test_export_runs_through_rapt(installed):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    q, k, v = operands("bhsd")
    program = torch.export.export(Block(), (q, k, v))
    assert counted(program.module(), q, k, v)[1] == 1


def test_threads_and_a_forked_child_p10(installed):
    q, k, v = rand(2, 4, 65, 64), rand(2, 4, 65, 64), rand(2, 4, 65, 64)
    want, wrong = F.scaled_dot_product_attention(q, k, v), []

    def work():
        for _ in range(20):
            if not torch.equal(F.scaled_dot_product_attention(q, k, v), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(F.scaled_dot_product_attention(q, k, v), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_caches_of_inductor_keep_the_two_apart(tmp_path, monkeypatch):
    """The caches on disk do not look at overrides: what was compiled without rapt must not serve with it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    q, k, v = operands("dv")
    function = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), fullgraph=True)
    counts = [counted(function, q, k, v)[1]]
    with rapt.torch.install():
        counts.append(counted(function, q, k, v)[1])
    assert counts == [0, 1] and any(tmp_path.iterdir())
