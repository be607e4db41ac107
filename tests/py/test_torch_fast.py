# SPDX-License-Identifier: Apache-2.0
"""The short way of rapt.torch.sdpa: what it takes, and everything that must keep it from a call (P8, D12)."""

import asyncio
import resource
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _rapt  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

sdpa = rapt.torch.sdpa


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def rand(*shape):
    return torch.rand(shape) * 2 - 1


def short(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    """The result of the short way alone, None where it leaves the call to the long one."""
    return _rapt.known_call(rapt.torch.context._handle, query, key, value, attn_mask, dropout_p, is_causal, keywords)


def full(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    return rapt.torch._in_full(None, query, key, value, attn_mask, dropout_p, is_causal, keywords)


def plain_calls():
    x, y = rand(2, 4, 6, 8), rand(2, 4, 9, 8)
    packed = rand(2, 6, 4, 8).transpose(1, 2)
    one = rand(1, 1, 1, 64)
    mask = torch.rand(6, 9) < 0.7
    yield (x, x, x), {}
    yield (x, y, y), {"is_causal": True}
    yield (packed, y, rand(2, 4, 9, 5)), {}
    yield (packed.bfloat16(),) * 3, {}
    yield (x.half(),) * 3, {"is_causal": True, "scale": 0.25}
    yield (x, y, y, mask), {}
    yield (x, y, y, mask.expand(2, 1, 6, 9)), {"scale": None, "enable_gqa": False}
    yield (x, y, y, rand(4, 6, 9)), {"scale": -0.5}
    yield (x, y[:, :2], y[:, :2]), {"enable_gqa": True}
    yield (x, y[:, :1], y[:, :1]), {}
    yield (x[0], y[0], y[0], mask), {}
    yield (torch.nn.Parameter(x, requires_grad=False), y, y), {}
    yield (one, one, one), {}
    yield (x[:, :, :0], y, y), {}
    yield (x, y[:, :, :0], y[:, :, :0]), {}


def test_a_plain_call_that_is_known_takes_the_short_way_p8():
    for args, keywords in plain_calls():
        want = full(*args, **keywords)
        report = rapt.last_report()
        sdpa(*args, **keywords)
        before = rapt.torch.context.entered()
        got = short(*args, **keywords)
        assert got is not None, (keywords, [t.shape for t in args])
        assert torch.equal(got, want) and got.stride() == want.stride() and got.dtype is want.dtype
        assert type(got) is torch.Tensor and not got.requires_grad and got.is_contiguous() == want.is_contiguous()
        assert rapt.last_report().json_text == report.json_text and str(rapt.last_report()) == str(report)
        after = rapt.torch.context.entered()
        assert {row: after[row] - before[row] for row in after if after[row] != before[row]} == {report.row: 1}


def test_the_short_way_comes_first(monkeypatch):
    x = rand(1, 2, 5, 8)
    want = sdpa(x, x, x)

    def long_way(*args):
        raise AssertionError("the long way was taken")

    monkeypatch.setattr(rapt.torch, "_key", long_way)
    with torch.inference_mode():
        inside = sdpa(x, x, x)
        assert inside.is_inference() and torch.equal(sdpa(inside, x, x), short(inside, x, x))
    with torch.no_grad():
        assert torch.equal(sdpa(x, x, x), want) and torch.equal(inside, want)
    assert torch.equal(sdpa(x, x, x), want) and torch.equal(sdpa(x, x, x, scale=None, enable_gqa=False), want)
    with pytest.raises(AssertionError, match="long way"):
        sdpa(x, x, x, window=(1, 1))


# ---- What keeps it from a call ----

def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))
    return Mode()


def function_mode():
    return torch.device("cpu")


def dual_level():
    return torch.autograd.forward_ad.dual_level()


def below_autograd():
    return torch._C._AutoDispatchBelowAutograd()


@pytest.mark.parametrize("state", [
    autocast, dispatch_mode, function_mode, dual_level, below_autograd, lambda: sdpa_kernel(SDPBackend.MATH),
    lambda: rapt.policy(prefer="ref"), lambda: rapt.policy(memory_limit=1 << 20)],
    ids=["autocast", "dispatch", "function", "forward-ad", "below-autograd", "sdpa_kernel", "policy", "limit"])
def test_a_state_that_wants_a_say_has_it_d12(state):
    x = rand(1, 2, 5, 8)
    sdpa(x, x, x)
    assert short(x, x, x) is not None
    with state():
        assert short(x, x, x) is None
    assert short(x, x, x) is not None


def test_states_change_known_calls_at_once_d12():
    x = rand(1, 2, 5, 8)
    for _ in range(2):
        assert sdpa(x, x, x).dtype is torch.float32
    with autocast():
        assert sdpa(x, x, x).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert sdpa(x, x, x).dtype is torch.float32
    with rapt.policy(require="ref"):
        sdpa(x, x, x)
        assert rapt.last_report().row == "ref"
    with sdpa_kernel(SDPBackend.MATH):
        sdpa(x, x, x)
        assert rapt.last_report().row == "torch.sdpa"
    mapped = rand(3, 1, 2, 5, 8)
    assert torch.equal(torch.func.vmap(lambda t: sdpa(t, t, t))(mapped)[2], sdpa(*(mapped[2],) * 3))
    with warnings.catch_warnings(), pytest.raises(rapt.ArgumentError, match="torch.jit.trace"):
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda t: sdpa(t, t, t), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward AD"):
            sdpa(dual, x, x)                                    # the host's own answer
    sdpa(x, x, x)
    assert rapt.last_report().row.startswith("cpu.")


def test_a_gradient_wanted_by_any_operand_keeps_its_graph_d28():
    for at in range(4):
        args = [rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(5, 5)]
        sdpa(*args)
        assert short(*args) is not None
        args[at].requires_grad_()
        assert short(*args) is None and sdpa(*args).requires_grad
        with torch.no_grad():
            assert short(*args) is not None and not sdpa(*args).requires_grad


def test_only_plain_tensors_take_it_d12():
    x = rand(1, 2, 5, 8)
    sdpa(x, x, x)
    sdpa(x, x, x, torch.ones(5, 5, dtype=torch.bool))

    class Sub(torch.Tensor):
        pass

    class Rank(torch.nn.Parameter):
        pass

    negative = torch.complex(rand(1, 2, 5, 8), x).conj().imag.clone(memory_format=torch.preserve_format)
    odd = [x.as_subclass(Sub), Rank(x, requires_grad=False), x.to("meta"), x.to_sparse(), torch._neg_view(x),
           x.to(torch.complex64), x.numpy(), None, 1.0, torch._efficientzerotensor((1, 2, 5, 8)), x.to_mkldnn()]
    for other in odd:
        for args in ((other, x, x), (x, other, x), (x, x, other)):
            assert short(*args) is None, type(other)
        if other is not None:
            assert short(x, x, x, other) is None
    assert torch.equal(sdpa(torch._neg_view(x), x, x), sdpa(-x, x, x))
    assert negative.is_neg() is False and short(negative, x, x) is not None


def test_arguments_of_other_types_take_the_long_way_e6():
    x, many = rand(1, 2, 5, 8), rand(1, 4, 5, 8)
    sdpa(x, x, x, is_causal=True)
    sdpa(x, x, x, scale=1.0)
    sdpa(many, x, x, enable_gqa=True)
    for keywords in ({"is_causal": 1}, {"dropout_p": 0}, {"dropout_p": 0.5}, {"scale": 1}, {"enable_gqa": 0},
                     {"window": (1, 1)}, {"causal": True}, {"scale": 1.0, "require": "cpu"}, {"nonsense": None},
                     {"is_causal": torch.tensor(True)}):
        assert short(x, x, x, **keywords) is None, keywords
    for other in (x[0, 0], x[None], x[0]):
        want = sdpa(other, other, other)
        got = short(other, other, other)
        assert (got is None) == (other.dim() in (2, 5)) and (got is None or torch.equal(got, want))
    for mask in (torch.ones(5, dtype=torch.bool), torch.tensor(True), torch.ones(1, 1, 1, 5, 5, dtype=torch.bool)):
        assert short(x, x, x, mask) is None                     # nothing like it has run
    assert short(many, x, x, enable_gqa=True) is not None
    assert short(many, x, x) is None                            # H4: without enable_gqa the heads must fit
    with pytest.raises(rapt.ArgumentError, match="enable_gqa is False"):
        sdpa(many, x, x)


def test_an_error_is_the_one_of_the_long_way_e3():
    x = rand(1, 2, 5, 8)
    sdpa(x, x, x)
    for args in ((x, x.bfloat16(), x), (x, x[..., :4], x), (x, x[:, :, :3], x), (x[0], x, x), (x, x, x, rand(3, 3))):
        with pytest.raises(rapt.ArgumentError) as long:
            full(*args)
        with pytest.raises(rapt.ArgumentError) as caught:
            sdpa(*args)
        assert str(caught.value) == str(long.value)


# ---- Reports, lives, threads ----

def test_the_report_is_that_of_the_task_r1():
    x, y = rand(1, 2, 5, 8), rand(1, 2, 7, 8)
    sdpa(x, x, x), sdpa(y, y, y)

    async def ask(t, wait):
        sdpa(t, t, t)
        await asyncio.sleep(wait)
        return rapt.last_report().json["problem"]

    async def both():
        return await asyncio.gather(ask(x, 0.02), ask(y, 0.01))

    first, second = asyncio.run(both())
    assert "q5" in first and "q7" in second


def test_the_result_is_released_and_owned_by_the_caller():
    q, k = rand(1, 1, 4096, 64), rand(1, 1, 1, 64)              # a MiB each
    for _ in range(2):
        out = sdpa(q, k, k)
    assert torch.equal(out, k.expand_as(q)) and sys.getrefcount(out) == 2
    watch = weakref.ref(out)
    del out
    assert watch() is None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        assert short(q, k, k) is not None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_many_problems_in_many_threads_p8():
    """More problems than are kept, so that the table is emptied while others compute."""
    failed = []

    def work(start):
        try:
            for n in range(start, start + 300, 2):
                x = torch.ones(1, 1, 1 + n % 290, 8) * n
                for _ in range(2):
                    out = sdpa(x, x, x)
                    assert out.shape == x.shape and torch.allclose(out, x, rtol=1e-5)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1, 150, 151)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# ---- Installed: calls that the host's general operator runs are decided once ----

def test_a_hosts_call_is_decided_once_and_heard_again_where_something_changed_p8(monkeypatch):
    decided, real = [], rapt.torch._decided
    monkeypatch.setattr(rapt.torch, "_decided", lambda *args: decided.append(1) or real(*args))
    x = rand(1, 2, 5, 24).requires_grad_()
    narrow = rand(1, 2, 5, 3)
    with rapt.torch.install():
        for _ in range(3):
            before = rapt.torch.context.entered()["torch.sdpa"]
            assert F.scaled_dot_product_attention(x, x, narrow).requires_grad
            assert str(rapt.last_report()).startswith("torch.sdpa ran")
            assert rapt.torch.context.entered()["torch.sdpa"] == before + 1
        assert len(decided) == 1
        F.scaled_dot_product_attention(x, x, narrow, scale=0.5)
        assert len(decided) == 2
        for _ in range(2):
            with rapt.policy(require="cpu"), pytest.raises(rapt.RefusedError):
                F.scaled_dot_product_attention(x, x, narrow)
        F.scaled_dot_product_attention(x, x, narrow)


# ---- What it stands on ----

def run(code):
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)


def test_it_is_learnt_whatever_is_on_at_import():
    done = run("import torch\n"
               "with torch.autocast('cpu'), torch.inference_mode(), torch.device('meta'):\n"
               "    import rapt.torch\n"
               "x = torch.ones(1, 1, 2, 4)\n"
               "rapt.torch.sdpa(x, x, x)\n"
               "call = lambda: rapt._rapt.known_call(rapt.torch.context._handle, x, x, x, None, 0.0, False, {})\n"
               "print(call() is not None)\n"
               "with torch.autocast('cpu'):\n"
               "    print(call())\n"
               "with torch.inference_mode():\n"
               "    print(call() is not None)\n")
    assert done.stdout.split() == ["True", "None", "True"], done.stderr


@pytest.mark.parametrize("change, said", [
    ("del torch._C._dispatch_keys", "_dispatch_keys"),
    ("torch._C._dispatch_keys = lambda t: type('Keys', (), {'raw_repr': lambda self: 2**63 - 25})()",
     "the inside of this version's c10::TensorImpl"),
    ("torch._C._dispatch_keys = lambda t: None", "raw_repr"), ("torch._C._dispatch_keys = lambda t: 1 / 0", "zero")])
def test_where_the_inside_of_torch_is_another_only_the_short_way_is_lost(change, said):
    done = run("import logging, sys, torch\nlogging.basicConfig(stream=sys.stdout)\n"
               f"{change}\n"
               "import rapt.torch\n"
               "x = torch.rand(1, 2, 5, 8)\n"
               "for n in range(3):\n"
               "    out = rapt.torch.sdpa(x, x, x)\n"
               "call = rapt._rapt.known_call(rapt.torch.context._handle, x, x, x, None, 0.0, False, {})\n"
               "want = torch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
               "print(call, torch.allclose(out, want, atol=1e-6), rapt.last_report().row.startswith('cpu.'))\n")
    line, result = done.stdout.splitlines()
    assert line.startswith(f"WARNING:rapt:rapt.torch, PyTorch {torch.__version__}: ") and said in line, done.stderr
    assert result == "None True True" and not done.stderr


def test_what_hangs_on_a_report_may_call_while_the_table_is_emptied():
    """Were the table seen half emptied, it would fill up, and looking into a full one never ends."""
    calls = []

    class Hanging:
        def __del__(self):
            calls.append(1)
            for n in range(1, 280):
                x = rand(1, 1, n, 8)
                sdpa(x, x, x)

    seen = rapt.torch.context.seen
    for n in range(1, 1200):
        x = rand(1, 1, 2, n)
        sdpa(x, x, x)
        if n % 100 == 1:
            rapt.last_report().notes = (Hanging(),)
        seen.clear()                                            # so that the table alone holds the report
    assert len(calls) > 3 and torch.equal(sdpa(x, x, x), full(x, x, x))
