# SPDX-License-Identifier: Apache-2.0
"""Sites called as Wan's functions (7.5): every argument on every row, eager and compiled, forward and backward."""

import inspect

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _site_wan  # noqa: E402

FA2 = ("cuda cc=9.0 torch=2.13.0 cuda=12.8 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 flash-attn-3=none "
       "sageattention=2.1.1 triton=3.2.0 xformers=0.0.33 mslk=1.0.0")
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@pytest.fixture
def wan():
    return rapt.torch.attention_site("Wan self attention")


def blnc(*sizes, dtype=torch.float32, seed=3):
    """One tensor a size, values in [-1, 1) that the dtype has exactly."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(size, generator=generator) * 2 - 1).to(dtype) for size in sizes]


def expected(q, k, v, half, q_len=None, k_len=None, causal=False, window=(-1, -1), scale=None, out=None):
    """Wan's function in fp64: (o, bound) as [B,L,N,C], for operands that are of the half dtype by now."""
    q, k, v = (t.detach().to(half).double().numpy().swapaxes(1, 2) for t in (q, k, v))
    lq = np.full(len(q), q.shape[2]) if q_len is None else np.asarray(q_len)
    lk = np.full(len(k), k.shape[2]) if k_len is None else np.asarray(k_len)
    o, _, bound, _ = oracle_np.attention(q, k, v, dtype=NAMES[half], off=lk - lq, causal=causal, window=window, q_len=lq,
                                         kv_len=lk, scale=scale, out_dtype=NAMES[out or half])
    return o.swapaxes(1, 2), bound.swapaxes(1, 2)


def close(got, q, k, v, half=torch.bfloat16, **options):
    want, bound = expected(q, k, v, half, **options)
    oracle_np.check(got.detach().double().numpy(), want, bound)


def row():
    return rapt.last_report().row


# ---- Wan: what each argument means, on every row ----

ROWS = {"own": dict(forbid="torch"), "host": dict(require="torch"), "reference": dict(require="ref")}


@pytest.fixture(params=ROWS)
def rows(request):
    with rapt.policy(**ROWS[request.param]):
        yield request.param


OPTIONS = {
    "plain": {},
    "k_lens": dict(k_lens=[3, 7]),
    "q_lens": dict(q_lens=[5, 2]),
    "both": dict(q_lens=[5, 2], k_lens=[0, 4]),
    "causal": dict(causal=True),
    "causal with lengths": dict(causal=True, q_lens=[4, 5], k_lens=[7, 3]),
    "window": dict(window_size=(2, 1)),
    "window with lengths": dict(window_size=(1, 0), k_lens=[6, 2], q_lens=[5, 3]),
    "scale": dict(softmax_scale=-0.5),
    "zero scale": dict(softmax_scale=0.0),
}


def translated(options):
    names = {"k_lens": "k_len", "q_lens": "q_len", "window_size": "window", "softmax_scale": "scale"}
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_honoured_on_every_row_h1_h10(wan, rows, options):
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), dtype=torch.bfloat16)
    close(wan(q, k, v, **options), q, k, v, **translated(options))
    ran = set(wan.entered())
    assert ran and all(name.startswith({"own": "cpu", "host": "torch", "reference": "ref"}[rows]) for name in ran)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_of_every_option_are_autograds_of_the_formula(wan, options):
    q, k, v = (t.requires_grad_() for t in blnc((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), dtype=torch.bfloat16))
    weight = blnc((2, 5, 4, 16), seed=9)[0]
    out = wan(q, k, v, **options)
    assert row() == "torch.sdpa" and rapt.last_report().notes[0] == "site Wan self attention"
    got = torch.autograd.grad((out.float() * weight).sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad((formula(*wide, **options) * weight).sum(), wide)
    for g, w, name in zip(got, want, "qkv"):
        assert g.dtype is torch.bfloat16
        torch.testing.assert_close(g.double(), w, atol=4e-2, rtol=4e-2, msg=lambda text: f"d{name}: {text}")


def formula(q, k, v, q_lens=None, k_lens=None, causal=False, window_size=(-1, -1), softmax_scale=None):
    """Differentiable and written apart: one sample and query row at a time."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    group, out = q.shape[2] // k.shape[2], []
    for b in range(q.shape[0]):
        n = q.shape[1] if q_lens is None else q_lens[b]
        m = k.shape[1] if k_lens is None else k_lens[b]
        for i in range(q.shape[1]):
            p = i + m - n
            low = 0 if window_size[0] < 0 else max(0, p - window_size[0])
            high = m - 1 if window_size[1] < 0 else min(m - 1, p + window_size[1])
            high = min(high, p) if causal else high
            if i >= n or high < low:
                out.append(0.0 * q[b, i])
                continue
            keys, values = (t[b, low:high + 1].repeat_interleave(group, 1) for t in (k, v))
            weights = torch.softmax(torch.einsum("hd,khd->hk", q[b, i], keys) * scale, -1)
            out.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(out).view(q.shape[0], q.shape[1], q.shape[2], v.shape[-1])


def test_a_tiny_wan_block_with_unequal_k_lens_equals_one_call_a_sample(wan):
    torch.manual_seed(1)
    width, heads = 32, 4
    project = torch.nn.Linear(width, 3 * width)

    def block(x, lens=None):
        q, k, v = project(x).unflatten(-1, (3, heads, width // heads)).unbind(2)
        return wan(q, k, v, k_lens=lens).flatten(2)

    x = torch.rand(2, 9, width)
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            both = block(x, torch.tensor([4, 9]))
            for b, used in ((0, 4), (1, 9)):
                q, k, v = project(x[b:b + 1]).unflatten(-1, (3, heads, width // heads)).unbind(2)
                alone = wan(q, k[:, :used], v[:, :used])
                close(both[b:b + 1].unflatten(-1, (heads, -1)), q, k[:, :used], v[:, :used])
                torch.testing.assert_close(both[b:b + 1], alone.flatten(2), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("graph", [False, True])
def test_padding_that_holds_nan_and_inf_reaches_nothing_m14(wan, graph):
    clean = blnc((2, 5, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), dtype=torch.bfloat16)
    dirty = [t.clone() for t in clean]
    dirty[0][0, 3:], dirty[1][0, 2:], dirty[2][0, 2:] = float("nan"), float("inf"), float("nan")
    results = []
    for q, k, v in (clean, dirty):
        q, k, v = (t.clone().requires_grad_(graph) for t in (q, k, v))
        out = wan(q, k, v, q_lens=[3, 5], k_lens=[2, 6])
        results.append((out, *torch.autograd.grad(out.sum(), (q, k, v))) if graph else (out,))
    for a, b in zip(*results):
        assert torch.equal(a, b) and a.isfinite().all()
    assert not results[0][0][0, 3:].any()


def test_dropout_is_the_hosts_and_rows_without_keys_stay_zero(wan):
    q, k, v = blnc((2, 64, 2, 8), (2, 64, 2, 8), (2, 64, 2, 8), dtype=torch.bfloat16)
    v = torch.ones_like(v)
    torch.manual_seed(5)
    one = wan(q, k, v, dropout_p=0.5, k_lens=[0, 64])
    assert row() == "torch.sdpa" and not one[0].any() and one[1].std() > 0
    torch.manual_seed(5)
    assert torch.equal(one, wan(q, k, v, dropout_p=0.5, k_lens=[0, 64]))


@pytest.mark.parametrize("scale", [2.0, 3, torch.tensor(0.25), torch.rand(4, 1) + 0.5])
def test_q_scale_multiplies_q(wan, scale):
    q, k, v = blnc((1, 5, 4, 16), (1, 7, 4, 16), (1, 7, 4, 16), dtype=torch.bfloat16)
    out = wan(q, k, v, q_scale=scale)
    assert out.dtype is torch.bfloat16 and "q multiplied by q_scale" in rapt.last_report().notes
    close(out, (q * scale).to(torch.bfloat16), k, v)


def test_q_scale_gets_its_gradient(wan):
    q, k, v = blnc((1, 5, 4, 16), (1, 7, 4, 16), (1, 7, 4, 16))
    scale = torch.tensor(0.5, requires_grad=True)
    wan(q, k, v, q_scale=scale).sum().backward()
    assert scale.grad.abs() > 0


CASTS = [(torch.float32,) * 3, (torch.float16,) * 3, (torch.float32, torch.float32, torch.float16),
         (torch.bfloat16, torch.float32, torch.float16), (torch.float64,) * 3,
         (torch.float16, torch.float16, torch.float32)]


@pytest.mark.parametrize("dtypes", CASTS, ids=str)
def test_casts_are_wans_and_are_reported(wan, dtypes):
    q, k, v = (t.to(dtype) for t, dtype in zip(blnc((1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8)), dtypes))
    out = wan(q, k, v)
    half = (torch.float16, torch.bfloat16)
    common = v.dtype if v.dtype in half else torch.bfloat16
    close(out, *(t.to(t.dtype if t.dtype in half else torch.bfloat16).to(common) for t in (q, k, v)), half=common,
          out=q.dtype if q.dtype in half else common)
    assert out.dtype is q.dtype
    report = rapt.last_report()
    assert report.json["problem"].split()[0] == NAMES[common]
    said = {note.split()[0] for note in report.notes if " cast from " in note}
    assert said == {name for name, t in zip("qkv", (q, k, v)) if t.dtype is not common}
    assert any(note.startswith("result cast to") for note in report.notes) is (q.dtype is not common)


def test_dtype_names_the_half_that_others_become(wan):
    q, k, v = blnc((1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8))
    close(wan(q, k, v, dtype=torch.float16), q, k, v, half=torch.float16)
    assert rapt.last_report().json["problem"].startswith("fp16 ")


def test_deterministic_asks_for_it_and_gives_the_same_bits_n16(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8), dtype=torch.bfloat16)
    a, b = (wan(q, k, v, deterministic=True, k_lens=[7, 3]) for _ in range(2))
    assert torch.equal(a, b) and "det=run" in rapt.last_report().json["problem"]


def test_version_is_a_preference_and_requires_nothing(wan):
    q = blnc((1, 5, 2, 64), dtype=torch.bfloat16)[0]
    for version, first in ((2, "fa2"), (3, "fa3"), (4, "fa4")):
        wan(q, q, q, version=version)
        report = rapt.last_report()
        assert report.row.startswith("cpu.") and "OPT_IN" not in report.codes(first)
        assert wan.explain(q, q, q, version=version).json["policy"]["prefer"] == [first]
    assert wan.explain(q, q, q, version=2, facts=FA2).row == "fa2"
    assert wan.explain(q, q, q, version=3, facts=FA2).row == "torch.sdpa"
    site = rapt.torch.attention_site("x", prefer="fa2", otherwise="torch.sdpa")
    assert site.explain(q, q, q, version=3).json["policy"]["prefer"] == ["fa3", "fa2"]
    assert site.explain(q, q, q, version=3, facts=FA2).row == "fa2"


def test_attention_is_the_same_by_its_other_name(wan):
    q, k, v = blnc((1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8))
    want = wan.flash_attention(q, k, v, causal=True, version=3)
    assert torch.equal(wan.attention(q, k, v, causal=True, fa_version=3), want)
    assert torch.equal(wan(q, k, v, causal=True), wan.flash_attention(q, k, v, causal=True))
    with pytest.raises(TypeError):
        wan.attention(q, k, v, version=3)


def test_the_signatures_are_wans(wan):
    names = ["q", "k", "v", "q_lens", "k_lens", "dropout_p", "softmax_scale", "q_scale", "causal", "window_size",
             "deterministic", "dtype"]
    for function, last in ((wan.flash_attention, "version"), (wan.attention, "fa_version")):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == [*names, last]
        assert [p.default for p in parameters.values()][3:] == [None, None, 0.0, None, None, False, (-1, -1), False,
                                                                torch.bfloat16, None]


WRONG = [
    (dict(k_lens=[8, 1]), "LENGTHS", "k_lens"), (dict(q_lens=[-1, 1]), "LENGTHS", "q_lens"),
    (dict(k_lens=[8, 1], dropout_p=0.1), "LENGTHS", "k_lens"),
    (dict(q_lens=torch.tensor([9, 2], dtype=torch.int32)), "LENGTHS", "q_lens"),
    (dict(k_lens=[1]), "SHAPE", "k_lens"), (dict(k_lens=torch.ones(2)), "LENGTHS", "k_lens"),
    (dict(k_lens=[1.0, 2.0]), "LENGTHS", "k_lens"), (dict(k_lens=3), "LENGTHS", "k_lens"),
    (dict(k_lens=[2**70, 1]), "LENGTHS", "k_lens"),
    (dict(q_lens=torch.ones(2, dtype=torch.int64, device="meta")), "DEVICE", "q_lens"),
    (dict(dropout_p=1.5), "DROPOUT", "dropout_p"), (dict(dropout_p="a"), "UNKNOWN_FIELD", "dropout_p"),
    (dict(softmax_scale=float("nan")), "SCALE", "softmax_scale"),
    (dict(softmax_scale="a"), "UNKNOWN_FIELD", "softmax_scale"),
    (dict(q_scale="a"), "UNKNOWN_FIELD", "q_scale"), (dict(q_scale=torch.ones(3, 5, 2, 8)), "SCALE", "q_scale"),
    (dict(q_scale=torch.ones(4, dtype=torch.bool)), "SCALE", "q_scale"),
    (dict(causal=1), "UNKNOWN_FIELD", "causal"), (dict(causal="br"), "UNKNOWN_FIELD", "causal"),
    (dict(window_size=3), "WINDOW", "window_size"), (dict(window_size=(1, -2)), "WINDOW", "window_size"),
    (dict(deterministic="no"), "UNKNOWN_FIELD", "deterministic"),
    (dict(dtype=torch.float32), "DTYPE", "dtype"), (dict(dtype="bf16"), "DTYPE", "dtype"),
    (dict(version=1), "VERSION", "version"), (dict(version=True), "VERSION", "version"),
    (dict(version="3"), "VERSION", "version"),
]


@pytest.mark.parametrize(("options", "code", "field"), WRONG, ids=str)
def test_what_is_not_honoured_is_refused_by_its_name_e3(wan, options, code, field):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    before = rapt.torch.context.entered()
    for graph in (False, True):
        with pytest.raises(rapt.ArgumentError) as caught:
            wan(q.clone().requires_grad_(graph), k, v, **options)
        assert (caught.value.code, caught.value.field) == (code, field) and field in str(caught.value)
    assert rapt.torch.context.entered() == before and wan.entered() == {}


def test_wrong_operands_are_refused_by_their_names(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    cases = [((q[0], k, v), "RANK", "q"), ((q, k[:1], v), "SHAPE", "k"), ((q, k, v[:1]), "SHAPE", "v"),
             ((q, k[..., :4], v), "SHAPE", "k"), ((q, k, v[:, :3]), "SHAPE", "v"), ((q, k, v[:, :, :1]), "SHAPE", "v"),
             ((q.expand(2, 5, 2, 8).repeat(1, 1, 2, 1)[:, :, :3], k, v), "HEADS", "k"), ((q.int(), k, v), "DTYPE", "q"),
             ((q, k.bool(), v), "DTYPE", "k")]
    for operands, code, field in cases:
        with pytest.raises(rapt.ArgumentError) as caught:
            wan(*operands)
        assert (caught.value.code, caught.value.field) == (code, field), caught.value
    with pytest.raises(TypeError, match="q must be a torch.Tensor"):
        wan(q.numpy(), k, v)
    with pytest.raises(TypeError):
        wan(q, k, v, softcap=1.0)


def test_a_refusal_carries_the_report_in_the_sites_words_d10(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    with rapt.policy(require="fa2"), pytest.raises(rapt.RefusedError) as caught:
        wan(q, k, v)
    report = caught.value.report
    assert "DEVICE" in report.codes("fa2") and "site Wan self attention" in str(caught.value)
    assert rapt.last_report().status == "REFUSED"
    with rapt.policy(require="fa2"), pytest.raises(rapt.RefusedError) as caught:
        wan(q, k, v, k_lens=[1, 2])
    assert wan.entered() == {}


def test_autocast_is_read_at_every_call_a1(wan):
    q, k, v = blnc((1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8))
    bshd = rapt.torch.attention_site("x", layout="bshd")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bshd(q, k, v).dtype is torch.bfloat16
        assert wan(q, k, v).dtype is torch.float32              # Wan's result has q's dtype
    assert bshd(q, k, v).dtype is torch.float32


# ---- Compiled ----

COMPILED = {**OPTIONS, "dropout off, scaled": dict(q_scale=0.5, dropout_p=0.0),
            "deterministic": dict(deterministic=True)}


@pytest.mark.parametrize("kind", ["any row", "any row, gradients", "host"])
@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
def test_traced_without_a_break_and_equal_to_eager(options, kind):
    torch._dynamo.reset()
    graph = kind.endswith("gradients")
    names = {"prefer": "fa2", "otherwise": "torch.sdpa"} if kind == "host" else {}
    wan = rapt.torch.attention_site("Wan", **names)
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16))
    options = {name: torch.tensor(value) if name.endswith("_lens") else value for name, value in options.items()}

    def call(q, k, v):
        return wan(q, k, v, **options)

    results = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        operands = [t.clone().requires_grad_(graph) for t in (q, k, v)]
        out = function(*operands)
        results.append((out, *torch.autograd.grad(out.sum(), operands)) if graph else (out,))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)
    close(results[1][0].bfloat16(), q if "q_scale" not in options else (q.bfloat16() * 0.5).float(), k, v,
          **{n: x for n, x in translated(options).items() if n in ("k_len", "q_len", "causal", "window", "scale")})


def test_elsewhere_than_on_the_cpu_the_call_leaves_the_graph(wan):
    torch._dynamo.reset()
    q = torch.empty(1, 5, 2, 8, device="meta")
    for site, extra in ((wan, {"k_lens": torch.tensor([3])}), (rapt.torch.attention_site("x", layout="bshd"), {})):
        with pytest.raises(rapt.ArgumentError, match="DEVICE: q is on meta"):
            torch.compile(lambda t: site(t, t, t, **extra), backend="eager")(q + 1)


def test_a_mask_beyond_the_limit_leaves_the_graph_d17(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(_site_wan, "MEMORY_LIMIT", 2 * 5 * 7 - 1)
    site = rapt.torch.attention_site("Wan", require="torch.sdpa")
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16))
    out = torch.compile(lambda q, k, v: site(q, k, v, k_lens=[3, 7], causal=True), backend="aot_eager")(q, k, v)
    close(out.bfloat16(), q, k, v, k_len=[3, 7], causal=True)
    assert site.entered() == {"torch.sdpa": 2}
    torch._dynamo.reset()
    out = torch.compile(lambda q, k, v: site(q, k, v, causal=True), fullgraph=True, backend="aot_eager")(q, k, v)
    close(out.bfloat16(), q, k, v, causal=True)


def test_a_compiled_call_with_lengths_beyond_is_refused_when_it_runs(wan):
    torch._dynamo.reset()
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    compiled = torch.compile(lambda q, k, v, n: wan(q, k, v, k_lens=n), fullgraph=True, backend="aot_eager")
    for graph in (False, True):
        with pytest.raises(RuntimeError, match="LENGTHS"):
            compiled(q.requires_grad_(graph), k, v, torch.tensor([8, 1]))
