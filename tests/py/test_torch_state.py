# SPDX-License-Identifier: Apache-2.0
"""rapt.torch among the host's own machinery: compilers, tracers, subclasses, switches, tensors without memory, calls that
are known again (contract sections 7, 10 and 11)."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

sdpa = rapt.torch.sdpa


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def rand(*shape):
    return torch.rand(shape) * 2 - 1


def ran():
    return rapt.last_report().row


def own(row):
    return row.startswith("cpu.") or row == "ref"


# ---- Compilers and tracers: right, or refused by name (D12, D19) ----

@pytest.mark.filterwarnings("ignore")
def test_a_compiled_call_is_right_d19():
    def block(x):
        y = sdpa(x * 2, x, x, is_causal=True)
        return y + sdpa(y, x, x, scale=0.5)

    x = rand(1, 2, 5, 8)
    compiled = torch.compile(block, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), block(x))
        assert own(ran())
        assert torch.equal(compiled(x[:, :, :3]), block(x[:, :, :3]))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(a).sum().backward()
    block(b).sum().backward()
    assert torch.allclose(a.grad, b.grad)
    with torch.autocast("cpu"), torch.no_grad():
        assert compiled(x).dtype is block(x).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_question_is_right_d19():
    x = rand(1, 2, 5, 8)
    assert torch.compile(lambda x: rapt.torch.explain(x, x, x).row, backend="eager")(x) == rapt.torch.explain(x, x, x).row


def test_tracers_of_values_are_refused_by_name_d12():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = rand(1, 2, 5, 8)
    with torch.no_grad():
        sdpa(x, x, x)                                           # known, and still refused below
        with pytest.raises(rapt.ArgumentError, match="make_fx"):
            make_fx(lambda x: sdpa(x, x, x))(x)
        with warnings.catch_warnings(), pytest.raises(rapt.ArgumentError, match="torch.jit.trace"):
            warnings.simplefilter("ignore")
            torch.jit.trace(lambda x: sdpa(x, x, x), (x,))
        with pytest.raises(rapt.ArgumentError, match="make_fx"):
            make_fx(torch.func.vmap(lambda x: sdpa(x, x, x)))(rand(2, 1, 2, 5, 8))


def test_importing_brings_no_compiler_along_d22():
    code = ("import sys, torch, rapt.torch; x = torch.ones(1, 1, 2, 4); rapt.torch.sdpa(x, x, x, is_causal=True); "
            "rapt.torch.sdpa(x, x, x, is_causal=True); print('torch._dynamo' in sys.modules)")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_dispatch_mode_sees_the_hosts_operator_d28():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = rand(1, 2, 5, 8)
    sdpa(x, x, x)
    assert own(ran())
    with Watch():
        out = sdpa(x, x, x)
    assert ran() == "torch.sdpa" and any("scaled_dot_product" in name for name in seen)
    assert torch.equal(out, F.scaled_dot_product_attention(x, x, x))


# ---- Subclasses and tensors without memory of their own ----

def test_subclasses_are_asked_first_d12():
    seen = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append((func, len(args), kwargs))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = rand(1, 2, 5, 8)
    plain = sdpa(x, x, x, scale=0.5)
    for call in (lambda t: sdpa(t, x, x, scale=0.5), lambda t: sdpa(x, x, t, scale=0.5)):
        seen.clear()
        out = call(x.as_subclass(Logged))
        assert [entry[0] for entry in seen if entry[0] is sdpa] == [sdpa] and type(out) is Logged
        assert torch.equal(out.as_subclass(torch.Tensor), plain)
    seen.clear()
    sdpa(x, x, x, bias=torch.zeros(5, 5).as_subclass(Logged))
    assert sdpa in [entry[0] for entry in seen]


def test_function_modes_are_asked_first_d12():
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return "mine" if func is sdpa else func(*args, **(kwargs or {}))

    x = rand(1, 2, 5, 8)
    with torch.device("cpu"):
        assert torch.equal(sdpa(x, x, x), sdpa(x, x, x))
    with Mode():
        assert sdpa(x, x, x) == "mine"


def fake():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.empty(1, 2, 5, 8)


def wrapper():
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(rand(1, 2, 5, 8), rand(1, 2, 5, 8))


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([rand(2, 3, 8), rand(2, 4, 8)], layout=layout)


def left_over():
    kept = []
    torch.func.grad(lambda t: kept.append(t) or t.sum())(rand(1, 2, 5, 8))
    return kept[0]


@pytest.mark.parametrize("make, says", [
    (lambda: torch.empty(1, 2, 5, 8, device="meta"), "on meta, without data"),
    (fake, "a FakeTensor, which has no memory"),
    (wrapper, "a TwoTensor, which has no memory"),
    (lambda: nested(torch.strided), "a nested tensor; pad it"),
    (lambda: nested(torch.jagged), "a nested tensor; pad it"),
    (lambda: rand(1, 2, 5, 8).to_sparse(), "sparse_coo; a dense tensor is needed: .to_dense"),
    (lambda: rand(1, 2, 5, 8).to_mkldnn(), "_mkldnn; a dense tensor is needed"),
    (lambda: rand(1, 2, 5, 8).to(torch.complex64), "complex64; fp16"),
    (left_over, "a tensor of a function transform that has ended"),
], ids=["meta", "fake", "wrapper", "nested", "jagged", "sparse", "mkldnn", "complex", "left over"])
def test_memory_that_cannot_be_read_is_refused_by_name_e3(make, says):
    x, odd = rand(1, 2, 5, 8), make()
    for arguments, name in (((odd, x, x), "query"), ((x, odd, x), "key"), ((x, x, odd), "value"),
                            ((x, x, x, odd), "attn_mask")):
        with pytest.raises(rapt.ArgumentError) as caught:
            sdpa(*arguments)
        assert f"{name} is {says}" in str(caught.value) and caught.value.field == name


def test_arrays_of_numpy_are_no_tensors_e3():
    x = rand(1, 2, 5, 8)
    for keywords in ({"attn_mask": np.ones((5, 5), bool)}, {"mask": np.ones((5, 5), bool)}, {"bias": np.zeros((5, 5))}):
        (name,) = keywords
        with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, not ndarray; torch.from_numpy"):
            sdpa(x, x, x, **keywords)


# ---- Arguments ----

@pytest.mark.parametrize("name", ["is_causal", "enable_gqa", "return_lse", "strict", "mixed_kv"])
def test_switches_are_bool_e6(name):
    x = rand(1, 2, 5, 8)
    for value in ("br", "no", 1, 0.0, torch.tensor(True)):
        with pytest.raises(rapt.ArgumentError, match=f"^UNKNOWN_FIELD: {name} is .*True or False is needed"):
            sdpa(x, x, x, **{name: value})
    sdpa(x, x, x, **{name: np.True_})
    sdpa(x, x, x, **{name: np.False_})


def test_numbers_are_numbers_e6():
    x = rand(1, 2, 5, 8)
    for name, value in (("scale", "0.5"), ("dropout_p", "x"), ("softcap", True), ("memory_limit", 1e9), ("verify", 1.5)):
        with pytest.raises(rapt.ArgumentError) as caught:
            sdpa(x, x, x, **{name: value})
        assert caught.value.field == name and caught.value.got == repr(value)
    assert torch.equal(sdpa(x, x, x, scale=np.float32(0.5)), sdpa(x, x, x, scale=0.5))


def test_ranks_are_named_as_they_are_here_s3():
    x = rand(1, 2, 5, 8)
    with pytest.raises(rapt.ArgumentError, match="^RANK: query is of 1 axes; 2 to 5 are needed"):
        sdpa(rand(8), rand(8), rand(8))
    with pytest.raises(rapt.ArgumentError, match="^RANK: key is of 3 axes; query has 4"):
        sdpa(x, x[0], x)


def test_a_causal_bias_of_another_size_is_refused_h4():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k = rand(1, 2, 4, 8), rand(1, 2, 7, 8)
    assert torch.equal(sdpa(q, k, k, causal_lower_right(4, 7)), sdpa(q, k, k, causal="br"))
    for bias in (causal_lower_right(4, 6), causal_upper_left(5, 7), causal_upper_left(7, 4)):
        with pytest.raises(rapt.ArgumentError, match="^SHAPE: attn_mask is a causal bias of .*; query and key make it 4x7"):
            sdpa(q, k, k, bias)


# ---- Gradients ----

def test_no_gradient_is_dropped_through_lse_b7():
    x = rand(1, 2, 5, 8).requires_grad_()
    for keywords in ({}, {"require": "torch.flash_cpu"}):
        with pytest.raises(rapt.ArgumentError, match="^GRAD: return_lse"):
            sdpa(x, x, x, return_lse=True, **keywords)
    with torch.no_grad():
        assert len(sdpa(x, x, x, return_lse=True)) == 2


@pytest.mark.parametrize("given", ["mask", "bias", "both", "none"])
@pytest.mark.parametrize("position", [{"is_causal": True}, {"causal": "br"}, {"window": (2, 1), "align": "off:1"}])
def test_one_mask_for_the_hosts_operator_d28_m13(given, position):
    q, k, v = (rand(2, 2, n, 8).requires_grad_() for n in (5, 7, 7))
    mask = torch.rand(1, 2, 5, 7) < 0.7
    bias = rand(5, 7).requires_grad_()
    keywords = {name: value for name, value in (("mask", mask), ("bias", bias)) if given in (name, "both")}
    if given == "none" and position == {"is_causal": True}:
        keywords["mask"] = mask
    told = rapt.torch.explain(q, k, v, **position, **keywords)
    out = sdpa(q, k, v, **position, **keywords)
    report = rapt.last_report()
    assert report.row == told.row == "torch.sdpa" and report.notes == told.notes
    assert "one " in report.notes[0] and report.notes[0] in str(report) and "causal" not in report.json["problem"]
    off = {"is_causal": 0, "causal": 2, "window": 1}[next(iter(position))]
    oracle = {"causal": "window" not in position, "off": off, **({"window": (2, 1)} if "window" in position else {})}
    if "mask" in keywords:
        oracle["mask"] = mask.numpy()
    if "bias" in keywords:
        oracle["bias"] = bias.detach().numpy()
    o, _, bound, _ = oracle_np.attention(*(t.detach().double().numpy() for t in (q, k, v)), **oracle)
    oracle_np.check(out.detach().double().numpy(), o, bound)
    grads = torch.autograd.grad(out.sum(), [q, k, v] + [bias] * ("bias" in keywords))
    distance = torch.arange(7) - torch.arange(5)[:, None] - off
    seen = (distance >= -2) & (distance <= 1) if "window" in position else distance <= 0
    full = (seen & mask if "mask" in keywords else seen)
    full = bias.masked_fill(~full, -torch.inf) if "bias" in keywords else full
    want = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, full).sum(),
                               [q, k, v] + [bias] * ("bias" in keywords))
    assert all(torch.equal(a, b) for a, b in zip(grads, want))


@pytest.mark.parametrize("corner", ["tl", "br"])
def test_a_window_with_a_right_side_of_0_is_causal_on_every_route_m6(corner):
    """The core counts it as causal, so rows without windows of their own are handed such calls."""
    q, k, v = rand(2, 2, 7, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 8)
    o, _, bound, _ = oracle_np.attention(*(t.double().numpy() for t in (q, k, v)), causal=True)

    def call(q, k, v, **keywords):
        return sdpa(q, k, v, window=(-1, 0), align=corner, **keywords)

    def right(out):
        assert rapt.last_report().row.startswith("torch."), rapt.last_report()
        oracle_np.check(out.detach().double().numpy(), o, 2 * bound)

    for row in ("torch.sdpa", "torch.math", "torch.flash_cpu"):
        right(call(q, k, v, require=row))
    compiled = torch.compile(call, backend="eager")
    with rapt.policy(forbid="cpu,ref"):
        right(compiled(q, k, v))
        right(torch.func.vmap(call)(q[None], k[None], v[None])[0])
    right(torch.func.vjp(call, q, k, v)[0])
    wanted = [t.clone().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(F.scaled_dot_product_attention(*wanted, is_causal=True).sum(), wanted)
    for function, keywords in ((call, {}), (compiled, {}), (compiled, {"memory_limit": 8})):
        out = function(*wanted, **keywords)
        right(out)
        for got, grad in zip(torch.autograd.grad(out.sum(), wanted), want):
            torch.testing.assert_close(got, grad)
    assert torch.equal(call(*wanted, dropout_p=1.0).detach(), torch.zeros_like(q))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_the_hosts_fused_operator_takes_every_rank_by_name_h4(rank):
    x = rand(2, 3, 5, 8)[(0,) * (4 - rank)]
    for mask in (None, torch.rand(5, 5) < 0.9, rand(3, 5, 5) if rank > 2 else rand(5, 5)):
        want, want_lse = sdpa(x, x, x, mask, require="cpu", return_lse=True)
        out, lse = sdpa(x, x, x, mask, require="torch.flash_cpu", return_lse=True)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(lse, want_lse)


@pytest.mark.parametrize("position", [{"causal": "tl"}, {"causal": "tl", "window": (-1, 9)}, {"causal": "tl", "window": (-1, 0)},
                                      {"window": (-1, 0), "align": "tl"}], ids=str)
def test_what_causal_keeps_from_a_row_a_window_that_is_causal_keeps_too_m6(position):
    """The host's fused kernel gives NaN for causal beside a scale below 0."""
    q, k, v = rand(1, 2, 3, 8), rand(1, 2, 16, 8), rand(1, 2, 16, 8)
    want = sdpa(q, k, v, scale=-0.25, require="cpu", **position)
    out = sdpa(q.requires_grad_(), k, v, scale=-0.25, **position)
    assert rapt.last_report().row == "torch.math" and "SCALE" in rapt.last_report().codes("torch.flash_cpu")
    torch.testing.assert_close(out.detach(), want)


def test_the_one_mask_counts_as_memory_d17():
    x = rand(1, 2, 5, 8).requires_grad_()
    with pytest.raises(rapt.RefusedError) as caught:
        sdpa(x, x, x, window=(2, 0), memory_limit=24)
    assert "WINDOW" in caught.value.report.codes("torch.sdpa")
    assert rapt.torch.explain(x, x, x, window=(2, 0), memory_limit=24).status == "REFUSED"
    bias = rand(5, 5)                                           # passed on as it is, it costs nothing
    assert rapt.torch.explain(x, x, x, bias, memory_limit=99).row == "torch.sdpa"
    assert rapt.torch.explain(x, x, x, bias, window=(2, 0), memory_limit=100).row == "torch.sdpa"
    assert rapt.torch.explain(x, x, x, bias, window=(2, 0), memory_limit=99).status == "REFUSED"


# ---- The host's switches ----

def test_sdpa_kernel_math_is_honoured_d12():
    x = rand(1, 2, 33, 8)
    sdpa(x, x, x)
    assert own(ran())
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(2):
            assert torch.equal(sdpa(x, x, x), F.scaled_dot_product_attention(x, x, x))
            assert ran() == "torch.sdpa" and rapt.torch.explain(x, x, x).row == "torch.sdpa"
        with pytest.raises(rapt.RefusedError, match="sdpa_kernel"):
            sdpa(x, x, x, require="cpu")
        with rapt.policy(prefer="cpu"):
            sdpa(x, x, x)
            assert ran() == "torch.sdpa" and "sdpa_kernel and scope" in rapt.last_report().json_text
    sdpa(x, x, x)
    assert own(ran())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        sdpa(x, x, x)
        assert own(ran())


# ---- Reports ----

def test_a_host_row_that_ran_says_so_r1_r3():
    x = rand(1, 2, 5, 8).requires_grad_()
    told = rapt.torch.explain(x, x, x)
    assert str(told).startswith("would choose torch.sdpa")
    before = rapt.torch.context.entered()["torch.sdpa"]
    for n in (1, 2, 3):
        sdpa(x, x, x)
        assert str(rapt.last_report()).startswith("torch.sdpa ran") and rapt.last_report().text.startswith("torch.sdpa ran")
        assert rapt.torch.context.entered()["torch.sdpa"] == before + n
    assert str(told).startswith("would choose torch.sdpa")


def test_reports_and_errors_pickle():
    x = rand(1, 2, 5, 8).requires_grad_()
    sdpa(x, x, x, window=(1, 1))
    report = rapt.last_report()
    copy = pickle.loads(pickle.dumps(report))
    assert (str(copy), copy.text, copy.json_text, copy.row, copy.kernel, copy.status, copy.notes, copy.rows, copy.error) == (
        str(report), report.text, report.json_text, report.row, report.kernel, report.status, report.notes, report.rows,
        report.error)
    assert str(pickle.loads(pickle.dumps(copy))) == str(report)
    for keywords in ({"require": "fa2"}, {"scale": float("nan")}, {"is_causal": 3}):
        with pytest.raises((rapt.RefusedError, rapt.ArgumentError)) as caught:
            sdpa(x, x, x, **keywords)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value) and str(again) == str(caught.value)
        assert (again.report is None) == (caught.value.report is None)
        assert again.report is None or again.report.json_text == caught.value.report.json_text
        if isinstance(again, rapt.ArgumentError):
            assert (again.code, again.field, again.got, again.want) == (
                caught.value.code, caught.value.field, caught.value.got, caught.value.want)


def test_tensors_on_a_device_count_as_finite_and_those_on_a_cpu_do_not_h3():
    q = torch.rand(1, 2, 4, 64)
    assert rapt.torch.explain(q, q, q, facts="cuda cc=9.0 torch=2.13.0 cuda=12.8").json["assume_finite"] is True
    assert rapt.torch.explain(q, q, q).json["assume_finite"] is False
    rapt.torch.sdpa(q, q, q)
    assert rapt.last_report().json["assume_finite"] is False


def test_questions_about_a_machine_that_is_not_here_d20():
    x = rand(1, 2, 64, 64).half()
    told = rapt.torch.explain(x, x, x, facts="cuda cc=9.0 flash-attn=2.8.3 flash-attn.cc=9.0 cuda=12.8", prefer="fa2")
    assert told.row == "fa2" and told.json["hypothetical"] is True
    assert rapt.torch.explain(x, x, x, device="cuda", facts="cuda cc=9.0").row.startswith("torch.")
    assert "DEVICE" in rapt.torch.explain(x, x, x, device="cuda").codes("cpu.scalar")       # this machine's facts
    assert rapt.torch.explain(x, x, x, facts="cpu isa=avx2").row == "cpu.avx2"
    with torch.autocast("cpu"):                                 # A12: the type's own policy
        assert rapt.torch.explain(x.float(), x, x, device="cuda").status == "ARG"
        assert rapt.torch.explain(x.float(), x, x).status == "OK"
    for keywords, words in (({"device": "cuda:sm90"}, 'facts="cuda cc=9.0"'), ({"device": 1.5}, "a device of torch"),
                            ({"device": "cpu", "facts": "cuda cc=9.0"}, "facts speak of cuda"),
                            ({"facts": ""}, "a facts string"), ({"facts": 3}, "a facts string"),
                            ({"facts": "sm90"}, "device kind")):
        with pytest.raises(rapt.ArgumentError, match=words):
            rapt.torch.explain(x, x, x, **keywords)
    a = x.numpy()
    told = rapt.explain(a, a, a, facts="cuda cc=9.0 torch=2.13.0", mask=np.ones(64, bool))
    assert told.row.startswith("torch.") and "dev=cuda" in told.json["problem"]
    with pytest.raises(rapt.ArgumentError, match="^SYNTAX"):
        rapt.explain(a, a, a, facts="cuda cc=nine")


# ---- Calls that are known again: the cache changes speed only (P8) ----

def variants():
    x = rand(2, 2, 6, 8)
    packed = rand(2, 6, 2, 8).transpose(1, 2)
    mask = torch.rand(6, 6) < 0.7
    yield lambda: ((x, x, x), {})
    yield lambda: ((x, x, x), {"is_causal": True})
    yield lambda: ((packed, x, x), {})
    yield lambda: ((x, packed, x), {"return_lse": True})
    yield lambda: ((x, x, x, mask), {})
    yield lambda: ((x, x, x, mask.float()), {"scale": 0.5})
    yield lambda: ((x, x, x, mask.float()), {"scale": -0.5})
    yield lambda: ((x, x, x), {"window": (1, 0)})
    yield lambda: ((x, x, x), {"window": (0, 1)})
    yield lambda: ((x[0], x[0], x[0]), {})
    yield lambda: ((x[0, 0], x[0, 0], x[0, 0]), {"return_lse": True})
    yield lambda: ((x[None], x[None], x[None]), {})
    yield lambda: ((x.double(), x.double(), x.double()), {})
    yield lambda: ((x, x, x), {"require": "ref"})
    yield lambda: ((x, x[:, :1], x[:, :1]), {"enable_gqa": True})
    yield lambda: ((x, x[:, :1], x[:, :1]), {})


def made_anew(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **keywords):
    return rapt.torch._in_full(None, query, key, value, attn_mask, dropout_p, is_causal, keywords)


def test_a_known_call_gives_the_same_bits_and_report_p8_r1():
    for rounds in range(3):
        torch.manual_seed(3)
        for make in variants():
            args, keywords = make()
            context = rapt.torch.context
            before = context.entered()
            known = sdpa(*args, **keywords)
            report = rapt.last_report()
            after = context.entered()
            assert {row: after[row] - before[row] for row in after if after[row] != before[row]} == {report.row: 1}
            fresh = made_anew(*args, **keywords)
            assert rapt.last_report().json_text == report.json_text and str(rapt.last_report()) == str(report)
            pairs = zip(known, fresh) if isinstance(known, tuple) else ((known, fresh),)
            assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)
            sdpa(*args, **keywords)


def test_what_is_not_the_same_call_is_not_known_again_p8():
    x = rand(1, 2, 6, 8)
    sdpa(x, x, x, is_causal=True, causal=True)
    with pytest.raises(rapt.ArgumentError):
        sdpa(x, x, x, is_causal=1)
    with pytest.raises(rapt.ArgumentError):
        sdpa(x, x, x, is_causal=True, causal=1)
    sdpa(x, x, x, window=(1, 3))
    with pytest.raises(rapt.ArgumentError, match="^WINDOW"):
        sdpa(x, x, x, window=(1.0, 3))
    assert torch.equal(sdpa(x, x, x, window=[1, 3]), sdpa(x, x, x, window=(1, 3)))
    sdpa(x, x, x)
    assert own(ran())
    with rapt.policy(require="ref"):
        sdpa(x, x, x)
        assert ran() == "ref"
    with torch.autocast("cpu"):
        assert sdpa(x, x, x).dtype is torch.bfloat16
    y = x.clone().requires_grad_()
    assert sdpa(y, x, x).requires_grad and ran() == "torch.sdpa"
    assert sdpa(y, x, x).requires_grad                          # known by now
    with torch.no_grad():
        assert not sdpa(y, x, x).requires_grad and own(ran())
    neg, same = torch.complex(x, x).conj().imag, torch.complex(x, x).imag
    sdpa(same, same, same)
    assert neg.is_neg() and neg.stride() == same.stride()
    assert torch.equal(sdpa(neg, neg, neg), sdpa(*(neg.resolve_neg(),) * 3))
    misaligned = torch.frombuffer(bytearray(4 * x.numel() + 2), dtype=torch.uint8)[2:].view(-1)
    with pytest.raises((rapt.ArgumentError, RuntimeError)):
        odd = misaligned.view(torch.float32).view(x.shape)
        sdpa(odd, x, x)


def test_rows_registered_later_are_met_by_known_calls_d4(monkeypatch):
    from rapt import _call, _rapt

    fresh = _call.Context(rapt.torch._register)
    monkeypatch.setattr(rapt.torch, "context", fresh)
    x = rand(1, 2, 4, 8)
    for _ in range(2):
        sdpa(x, x, x)
        assert own(ran())
    calls = []
    row = {"id": "fake.late", "kinds": 1, "dtypes": 1 << 3, "place": 1, "ran_on_hardware": 1, "can": 1 << 22 | 1 << 29}
    _rapt.ctx_register(fresh.handle, "late", [row], lambda *call: calls.append(call) or 0, {}, None)
    sdpa(x, x, x)
    assert len(calls) == 1 and ran() == "fake.late"
    sdpa(x, x, x)
    assert len(calls) == 2 and ran() == "fake.late" and fresh.entered()["fake.late"] == 2
    y = x.clone().requires_grad_()
    for _ in range(2):
        sdpa(y, y, y)
        assert ran() == "torch.sdpa"
    row = {**row, "id": "fake.later", "can": row["can"] | 1 << 25, "display": "later"}
    _rapt.ctx_register(fresh.handle, "later", [row], lambda *call: 0, {}, None)
    with pytest.raises(rapt.BackendError, match="no operator is known for row fake.later"):
        sdpa(y, y, y)                                           # the core's choice now, which has no graph


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_known_call_that_fails_is_an_error_d13(monkeypatch):
    from rapt import _call, _rapt

    fresh = _call.Context(rapt.torch._register)
    monkeypatch.setattr(rapt.torch, "context", fresh)
    answers = [0, 0, 5]
    row = {"id": "fake.frail", "kinds": 1, "dtypes": 1 << 3, "place": 1, "ran_on_hardware": 1, "can": 1 << 22 | 1 << 29}
    _rapt.ctx_register(fresh.handle, "frail", [row], lambda *call: answers.pop(0), {}, None)
    x = rand(1, 2, 4, 8)
    sdpa(x, x, x)
    sdpa(x, x, x)
    with pytest.raises(rapt.BackendError, match="DEVICE_ERROR: fake.frail failed"):
        sdpa(x, x, x)
    assert answers == [] and fresh.entered()["fake.frail"] == 3 # once more, and nothing else


def test_only_so_many_calls_are_kept_p8():
    from rapt import _call

    few = _call.Context()
    for n in range(600):
        few.keep(n, n)
    assert len(few.seen) == 256 and 599 in few.seen and 0 not in few.seen
