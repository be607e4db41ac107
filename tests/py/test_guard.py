# SPDX-License-Identifier: Apache-2.0
"""The guard of attention modules under autocast (contract section 6). Where a test takes `guarded`, it runs a second time
on the unguarded path, where what it claims must be seen to fail. Four more, of the report it goes back to, are in
seeds/test_seed_guard.py."""

import pickle

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
from rapt._guard import AutocastAttentionGuard  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
INF = float("inf")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.fixture(params=[True, False], ids=["guarded", "fault"])
def guarded(request):
    return request.param


def must_fail(guarded, check):
    """The claim holds with the guard, and is seen to break without it."""
    if guarded:
        check()
    else:
        with pytest.raises(AssertionError):
            check()


def run(guarded, guard, module, hidden, encoder=None, mask=None, **keywords):
    if guarded:
        return guard.run(module, hidden, encoder, mask, **keywords)
    given = dict(encoder_hidden_states=encoder, attention_mask=mask, **keywords)
    return module(hidden, **{name: value for name, value in given.items() if value is not None})


class Spy:
    """Stands for an attention module; says what arrived and under which autocast."""

    def __init__(self):
        self.calls = []

    def __call__(self, hidden_states, **keywords):
        self.seen = {"hidden_states": hidden_states, **keywords}
        self.autocast = torch.is_autocast_enabled("cpu")
        self.calls.append(self.autocast)
        return hidden_states

    def dtypes(self):
        return {name: value.dtype for name, value in self.seen.items() if isinstance(value, torch.Tensor)}


class Joint(torch.nn.Module):
    """Two streams, joined for one attention, as in Flux; its kernel takes one dtype only, as flash-attn's do."""

    def __init__(self, dtype=FP32):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (torch.nn.Linear(16, 16, dtype=dtype) for _ in range(3))
        self.add_k, self.add_v = (torch.nn.Linear(16, 16, dtype=dtype) for _ in range(2))
        self.norm_q = torch.nn.RMSNorm(16, dtype=dtype)
        self.register_buffer("angles", torch.ones(4))

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None):
        q, k, v = self.norm_q(self.to_q(hidden_states)), self.to_k(hidden_states), self.to_v(hidden_states)
        if encoder_hidden_states is not None:
            k = torch.cat([k, self.add_k(encoder_hidden_states)], 1)
            v = torch.cat([v, self.add_v(encoder_hidden_states)], 1)
        if not q.dtype == k.dtype == v.dtype:
            raise RuntimeError("query/key dtype mismatch")
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attention_mask)[:, 0]


def check_one_dtype(spy, dtype):
    assert set(spy.dtypes().values()) == {dtype}


# ---- The outer state (A11, A13) ----

def test_the_outer_autocast_comes_back_on_every_exit_a11():
    def fails(hidden_states):
        assert not torch.is_autocast_enabled("cpu")
        raise KeyError("within")

    def leaks(hidden_states):
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", FP16)

    def nested(hidden_states):
        guard.run(Spy(), hidden_states)
        assert not torch.is_autocast_enabled("cpu")

    guard, x = AutocastAttentionGuard(), torch.randn(2, 4)
    for dtype in (BF16, FP16):
        with torch.autocast("cpu", dtype=dtype):
            with pytest.raises(KeyError):
                guard.run(fails, x)
            assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is dtype
            for function in (leaks, nested):
                guard.run(function, x)
                assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is dtype
            with pytest.raises(rapt.ArgumentError):
                guard.run(Spy(), x.to(torch.int64))
            assert torch.is_autocast_enabled("cpu")
    guard.run(leaks, x)
    assert not torch.is_autocast_enabled("cpu")


def test_the_outer_state_is_left_to_the_module_on_request():
    spy = Spy()
    with torch.autocast("cpu", dtype=BF16):
        AutocastAttentionGuard(BF16, disable_outer_autocast=False).run(spy, torch.randn(2, 4))
    assert spy.autocast is True and spy.seen["hidden_states"].dtype is BF16


@pytest.mark.filterwarnings("error")
def test_the_device_of_the_tensors_counts_beside_the_named_one_a12():
    spy = Spy()
    with torch.autocast("cpu", dtype=BF16):
        AutocastAttentionGuard(device="cuda").run(spy, torch.randn(2, 4))
        AutocastAttentionGuard(device="cuda:0").run(spy, torch.randn(2, 4))
        AutocastAttentionGuard(device=torch.device("cpu")).run(spy, torch.randn(2, 4, device="meta"))
        AutocastAttentionGuard(device="meta").run(spy, torch.randn(2, 4))
        AutocastAttentionGuard().run(spy, torch.randn(2, 4))
        AutocastAttentionGuard().run(spy, torch.randn(2, 4, device="meta"))     # no name: that of the tensors, and no other
    assert spy.calls == [False] * 5 + [True]


# ---- Casts (A2, A3, A8, A10) ----

@pytest.mark.parametrize("hidden", [FP16, BF16, FP32, FP64])
def test_without_a_target_the_dtype_is_that_of_hidden_states(hidden, guarded):
    spy = Spy()
    encoder = FP32 if hidden is not FP32 else BF16
    run(guarded, AutocastAttentionGuard(), spy, torch.randn(2, 4, 8, dtype=hidden), torch.randn(2, 4, 8, dtype=encoder))
    must_fail(guarded, lambda: check_one_dtype(spy, hidden))


MASKS = ["attention_mask", "attn_mask", "encoder_attention_mask", "mask"]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("source, target", [(FP32, FP16), (FP32, BF16), (BF16, FP16), (FP16, BF16), (FP16, FP32)])
def test_a_finite_mask_value_stays_finite_a8(source, target, name, guarded):
    low, high = torch.finfo(source).min, torch.finfo(source).max
    mask = torch.tensor([low, high, -INF, INF, float("nan"), -1.5, 0.0], dtype=source)
    kept = torch.isfinite(mask)

    def check():
        assert got.dtype is target
        assert torch.equal(torch.isfinite(got), kept)

    got = mask.to(target)                                       # the host's own cast
    if guarded:
        spy = Spy()
        AutocastAttentionGuard(target).run(spy, torch.randn(2, 4), **{name: mask})
        got = spy.seen[name]
    widens = torch.finfo(target).max >= torch.finfo(source).max
    must_fail(guarded or widens, check)
    if guarded:
        limit = torch.finfo(target).max
        assert got[0] == max(low, -limit) and got[1] == min(high, limit)
        assert got[2] == -INF and got[3] == INF and got[4].isnan() and got[5] == -1.5 and got[6] == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_bool_and_integer_masks_are_passed_as_they_are(dtype):
    spy, mask, other = Spy(), torch.ones(4, 4).to(dtype), torch.randn(4)
    AutocastAttentionGuard(FP16).run(spy, torch.randn(2, 4), None, mask, rotary=other, mask="causal")
    assert spy.seen["attention_mask"] is mask and spy.seen["rotary"] is other and spy.seen["mask"] == "causal"


def test_a_causal_bias_is_passed_as_it_is():
    from torch.nn.attention.bias import causal_lower_right

    spy, bias = Spy(), causal_lower_right(3, 4)
    AutocastAttentionGuard(FP16).run(spy, torch.randn(2, 4), attention_mask=bias)
    assert spy.seen["attention_mask"] is bias


def test_equal_dtypes_are_not_copied_a10():
    spy, x, mask = Spy(), torch.randn(2, 4), torch.zeros(4)
    AutocastAttentionGuard().run(spy, x, x, mask)
    assert all(spy.seen[name] is x for name in ("hidden_states", "encoder_hidden_states"))
    assert spy.seen["attention_mask"] is mask


@pytest.mark.parametrize("arguments, code, words", [
    ((torch.zeros(2, dtype=torch.int64),), "DTYPE", "hidden_states is int64"),
    ((torch.zeros(2), torch.zeros(2, dtype=torch.float8_e4m3fn)), "DTYPE", "encoder_hidden_states is float8_e4m3fn"),
    ((torch.zeros(2), torch.zeros(2).numpy()), "DTYPE", "torch.from_numpy"),
    ((None,), "DTYPE", "hidden_states is a NoneType"),
    ((torch.zeros(2), torch.zeros(2, dtype=FP64)), "DTYPE_MIX", r"encoder_hidden_states.to\(torch.float32\)"),
    ((torch.zeros(2), None, torch.zeros(2, dtype=FP64)), "DTYPE_MIX", "attention_mask is float64.*bool mask"),
])
def test_what_is_not_cast_is_refused_by_name_a3_e3(arguments, code, words):
    spy = Spy()
    with pytest.raises(rapt.ArgumentError, match=words) as caught:
        AutocastAttentionGuard().run(spy, *arguments)
    assert caught.value.code == code and not spy.calls


@pytest.mark.parametrize("arguments, code", [
    ({"target_dtype": torch.int8}, "DTYPE"), ({"target_dtype": torch.float8_e5m2}, "DTYPE"),
    ({"target_dtype": "bf16"}, "DTYPE"), ({"device": "nowhere"}, "DEVICE"), ({"device": 0.5}, "DEVICE"),
])
def test_a_guard_that_cannot_be_is_refused_when_it_is_made(arguments, code):
    with pytest.raises(rapt.ArgumentError) as caught:
        AutocastAttentionGuard(**arguments)
    assert caught.value.code == code and caught.value.field in arguments


# ---- A joint block under autocast, and the weights ----

def joint_inputs():
    return torch.randn(2, 5, 16), torch.randn(2, 3, 16, dtype=FP16)


def test_a_two_stream_block_of_mixed_inputs_runs_and_equals_the_cast_call_a9(guarded):
    module, (hidden, encoder) = Joint(BF16), joint_inputs()
    bias = torch.full((5, 8), torch.finfo(FP32).min).triu(1)
    if not guarded:
        with torch.no_grad(), pytest.raises(RuntimeError):      # the streams as they come, weights in bf16
            module(hidden, encoder, bias)
        return
    saturated = bias.clamp(-torch.finfo(BF16).max, 0).to(BF16)
    expected = module(hidden.to(BF16), encoder.to(BF16), saturated)
    with torch.autocast("cpu", dtype=FP16):
        out = AutocastAttentionGuard(BF16).run(module, hidden, encoder, bias)
    assert out.dtype is BF16 and torch.isfinite(out).all() and torch.equal(out, expected)
    out.sum().backward()
    assert module.to_q.weight.grad.dtype is BF16


def test_weights_that_do_not_fit_are_named_by_validate():
    guard, module = AutocastAttentionGuard(FP16), Joint(FP16)
    half = torch.randn(2, 4, 8, dtype=FP16)
    assert guard.validate(q=half, module=module) is FP16        # a float32 buffer is no weight
    module.to_k.to(FP32)
    module.register_parameter("codes", torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False))
    for arguments in (dict(module=module), dict(module=module, q=half)):
        with pytest.raises(rapt.ArgumentError) as caught:
            guard.validate(**arguments)
        error = caught.value
        assert error.code == "DTYPE_MIX" and error.got == "to_k.weight (float32), to_k.bias (float32)"
        assert error.got in str(error) and "module.to(torch.float16)" in str(error)
        assert "AutocastAttentionGuard" not in str(error) and "to_q" not in str(error)     # no other target fits all
    with pytest.raises(rapt.ArgumentError, match="to_k.weight"):
        AutocastAttentionGuard().validate(module=module)        # no target: what most weights are
    with pytest.raises(rapt.ArgumentError, match="to_q.weight") as caught:
        AutocastAttentionGuard().validate(q=half.float(), module=module)
    assert "and 1 more" in str(caught.value) and "norm_q.weight (float16)" in caught.value.got
    with pytest.raises(rapt.ArgumentError, match=r"or use AutocastAttentionGuard\(torch.float32\)"):
        guard.validate(module=Joint(FP32))


def test_a_matmul_of_two_dtypes_becomes_an_error_that_names_the_weights(guarded):
    module, (hidden, encoder) = Joint(FP32), joint_inputs()
    assert AutocastAttentionGuard().run(module, hidden, encoder).dtype is FP32
    with pytest.raises(RuntimeError if not guarded else rapt.ArgumentError) as caught, torch.no_grad():
        if guarded:
            with torch.autocast("cpu"):
                AutocastAttentionGuard(FP16).run(module, hidden, encoder)
        else:
            module(hidden.to(FP16), encoder)
    assert ("to_q.weight (float32)" in str(caught.value)) is guarded
    if guarded:
        error = caught.value
        assert error.code == "DTYPE_MIX" and isinstance(error.__cause__, RuntimeError)
        assert str(error.__cause__) in str(error)
        with pytest.raises(rapt.ArgumentError, match="to_q.weight"):
            AutocastAttentionGuard(FP16).run(module.forward, hidden, encoder)       # a bound method has a module too


def test_failures_that_are_not_about_dtypes_stay_what_they_are():
    class Other(torch.nn.Module):
        def __init__(self, error):
            super().__init__()
            self.weight, self.error = torch.nn.Parameter(torch.ones(2)), error

        def forward(self, hidden_states):
            raise self.error

    shapes = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as caught:
        AutocastAttentionGuard(FP16).run(Other(shapes), torch.zeros(2))
    assert caught.value is shapes
    reported = rapt.BackendError("wrong dtype")
    with pytest.raises(rapt.BackendError) as caught:
        AutocastAttentionGuard(FP16).run(Other(reported), torch.zeros(2))
    assert caught.value is reported


def test_validate_passes_over_what_is_not_floating_and_names_the_rest():
    guard, x = AutocastAttentionGuard(), torch.zeros(2)
    assert guard.validate() is None and guard.validate(q=None, mask=x.bool(), lengths=x.long()) is None
    assert guard.validate(module=torch.nn.ReLU()) is None
    assert guard.validate(q=x, k=None, v=x) is FP32
    for bad, words in ((dict(q=[1.0]), "q is a list"), (dict(q=x.to(torch.complex64)), "q is complex64"),
                       (dict(q=x.to(torch.float8_e5m2)), "q is float8_e5m2"), (dict(module=len), "module is a")):
        with pytest.raises(rapt.ArgumentError, match=words) as caught:
            guard.validate(**bad)
        assert caught.value.code == "DTYPE"
    with pytest.raises(rapt.ArgumentError, match=r"q is float32; all must be float16: pass q.to\(torch.float16\)") as caught:
        AutocastAttentionGuard(FP16).validate(q=x)
    assert caught.value.code == "DTYPE"


def test_tensors_without_names_are_asked_about():
    guard, x = AutocastAttentionGuard(FP16), torch.zeros(2)
    assert guard.validate(x, None, x.long(), x > 0) == (True, {FP32})       # asked, whatever the target
    assert guard.validate(x, x.half()) == (False, {FP32, FP16}) and guard.validate(None) == (False, set())
    for arguments in (dict(k=x), dict(module=torch.nn.Linear(2, 2))):
        with pytest.raises(rapt.ArgumentError, match="with and without names"):
            guard.validate(x, **arguments)
    with pytest.raises(rapt.ArgumentError, match="tensor 1 is a list"):
        guard.validate(x, [1.0])


def test_a_guard_is_a_value():
    guard = AutocastAttentionGuard(BF16, False, None)
    assert pickle.loads(pickle.dumps(guard)) == guard == AutocastAttentionGuard(target_dtype=BF16, disable_outer_autocast=False)
    with pytest.raises(AttributeError):
        guard.device = "cuda"


# ---- Compiled ----

@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield lambda function, **options: torch.compile(function, backend="eager", **options)
    torch._dynamo.reset()


@pytest.mark.parametrize("target", [None, BF16])
def test_compiled_in_one_graph_d19(compiler, target):
    guard, module = AutocastAttentionGuard(target), Joint(target or FP32)
    bias = torch.full((5, 8), torch.finfo(FP32).min).triu(1)

    def block(hidden, encoder, mask):
        inside = guard.run(module, hidden * 2, encoder, mask)
        return inside, torch.mm(hidden[0], hidden[0].T).dtype

    compiled, (hidden, encoder) = compiler(block, fullgraph=True), joint_inputs()
    for mask in (None, bias, bias == 0):
        for on in (False, True, False) if mask is bias else (True,):    # toggled between two calls of one compiled function
            with torch.autocast("cpu", dtype=FP16, enabled=on), torch.no_grad():
                out, outside = compiled(hidden, encoder, mask)
                expected, _ = block(hidden, encoder, mask)
            assert torch.equal(out, expected) and out.dtype is (target or FP32)
            assert outside is (FP16 if on else FP32)            # the outer state is back after the guard


def test_a_guard_made_inside_a_compiled_function_d19(compiler):
    def block(hidden):
        guard = AutocastAttentionGuard(BF16)
        out = guard.run(lambda x: x @ x.T, hidden)
        guard.validate(out=out)
        return out

    x = torch.randn(3, 4)
    assert torch.equal(compiler(block, fullgraph=True)(x), block(x))


def test_a_refusing_call_raises_its_coded_error_under_a_compiler(compiler):
    guard, x = AutocastAttentionGuard(), torch.zeros(2)
    compiled = compiler(lambda h, e: guard.run(Spy(), h, e))
    with pytest.raises(rapt.ArgumentError, match="DTYPE_MIX: encoder_hidden_states is float64"):
        compiled(x, x.double())


def test_weights_are_checked_in_a_compiled_function(compiler):
    """The mix itself shows only when the graph runs, past any handler; validate() sees it while it is made."""
    def block(hidden):
        guard.validate(module=module)
        return guard.run(module, hidden)

    guard, module, hidden = AutocastAttentionGuard(BF16), Joint(BF16), torch.randn(2, 5, 16)
    assert torch.equal(compiler(block, fullgraph=True)(hidden), block(hidden))
    module.to_k.to(FP32)
    with pytest.raises(rapt.ArgumentError, match="to_k.weight"):
        compiler(block)(hidden)
