# SPDX-License-Identifier: Apache-2.0
"""The five tests of the report of half-only backends that crash under autocast in diffusers, by their names.

Each runs over three backends of the dispatcher: "flash", a stand-in that takes one half dtype only and is called past
torch's autocast, as external kernels are; "native"; and "rapt". And in three states: `guard`, with guard() on; `plain`,
without it, where native and rapt see to autocast themselves; and `fault`, without it and with every backend's function
called past autocast, which is what the report is about: there each test must be seen to fail."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from dispatch_spy import FLASH_TEXT, Backend, attend, dispatch, put_half_only, registry, spy_on  # noqa: E402
from rapt import _diffusers_guard  # noqa: E402
from rapt._diffusers_guard import guard  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SAME_DTYPE = "Expected query, key, and value to have the same dtype"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


@pytest.fixture(params=["flash", "native", "rapt"])
def kind(request):
    return request.param


@pytest.fixture(params=["guard", "plain", "fault"])
def state(request):
    return request.param


@pytest.fixture
def backend(kind, state, monkeypatch):
    """The backend's member; in the state `fault` its function is out of the reach of autocast."""
    if kind == "rapt":
        import rapt.diffusers  # noqa: F401  registers it
    member = put_half_only(monkeypatch) if kind == "flash" else Backend(kind)
    if state == "fault":
        monkeypatch.setitem(registry._backends, member, past_autocast(registry._backends[member]))
    return member


def past_autocast(function):
    def called(**given):
        with torch.autocast("cpu", enabled=False):
            return function(**given)

    return called


@pytest.fixture
def listened(backend, monkeypatch):
    """(member, a spy on what it is given)"""
    return backend, spy_on(monkeypatch, backend, registry._backends[backend])


def guarding(state):
    return guard() if state == "guard" else contextlib.nullcontext()


def verdict(holds, claim):
    if holds:
        return claim()
    with pytest.raises((AssertionError, RuntimeError, ValueError)):         # a kernel's refusal, or rapt's
        claim()


def alone(kind, state):
    """Whether a call of mixed dtypes under autocast comes out right."""
    return state == "guard" or (state == "plain" and kind != "flash")


def promoted():
    """What norms that autocast runs in fp32 make of query and key; value passes none."""
    return torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8).bfloat16()


def expected(member, q, k, v, mask=None):
    """The same call on tensors cast beforehand, outside autocast (A9)."""
    return attend(q.bfloat16(), k.bfloat16(), v, attn_mask=mask, backend=member)


def test_autocast_casts_inputs_to_autocast_dtype(kind, state, listened, monkeypatch):
    """The host's optional checks, which run first, let the call through as well."""
    (member, spy), operands = listened, promoted()
    monkeypatch.setattr(registry, "_checks_enabled", True)

    def comes_out_right():
        with guarding(state), torch.autocast("cpu", dtype=BF16):
            out = attend(*operands, backend=member)
        assert out.dtype is BF16 and torch.equal(out, expected(member, *operands))

    def received():
        with guarding(state), torch.autocast("cpu", dtype=BF16):
            attend(*operands, backend=member)
        assert spy.dtypes() == {BF16}

    verdict(state == "guard" or (kind, state) == ("rapt", "plain"), comes_out_right)        # rapt needs no such check
    verdict(state == "guard", received)


def test_autocast_casts_floating_point_mask_but_not_bool_mask(kind, state, listened):
    (member, spy), operands = listened, promoted()
    keep, added = torch.rand(2, 1, 6, 6) > 0.3, torch.randn(2, 1, 6, 6)
    keep[..., 0] = True

    def comes_out_right():
        for mask, cast in ((keep, keep), (added, added.bfloat16())):
            with guarding(state), torch.autocast("cpu", dtype=BF16):
                out = attend(*operands, attn_mask=mask, backend=member)
            assert torch.equal(out, expected(member, *operands, cast))

    def received():
        for mask, dtype in ((keep, torch.bool), (added, BF16)):
            with guarding(state), torch.autocast("cpu", dtype=BF16):
                attend(*operands, attn_mask=mask, backend=member)
            assert spy.calls[-1]["attn_mask"].dtype is dtype
        assert spy.calls[-2]["attn_mask"] is keep

    verdict(alone(kind, state), comes_out_right)
    verdict(state == "guard", received)


@pytest.mark.parametrize("state", ["guard", "plain"])
def test_no_autocast_dtypes_pass_through_unchanged(kind, state, listened):
    (member, spy), operands = listened, promoted()
    with guarding(state), pytest.raises((RuntimeError, ValueError), match=FLASH_TEXT if kind == "flash" else SAME_DTYPE):
        attend(*operands, backend=member)
    assert all(spy.calls[-1][name] is tensor for name, tensor in zip(("query", "key", "value"), operands))


@pytest.mark.parametrize("state", ["guard"])
def test_no_autocast_dtypes_pass_through_unchanged_is_seen_to_fail(kind, state, listened, monkeypatch):
    """The fault: a guard that casts whether autocast is on or not."""
    monkeypatch.setattr(_diffusers_guard, "_state", lambda query: ("cpu", BF16))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_no_autocast_dtypes_pass_through_unchanged(kind, state, listened)


class Block(torch.nn.Module):
    """Query and key through an RMS norm, then the dispatcher. promote: on a device whose autocast leaves that norm in the
    dtype of its input, as a CPU's does, a hook stands for one that gives fp32."""

    def __init__(self, member, promote=True):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (torch.nn.Linear(16, 16) for _ in range(3))
        self.norm_q, self.norm_k = torch.nn.RMSNorm(8), torch.nn.RMSNorm(8)
        self.member = member
        if promote:
            for norm in (self.norm_q, self.norm_k):
                norm.register_forward_hook(lambda module, inputs, out: out.float())

    def forward(self, x):
        q, k, v = (linear(x).unflatten(-1, (2, 8)) for linear in (self.to_q, self.to_k, self.to_v))
        q, k = self.norm_q(q), self.norm_k(k)
        self.seen = q.dtype, k.dtype, v.dtype
        return attend(q, k, v, backend=self.member)


def test_rms_norm_qk_pattern_under_autocast(kind, state, listened, promote=True):
    (member, spy), x = listened, torch.randn(2, 6, 16)
    block = Block(member, promote)

    def comes_out_right():
        with guarding(state), torch.autocast("cpu", dtype=BF16), torch.no_grad():
            out = block(x)
        assert out.dtype is BF16 and out.isfinite().all()

    def received():
        with guarding(state), torch.autocast("cpu", dtype=BF16), torch.no_grad():
            block(x)
        assert spy.dtypes() == {BF16}

    with torch.autocast("cpu", dtype=BF16), torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):
        block(x)
    assert block.seen == (FP32, FP32, BF16), "no promotion, so nothing was tested"
    verdict(alone(kind, state), comes_out_right)
    verdict(state == "guard", received)


@pytest.mark.parametrize("state", ["plain"])
def test_rms_norm_qk_pattern_without_promotion_is_noticed(kind, state, listened):
    """A torch whose norms promote nothing would hollow the test out: it says so instead (A16)."""
    with pytest.raises(AssertionError, match="no promotion"):
        test_rms_norm_qk_pattern_under_autocast(kind, state, listened, promote=False)


def test_torch_compile_fullgraph_under_autocast(kind, state, backend):
    """One compiled function; autocast on, off and on again between its calls. fullgraph raises at a graph break."""
    operands = promoted()
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, backend=backend), backend="aot_eager", fullgraph=True)

    def mixed():
        with guarding(state), torch.autocast("cpu", dtype=BF16):
            out = compiled(*operands)
        assert out.dtype is BF16 and torch.equal(out, expected(backend, *operands))

    def alike():
        same = [t.half() for t in operands]
        with guarding(state):
            assert torch.equal(compiled(*same), attend(*same, backend=backend))

    with torch.no_grad():
        for claim, holds in ((mixed, alone(kind, state)), (alike, True), (mixed, alone(kind, state))):
            verdict(holds, claim)
    torch._dynamo.reset()


def test_the_stand_in_is_refused_where_the_report_says_so(monkeypatch):
    """Without the guard, the words that the report quotes, and its check that speaks of dtypes."""
    member = put_half_only(monkeypatch)
    with torch.autocast("cpu", dtype=BF16):
        with pytest.raises(RuntimeError, match=FLASH_TEXT):
            attend(*promoted(), backend=member)
        monkeypatch.setattr(dispatch._AttentionBackendRegistry, "_checks_enabled", True)
        with pytest.raises(ValueError, match="must have the same dtype"):
            attend(*promoted(), backend=member)
