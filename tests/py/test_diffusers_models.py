# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers over rapt: the native backend's output and number of calls, with and without autocast, in one graph."""

import functools
import re

import diffusers_models as models
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import diffusers  # noqa: E402
import rapt  # noqa: E402
import rapt.diffusers  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from diffusers.models import attention_dispatch as dispatch  # noqa: E402

registry, Backend = dispatch._AttentionBackendRegistry, dispatch.AttentionBackendName
RAPT = Backend("rapt")
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
STATES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}

# What diffusers itself does not compile in one graph, whatever the backend.
BREAKS_UPSTREAM = {"HunyuanVideo15": "Data-dependent branching"}
# Where a norm's float32 does not reach the dispatcher: the model casts query and key back to what they were before it.
CASTS_BACK = {"GlmImage", "Kandinsky5"}
_NORM = re.compile(r"(^|[._])(norm_(added_)?[qk]|[qk]_norm|(query|key)_norm)$")


@pytest.fixture(autouse=True)
def quiet():
    level = diffusers.logging.get_verbosity()
    diffusers.logging.set_verbosity_error()
    torch._dynamo.reset()
    yield
    diffusers.logging.set_verbosity(level)


# ---- Spies ----

def numpy(tensor):
    return tensor.detach().transpose(1, 2).to(torch.float64).numpy()


def as_policy(bias, dtype):
    """A8 for a bias, written down a second time: a finite value stays finite."""
    top = torch.finfo(dtype).max
    return torch.where(bias.isinf(), bias, bias.to(torch.float64).clamp(-top, top)).to(dtype).to(torch.float64).numpy()


def exact(kw, dtype):
    """(result, N13 bound) of one call of the dispatcher, from the written formula. Models send masks of 4 axes."""
    other = {}
    mask = kw.get("attn_mask")
    if mask is not None:
        assert mask.dim() == 4
        name = "mask" if mask.dtype == torch.bool else "bias"
        other[name] = mask.numpy() if name == "mask" else as_policy(mask, dtype)
    q, k, v = (numpy(kw[name].to(dtype)) for name in ("query", "key", "value"))
    assert not kw.get("is_causal") and not kw.get("dropout_p")
    o, _, bound, _ = oracle_np.attention(q, k, v, dtype=NAMES[dtype], scale=kw.get("scale"), **other)
    return o, bound


class Spy:
    """In the place of a backend's function: counts, looks on, and may change the result."""

    def __init__(self, member, patch, after=None):
        self.calls, self._function, self._after = [], registry._backends[member], after
        patch.setitem(registry._backends, member, self)

    def __call__(self, **kw):
        out = self._function(**kw)
        index = len(self.calls)
        self.calls.append(kw)
        return out if self._after is None else self._after(index, kw, out)


def promoted(model):
    """Every norm of query and key gives float32, as torch's RMSNorm does under autocast on other devices (A16)."""
    norms = [module for name, module in model.named_modules() if _NORM.search(name)]
    assert norms
    for norm in norms:
        norm.register_forward_hook(lambda module, args, out: out.to(torch.float32))
    return model


def build(name, state):
    model, inputs = models.make(name)
    return (promoted(model) if state != "off" else model), inputs


def in_state(state, function, *args):
    if STATES[state] is None:
        return function(*args)
    with torch.autocast("cpu", STATES[state]):
        return function(*args)


def run_with(backend, state, model, inputs):
    with dispatch.attention_backend(backend):
        return in_state(state, models.run, model, inputs)


@functools.lru_cache(maxsize=None)
def native(name, state):
    """(output, number of calls, what errors of N13's bound in every call make of the output)."""
    model, inputs = build(name, state)
    bounds = []

    def remember(index, kw, out):
        bounds.append(torch.from_numpy(exact(kw, out.dtype)[1]).transpose(1, 2))
        return out

    def shift(index, kw, out):
        return out + (torch.randint(0, 2, out.shape) * 2 - 1) * bounds[index].to(torch.float32)

    with pytest.MonkeyPatch.context() as patch:
        spy = Spy(Backend.NATIVE, patch, remember)
        out = run_with("native", state, model, inputs)
    reach = 0.0
    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch:
            Spy(Backend.NATIVE, patch, lambda *args: shift(*args).to(args[2].dtype))
            reach = max(reach, float((run_with("native", state, model, inputs) - out).abs().max()))
    return out, len(spy.calls), reach


# ---- The same output, the same calls ----

def test_the_nineteen_models_of_the_autocast_thread_are_here_by_name():
    """All of them from a small configuration; none is only listed."""
    names = ("Flux Flux2 Chroma Bria BriaFibo OvisImage LongCatImage LTX LTX2 Wan WanAnimate ChronoEdit SkyReelsV2 Helios "
             "JoyImage JoyImageEditPlus MotifVideo ErnieImage Anima").split()
    assert len(names) == 19 and set(models.SEED) == set(names)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", models.ALL)
def test_a_model_gives_the_native_output_with_as_many_calls_n13_a6(name, state, monkeypatch):
    want, count, reach = native(name, state)
    model, inputs = build(name, state)

    def check(index, kw, out):
        dtype = STATES[state] or torch.float32
        assert out.dtype is dtype and rapt.last_report().row.startswith(("cpu.", "ref"))
        oracle_np.check(numpy(out), *exact(kw, dtype))
        return out

    spy, other = Spy(RAPT, monkeypatch, check), Spy(Backend.NATIVE, monkeypatch)
    got = run_with("rapt", state, model, inputs)
    assert len(spy.calls) == count > 0 and not other.calls
    if state != "off":
        seen = {(kw["query"].dtype, kw["key"].dtype, kw["value"].dtype) for kw in spy.calls}
        half = STATES[state]
        mixed = (torch.float32, torch.float32, half)
        assert mixed in seen if name not in CASTS_BACK else mixed not in seen, seen       # the fault was really there
    assert got.dtype is want.dtype and got.isfinite().all()
    assert float((got - want).abs().max()) <= 4 * reach


@pytest.mark.parametrize("name", ["Flux", "Wan", "Anima"])
def test_the_comparison_sees_a_wrong_result(name, monkeypatch):
    """The fault: every call returns a 64th less than it should."""
    want, _, reach = native(name, "off")
    Spy(RAPT, monkeypatch, lambda index, kw, out: out * (63 / 64))
    got = run_with("rapt", "off", *build(name, "off"))
    assert float((got - want).abs().max()) > 4 * reach


@pytest.mark.parametrize("name", ["Flux", "Anima"])
def test_without_the_policy_the_promoted_calls_fail(name, monkeypatch):
    """The fault: autocast is not looked at. What a kernel that is called directly then meets is the mix itself."""
    monkeypatch.setattr(rapt.torch._torch_request, "autocast_state", lambda device: None)
    monkeypatch.setattr(rapt.torch, "_key", lambda *args: None)
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX"):
        run_with("rapt", "bf16", *build(name, "bf16"))


# ---- One graph ----

def one_graph(name, backend, states=("off", "bf16")):
    """Compiled once, run in each state; eager and compiled calls of the operator are the same kernel."""
    for state in states:
        torch._dynamo.reset()
        model, inputs = models.make(name)
        want = run_with("rapt", state, model, inputs)
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        got = run_with("rapt", state, compiled, inputs)
        assert counter.frame_count == 1
        attention = sum(node.target in (torch.ops.rapt.sdpa.default, torch.ops.rapt.sdpa_ag.default)
                        for graph in counter.graphs for node in graph.graph.nodes)
        assert attention == native(name, state)[1]
        yield state, got, want


WHOLE = [name for name in models.ALL if " " not in name]


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_compiles_to_one_graph_with_autocast_on_and_off(name):
    if name in BREAKS_UPSTREAM:
        for backend in ("native", "rapt"):
            with pytest.raises(torch._dynamo.exc.Unsupported, match=BREAKS_UPSTREAM[name]):
                model, inputs = models.make(name)
                run_with(backend, "off", torch.compile(model, backend="eager", fullgraph=True), inputs)
        return
    for state, got, want in one_graph(name, "eager"):
        assert torch.equal(got, want), state


@pytest.mark.parametrize("name, backend, states", [("Flux", "aot_eager", ("off", "bf16")), ("QwenImage", "aot_eager", ("bf16",)),
                                                   ("Anima", "inductor", ("bf16",))])
def test_compiled_output_is_within_the_bound_n13(name, backend, states, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for state, got, want in one_graph(name, backend, states):
        assert float((got - want).abs().max()) <= 4 * native(name, state)[2], state
