# SPDX-License-Identifier: Apache-2.0
"""How rapt is chosen in diffusers: by name, in a scope, in the place of the native backend; and other versions of it."""

import copy
import os
import pathlib
import pickle
import runpy
import subprocess
import sys

import diffusers_models as models
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.diffusers  # noqa: E402
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor  # noqa: E402
from diffusers_calls import (  # noqa: E402, F401
    BF16, NATIVE, RAPT, TABLES, Backend, attend, attention_backend, call, clean, qkv, rand, registry, within,
)

# ---- The name "rapt" ----

def test_the_member_is_one_of_the_enumeration():
    assert Backend("rapt") is Backend.RAPT is Backend["RAPT"] and Backend.RAPT in list(Backend)
    assert isinstance(RAPT, Backend) and RAPT == "rapt" and RAPT.value == "rapt" and RAPT.name == "RAPT" and RAPT in Backend
    assert copy.deepcopy(RAPT) is RAPT and pickle.loads(pickle.dumps(RAPT)) is RAPT
    assert RAPT in registry.list_backends() and list(Backend).count(RAPT) == 1 and len(set(Backend)) == len(Backend)
    assert registry._is_context_parallel_available(RAPT)
    rapt.diffusers._register()                                  # again: the same one
    assert Backend("rapt") is RAPT and list(Backend).count(RAPT) == 1


def calls_of(function, *args):
    """How many calls of rapt a function makes (R1)."""
    def entered():
        return sum(n for row, n in rapt.torch.context.entered().items() if row.startswith("cpu.") or row == "ref")
    before = entered()
    function(*args)
    return entered() - before


def flux():
    model, inputs = models.make("Flux")
    return lambda: models.run(model, inputs), model


def test_set_and_reset_on_a_model():
    run, model = flux()
    assert calls_of(run) == 0
    model.set_attention_backend("rapt")
    assert calls_of(run) == 2
    registry.set_active_backend(NATIVE)
    assert calls_of(run) == 2                                   # its processors name rapt themselves
    model.reset_attention_backend()
    assert calls_of(run) == 0
    model.set_attention_backend("RAPT")                         # diffusers takes any case
    model.set_attention_backend("native")
    assert calls_of(run) == 0
    with pytest.raises(ValueError, match="must be one of"):
        model.set_attention_backend("raptor")


def test_setting_it_on_one_model_reaches_others_as_in_diffusers_and_reset_leaves_that():
    """Not rapt's doing: set_attention_backend also writes the process-wide choice, for every backend."""
    run_a, a = flux()
    run_b, b = flux()
    a.set_attention_backend("rapt")
    assert calls_of(run_b) == 2
    a.reset_attention_backend()
    assert calls_of(run_a) == 2 and registry._active_backend is RAPT
    b.set_attention_backend("native")
    assert calls_of(run_a) == 0


def test_the_context_manager_nests_and_restores_on_errors():
    run, model = flux()
    with attention_backend("rapt"):
        assert calls_of(run) == 2
        with attention_backend("native"):
            assert calls_of(run) == 0
        with attention_backend(RAPT):
            assert calls_of(run) == 2
        with pytest.raises(rapt.ArgumentError), attention_backend("_native_math"):
            call(*qkv(), attention_kwargs={"no": 1})
        assert registry._active_backend is RAPT
    assert calls_of(run) == 0
    model.set_attention_backend("native")
    with attention_backend("rapt"):
        assert calls_of(run) == 0                               # what a processor names goes before the scope


def test_a_processor_put_in_later_follows_the_scope_again():
    run, model = flux()
    model.set_attention_backend("rapt")
    registry.set_active_backend(NATIVE)
    model.transformer_blocks[0].attn.set_processor(FluxAttnProcessor())
    assert calls_of(run) == 1
    with attention_backend("rapt"):
        assert calls_of(run) == 2


def test_an_attention_module_of_its_own():
    _, model = flux()
    attn = model.transformer_blocks[0].attn
    attn.set_attention_backend("rapt")
    assert attn.processor._attention_backend is RAPT
    x, y = rand(1, 6, 32), rand(1, 3, 32)
    with torch.no_grad():
        assert calls_of(lambda: attn(x, y)) == 1


def test_two_backends_in_one_compiled_function_follow_the_choice():
    run, model = flux()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    _, inputs = models.make("Flux")
    def go():
        models.run(compiled, inputs)
    assert calls_of(go) == 0
    with attention_backend("rapt"):
        assert calls_of(go) == 2
    assert calls_of(go) == 0
    with rapt.diffusers.replace_native():
        assert calls_of(go) == 2
        with rapt.policy(require="torch"):
            assert calls_of(go) == 0
        with torch.autocast("cpu"):
            assert calls_of(go) == 2
        assert "autocast" in str(rapt.last_report()) and calls_of(go) == 2
        assert "autocast" not in str(rapt.last_report())
    assert calls_of(go) == 0


# ---- replace_native ----

def entries():
    return [getattr(registry, table)[NATIVE] for table in TABLES] + [set(registry._supports_context_parallel)]


def test_replace_native_reaches_every_call_that_names_no_other_and_is_undone_exactly():
    run, model = flux()
    _, named = flux()
    before = entries()
    handle = rapt.diffusers.replace_native()
    assert calls_of(run) == 2
    model.set_attention_backend("native")                       # a name set while replaced
    assert calls_of(run) == 2
    model.set_attention_backend("_native_math")
    assert calls_of(run) == 0                                   # another name is another backend
    handle.remove()
    after = entries()
    assert all(a is b for a, b in zip(before[:3], after[:3])) and before[3] == after[3]
    model.set_attention_backend("native")
    assert calls_of(run) == 0
    handle.remove()                                             # once more is nothing
    with rapt.diffusers.replace_native():
        assert calls_of(run) == 2                               # a name set before
    assert calls_of(run) == 0


def test_replace_native_nests_in_any_order_and_is_undone_after_errors():
    before = entries()
    first, second = rapt.diffusers.replace_native(), rapt.diffusers.replace_native()
    first.remove()
    first.remove()
    assert registry._backends[NATIVE] is registry._backends[RAPT]
    second.remove()
    assert all(a is b for a, b in zip(before[:3], entries()))
    with pytest.raises(ZeroDivisionError), rapt.diffusers.replace_native(), rapt.diffusers.replace_native():
        1 / 0
    assert all(a is b for a, b in zip(before[:3], entries()))


def test_another_replacement_on_top_is_not_lost():
    handle, mine = rapt.diffusers.replace_native(), registry._backends[NATIVE]
    registry._backends[NATIVE] = other = lambda **kw: None
    with pytest.raises(RuntimeError, match="take that one out first"):
        handle.remove()
    assert registry._backends[NATIVE] is other
    registry._backends[NATIVE] = mine
    handle.remove()


def test_replaced_native_refuses_what_native_would_drop():
    q, k, v = qkv()
    with rapt.diffusers.replace_native():
        with pytest.raises(rapt.ArgumentError, match="softcap is not accepted"):
            attend(q, k, v, attention_kwargs={"softcap": 1.0})
        out = attend(q, k, v, attention_kwargs={"return_lse": True})
    within(out, q, k, v)


def test_the_guard_and_the_backend_together_a13():
    q, k, v = qkv()
    with torch.autocast("cpu"):
        alone = call(q, k, v.to(BF16))
        with rapt.diffusers.guard():
            both = call(q, k, v.to(BF16))
    assert alone.dtype is both.dtype is BF16 and torch.equal(alone, both)


@pytest.mark.parametrize("promote", [False, True])
def test_the_example_prints_the_report_of_its_block(promote, monkeypatch, capsys):
    example = pathlib.Path(__file__).parents[2] / "examples" / "flux_report.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--heads=1", "--text=8", "--image=16", *["--promote"] * promote])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert " h1 q24 k24 d128" in said and "autocast=bf16" in said and ("q fp32 -> bf16" in said) is promote


# ---- Another diffusers, or none ----

def python(code, **environment):
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300,
                            cwd=pathlib.Path(__file__).parent)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_without_diffusers_the_import_says_what_to_install():
    print(python("""
import sys
sys.modules["diffusers"] = None
try:
    import rapt.diffusers
except ImportError as error:
    assert "pip install diffusers" in str(error), error
else:
    raise SystemExit("imported")
import rapt.torch
"""))


def test_a_private_attribute_that_is_gone_is_one_clear_error_and_nothing_is_changed():
    """Each attribute in turn; afterwards diffusers is as it was, and usable."""
    python("""
import sys, torch, diffusers
from diffusers.models import attention_dispatch as d
R, B = d._AttentionBackendRegistry, d.AttentionBackendName
q = torch.rand(1, 3, 2, 4)
native = d.dispatch_attention_fn(q, q, q)

def state():
    return (list(B._member_map_), list(B._value2member_map_), list(B._member_names_), list(R._backends), list(R._constraints),
            list(R._supported_arg_names), set(R._supports_context_parallel))

def fails(what, error, attempt):
    try:
        attempt()
    except error as e:
        assert what in str(e) and diffusers.__version__ in str(e) and "Nothing was changed" in str(e), e
    else:
        raise SystemExit(f"no error without {what}")

def gone(owner, name, error, attempt):
    kept = owner.__dict__[name]
    type.__delattr__(owner, name) if isinstance(owner, type) else delattr(owner, name)
    try:
        fails(name, error, attempt)
    finally:
        type.__setattr__(owner, name, kept) if isinstance(owner, type) else setattr(owner, name, kept)

def fresh():
    for name in [name for name in sys.modules if name.startswith("rapt.diffusers")]:
        del sys.modules[name]
    import rapt.diffusers

before = state()
places = [(R, name) for name in ("_backends", "_constraints", "_supported_arg_names", "_supports_context_parallel")]
places += [(B, name) for name in ("_member_map_", "_value2member_map_", "_member_names_")]
places += [(d, "AttentionBackendName"), (d, "_AttentionBackendRegistry"), (d, "dispatch_attention_fn")]
for owner, name in places:
    gone(owner, name, ImportError, fresh)
    assert state() == before and not hasattr(B, "RAPT")
    assert torch.equal(d.dispatch_attention_fn(q, q, q), native)
import rapt.diffusers
for name in ("_backends", "_constraints", "_supported_arg_names"):
    gone(R, name, RuntimeError, rapt.diffusers.replace_native)
assert torch.equal(d.dispatch_attention_fn(q, q, q), native)
with rapt.diffusers.replace_native():
    assert R._backends[B.NATIVE] is R._backends[B("rapt")]
""")


def test_the_checks_of_diffusers_do_not_raise_falsely_under_autocast():
    """DIFFUSERS_ATTN_CHECKS is read when diffusers is imported. The native backend raises there on what it could run."""
    python("""
import torch, rapt.diffusers
from diffusers.models import attention_dispatch as d
assert d._AttentionBackendRegistry._checks_enabled
q, v = torch.rand(1, 3, 2, 4), torch.rand(1, 3, 2, 4).bfloat16()
with torch.autocast("cpu"):
    assert d.dispatch_attention_fn(q, q, v, backend="rapt").dtype is torch.bfloat16
    with rapt.diffusers.replace_native():
        assert d.dispatch_attention_fn(q, q, v).dtype is torch.bfloat16
    try:
        d.dispatch_attention_fn(q, q, v)
    except ValueError:
        pass
    else:
        raise SystemExit("diffusers no longer raises here")
try:
    d.dispatch_attention_fn(q, q, q, backend="rapt", attention_kwargs={"softcap": 1.0})
except rapt.ArgumentError as error:
    assert "softcap" in str(error)
else:
    raise SystemExit("dropped")
""", DIFFUSERS_ATTN_CHECKS="1")


def test_importing_the_adapter_imports_no_other_framework():
    python("""
import sys, torch
import diffusers.models.attention_dispatch          # what diffusers itself brings along is its own affair
def others():
    return {name for name in sys.modules if name.split(".")[0] in ("transformers", "keras", "jax", "onnx", "tensorflow")}
before = others()
import rapt.diffusers
assert others() == before, others() - before
assert not any(name.split(".")[0] in ("keras", "jax") for name in before)
""")


# ---- Context parallelism: two processes ----

def test_ring_and_ulysses_over_two_processes_n9():
    """Every check is in diffusers_parallel.py, which prints the name of each one passed, once a process."""
    here = pathlib.Path(__file__).parent
    result = subprocess.run([sys.executable, str(here / "diffusers_parallel.py")], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"})
    assert result.returncode == 0, result.stderr[-3000:]
    passed = result.stdout.split("\n")
    for name in ("ring", "ulysses", "ring_anything", "ulysses_anything", "refusals"):
        assert passed.count(name) == 2, result.stdout
