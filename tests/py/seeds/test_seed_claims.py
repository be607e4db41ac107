# SPDX-License-Identifier: Apache-2.0
"""What the reports of test_seed_autocast.py and test_seed_guard.py claim beside their tests. Every claim is seen to fail
with its fault put back: the parameter `fault`, or the state without the guard."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import oracle_np  # noqa: E402
from diffusers import FluxTransformer2DModel  # noqa: E402
from dispatch_spy import FLASH_TEXT, Backend, attend, put_half_only, registry, spy_on  # noqa: E402
from rapt._diffusers_guard import guard  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FAULT = pytest.mark.parametrize("fault", [False, True], ids=["", "fault"])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(17)


@pytest.fixture(params=[True, False], ids=["guard", "plain"])
def guarding(request):
    return guard if request.param else contextlib.nullcontext


def member(kind):
    if kind == "rapt":
        import rapt.diffusers  # noqa: F401  registers it
    return Backend(kind)


def verdict(fault, claim):
    if not fault:
        return claim()
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        claim()


def on(dtype=BF16):
    return torch.autocast("cpu", dtype=dtype)


def mixed(batch=2, s=6):
    return torch.randn(batch, s, 2, 8), torch.randn(batch, s, 2, 8), torch.randn(batch, s, 2, 8).bfloat16()


def numbers(tensor):
    return tensor.transpose(1, 2).float().numpy()


# ---- Numbers (A9, N13) ----

@FAULT
@pytest.mark.parametrize("kind", ["native", "rapt"])
def test_a_call_under_autocast_has_the_bits_of_the_call_cast_beforehand_a9(kind, guarding, fault):
    backend, operands, mask = member(kind), mixed(), torch.randn(2, 1, 6, 6)
    before = [t.to(FP16 if fault else BF16) for t in operands]
    for given in (None, mask):
        with guarding(), on():
            out = attend(*operands, attn_mask=given, backend=backend)
        with guarding():
            want = attend(*before, attn_mask=None if given is None else given.to(before[0].dtype), backend=backend)
        verdict(fault, lambda out=out, want=want: same_bits(out, want))


def same_bits(a, b):
    assert a.dtype == b.dtype and torch.equal(a, b)


def test_native_under_autocast_is_unchanged_by_the_guard():
    operands, mask = mixed(), torch.randn(2, 1, 6, 6)
    for given in (None, mask, mask > 0):
        with on():
            plain = attend(*operands, attn_mask=given, backend="native")
            direct = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in operands), given).transpose(1, 2)
            with guard():
                assert torch.equal(attend(*operands, attn_mask=given, backend="native"), plain)
        assert torch.equal(plain, direct)


@FAULT
@pytest.mark.parametrize("kind", ["native", "rapt"])
def test_native_and_rapt_are_within_n13_of_the_exact_result(kind, guarding, fault):
    operands = mixed()
    q, k, v = (numbers(t.bfloat16()) for t in operands)
    want, _, bound, _ = oracle_np.attention(q, k, v, dtype="bf16")
    with guarding(), on():
        out = attend(*operands, scale=8 ** -0.5 * (1.5 if fault else 1), backend=member(kind))
    verdict(fault, lambda: oracle_np.check(numbers(out), want, bound))


def test_the_lowest_finite_mask_is_a_number_with_the_guard_and_with_rapt_a8():
    """The host's own cast makes it -inf, and of a row of them a row that sees nothing: both sides are held here."""
    operands, lowest = mixed(), torch.full((1, 1, 6, 6), torch.finfo(FP32).min)
    mean = operands[2].float().mean(1, keepdim=True).expand(2, 6, 2, 8)
    with on():
        own = attend(*operands, attn_mask=lowest, backend="native")
        outs = [attend(*operands, attn_mask=lowest, backend=member("rapt"))]
        with guard():
            outs += [attend(*operands, attn_mask=lowest, backend=member(kind)) for kind in ("native", "rapt")]
    assert not own.isfinite().all() or own.abs().max() == 0
    for out in outs:
        assert np.allclose(out.float().numpy(), mean.numpy(), atol=2 ** -8 * float(mean.abs().max()) + 1e-3)


# ---- Scopes and shapes (A11, A12) ----

@FAULT
@pytest.mark.parametrize("kind", ["native", "rapt"])
def test_autocast_switched_off_inside_means_float32_a11(kind, guarding, fault):
    operands = [t.float() for t in mixed()]
    with guarding():
        plain = attend(*operands, backend=member(kind))
        with on(), torch.autocast("cpu", enabled=fault):
            out = attend(*operands, backend=member(kind))
    verdict(fault, lambda: same_bits(out, plain))


@pytest.mark.parametrize("kind", ["flash", "native", "rapt"])
def test_a_meta_forward_through_the_dispatcher_a12(kind, guarding, monkeypatch):
    check_meta(put_half_only(monkeypatch) if kind == "flash" else member(kind), guarding)


def check_meta(backend, guarding):
    operands = [t.bfloat16().to("meta") for t in mixed()]
    for enabled in (False, True):
        with guarding(), torch.autocast("cpu", enabled=enabled):
            out = attend(*operands, backend=backend)
        assert (out.device.type, out.dtype, out.shape) == ("meta", BF16, (2, 6, 2, 8))


def test_a_meta_forward_is_seen_to_fail_where_its_state_is_asked_for_a12(monkeypatch):
    """The fault: the state of autocast read without asking first whether the device type has one."""
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: True)
    with pytest.raises(RuntimeError, match="autocast"):
        check_meta(Backend.NATIVE, guard)


# ---- A model: half-only kernels, and a LoRA step ----

def flux(promote=True):
    """The smallest Flux: one block of two streams, one of one. promote: its norms give fp32, as on CUDA from torch 2.12."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))
    if promote:
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
                module.register_forward_hook(lambda module, inputs, out: out.float())
    return model


def flux_inputs():
    torch.manual_seed(1)
    return dict(hidden_states=torch.randn(2, 16, 4), encoder_hidden_states=torch.randn(2, 12, 32),
                pooled_projections=torch.randn(2, 32), img_ids=torch.randn(16, 3), txt_ids=torch.randn(12, 3),
                timestep=torch.tensor([1.0, 1.0]))


def use(monkeypatch, backend):
    """The backend for every model, without the host's look for an installed package."""
    monkeypatch.setattr(registry, "_active_backend", backend)


@pytest.mark.parametrize("promote", [True, False])
def test_a_half_only_backend_in_a_model_crashes_without_the_guard_and_runs_with_it(promote, monkeypatch):
    model, inputs = flux(promote), flux_inputs()
    with torch.no_grad(), on():
        want = model(**inputs).sample
        use(monkeypatch, put_half_only(monkeypatch))
        spy = spy_on(monkeypatch, Backend.FLASH, registry._backends[Backend.FLASH])
        with pytest.raises(RuntimeError, match=FLASH_TEXT) if promote else contextlib.nullcontext():
            model(**inputs)
        assert spy.dtypes() == ({FP32, BF16} if promote else {BF16})            # the promotion happened, or did not
        with guard():
            got = model(**inputs).sample
    assert spy.dtypes() == {BF16} and len(spy.calls) == (3 if promote else 4)
    assert torch.equal(got, want)


@FAULT
@pytest.mark.parametrize("kind", ["native", "rapt", "flash"])
def test_a_lora_step_under_autocast_has_the_gradients_of_native_a14(kind, guarding, fault, monkeypatch):
    """The fault: a backend whose backward leaves query out."""
    if kind == "flash" and guarding is not guard:
        with pytest.raises(RuntimeError, match=FLASH_TEXT):
            lora_step(monkeypatch, put_half_only(monkeypatch), guarding)
        return
    _, want = lora_step(monkeypatch, Backend.NATIVE, contextlib.nullcontext)
    backend = put_half_only(monkeypatch) if kind == "flash" else member(kind)
    if fault:
        function = registry._backends[backend]
        monkeypatch.setitem(registry._backends, backend, lambda query, **given: function(query=query.detach(), **given))
    seen, got = lora_step(monkeypatch, backend, guarding)
    assert seen == ({BF16} if guarding is guard else {FP32, BF16})              # promoted, and cast by the guard
    verdict(fault, lambda: check_gradients(got, want))


def check_gradients(got, want):
    assert len(want) == 18 and got.keys() == want.keys()        # 9 layers
    for name, gradient in want.items():
        assert got[name] is not None and got[name].dtype is FP32, name          # the dtype of the leaf
        assert gradient.abs().max() > 0, name
        assert torch.equal(got[name], gradient), name


ADAPTED = ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")


class LowRank(torch.nn.Module):
    """A frozen linear layer with a trained update of rank 2, all in fp32."""

    def __init__(self, linear):
        super().__init__()
        self.base = linear
        self.down, self.up = (torch.nn.Linear(*sizes, bias=False)
                              for sizes in ((linear.in_features, 2), (2, linear.out_features)))

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora_step(monkeypatch, backend, guarding):
    """(dtypes that the backend was given, {adapter weight: gradient}) of one step of fp32 adapters on an fp32 Flux."""
    model, inputs = flux().requires_grad_(False), flux_inputs()
    torch.manual_seed(2)
    for name, linear in list(model.named_modules()):
        if name.rpartition(".")[2] in ADAPTED:
            model.set_submodule(name, LowRank(linear))
    with monkeypatch.context() as patch:
        use(patch, backend)
        spy = spy_on(patch, backend, registry._backends[backend])
        with guarding():
            with on():
                out = model(**inputs).sample
            out.float().square().mean().backward()
    adapters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return spy.dtypes(), {name: weight.grad for name, weight in adapters.items()}


# ---- Compiled ----

@FAULT
@pytest.mark.parametrize("kind", ["native", "rapt"])
def test_autocast_toggled_between_two_calls_of_one_compiled_function(kind, guarding, fault):
    """The fault: a graph that holds the autocast of its first call, as a guard read while tracing and never again would."""
    operands, backend = [t.float() for t in mixed()], member(kind)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, backend=backend), backend="aot_eager", fullgraph=True)

    def claim():
        for dtype in (None, BF16, FP16, None, BF16):
            with guarding(), on(dtype) if dtype else contextlib.nullcontext():
                if fault:
                    with torch.autocast("cpu", enabled=False):
                        out = compiled(*operands)
                else:
                    out = compiled(*operands)
                same_bits(out, attend(*operands, backend=backend))

    with torch.no_grad():
        verdict(fault, claim)
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["flash", "native", "rapt"])
def test_a_whole_model_in_one_graph_with_the_guard_and_promoting_norms(kind, monkeypatch):
    """fullgraph raises at a graph break; without the guard the half-only backend raises in the trace."""
    torch._dynamo.reset()
    backend = put_half_only(monkeypatch) if kind == "flash" else member(kind)
    use(monkeypatch, backend)
    model, inputs = flux(), flux_inputs()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        with guard():
            for dtype in (BF16, FP16):
                with on(dtype):
                    assert torch.equal(compiled(**inputs).sample, model(**inputs).sample)
        if kind == "flash":
            with on(), pytest.raises(RuntimeError):
                compiled(**inputs)
    torch._dynamo.reset()
