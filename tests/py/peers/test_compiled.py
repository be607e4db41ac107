# SPDX-License-Identifier: Apache-2.0
"""Compiled and exported calls: one graph, one compilation, and every switch of the host or of rapt changes the very
next call (contract A1, A12, D9, D19, section 11)."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack, nullcontext

import pytest
import torch
import torch._dynamo.testing
from peers_common import counted, own, rand
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rapt
import rapt.torch

sdpa = rapt.torch.sdpa


def operands(dv=16, n=9):
    return rand(2, 4, n, 16), rand(2, 4, n + 3, 16), rand(2, 4, n + 3, dv)


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


# ---- How often it compiles ----

def frames(function, dynamic, lengths=(9, 17, 33)):
    """How often the backend was called after each of three lengths."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    graph, seen = compiled(function, counter, dynamic=dynamic), []
    for n in lengths:
        graph(*operands(n=n))
        seen.append(counter.frame_count)
    return seen


def test_dynamic_shapes_compile_once_and_automatic_ones_twice_as_the_hosts():
    for function in (sdpa, F.scaled_dot_product_attention):
        assert frames(lambda q, k, v: function(q, k, v, is_causal=True), True) == [1, 1, 1]
        assert frames(lambda q, k, v: function(q, k, v, is_causal=True), None) == [1, 2, 2]
    with rapt.torch.install():
        assert frames(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), True) == [1, 1, 1]


def test_a_float_from_outside_costs_a_second_compilation_as_with_the_host():
    """PyTorch traces such a number as a symbol first and starts again when it finds that it cannot: a scale in a
    closure or a dropout_p of a module, not a literal and not a default."""
    scale = 0.3
    for function in (sdpa, F.scaled_dot_product_attention):
        assert frames(lambda q, k, v: function(q, k, v, scale=scale), True) == [2, 2, 2]
        assert frames(lambda q, k, v: function(q, k, v, scale=0.3), True) == [1, 1, 1]


# ---- Switches ----

STATES = {
    "plain": nullcontext, "autocast": lambda: torch.autocast("cpu"),
    "autocast, fp16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False), "require": lambda: rapt.policy(require="ref"),
    "forbid": lambda: rapt.policy(forbid="cpu,ref"), "prefer": lambda: rapt.policy(prefer="ref"),
    "math": lambda: sdpa_kernel(SDPBackend.MATH), "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
}
DTYPE = {"autocast": torch.bfloat16, "autocast, fp16": torch.float16}


def runs_ours(state):
    return state not in ("forbid", "math")


@pytest.mark.parametrize("dv", [16, 24])
@pytest.mark.parametrize("entry", ["sdpa", "installed"])
def test_every_switch_changes_the_very_next_call_a1_d9(entry, dv):
    function = sdpa if entry == "sdpa" else F.scaled_dot_product_attention
    with rapt.torch.install() if entry == "installed" else nullcontext():
        graph = compiled(lambda q, k, v: function(q, k, v))
        args = operands(dv)
        for state in [s for name in STATES for s in ("plain", name)]:
            with STATES[state]():
                out, ours, hosts = counted(graph, *args)
                assert out.dtype is DTYPE.get(state, torch.float32), state
                assert (ours, hosts) == ((1, 0) if runs_ours(state) else (0, 1)), state
                row = rapt.last_report().row
                assert own(row) == runs_ours(state) and (state not in ("require", "prefer") or row == "ref")
        rapt.torch.remove()


def test_install_and_remove_change_the_very_next_call_whoever_was_first():
    """What was compiled before the first install() of a process must not go past it, nor the other way round."""
    code = """
import torch, rapt, rapt.torch
from torch.nn import functional as F
both = [(torch.rand(1, 2, 5, 16), torch.rand(1, 2, 7, 16), torch.rand(1, 2, 7, dv)) for dv in (16, 24)]
graph = torch.compile(F.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
def ran():
    before = rapt.torch.context.entered()
    for args in both:
        graph(*args)
    after = rapt.torch.context.entered()
    return sum(after[row] - before[row] for row in after if row.startswith("cpu.") or row == "ref")
seen = [ran()]
for _ in range(2):
    with rapt.torch.install():
        seen.append(ran())
    seen.append(ran())
print(seen)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[0, 2, 0, 2, 0]", done.stderr


def test_without_the_reset_of_what_tracers_know_a_call_goes_past(monkeypatch):
    """The fault put back: the host keeps which kernel a tracer takes."""
    from rapt import _install, _ops

    args = operands(24)
    monkeypatch.setattr(_install, "_known_to_tracers", list)
    _ops.MATH._dispatch_cache.clear()
    graph = compiled(F.scaled_dot_product_attention)
    graph(*args)
    with rapt.torch.install():
        assert counted(graph, *args)[1] == 0
    _ops.MATH._dispatch_cache.clear()


def test_a_host_without_that_table_is_refused_and_nothing_is_installed(monkeypatch):
    from rapt import _install

    monkeypatch.setattr(_install, "_OVERLOADS", (object(),))
    with pytest.raises(RuntimeError, match="_dispatch_cache is not there in PyTorch " + re.escape(torch.__version__)):
        rapt.torch.install()
    assert not _install.installed() and counted(F.scaled_dot_product_attention, *operands())[1] == 0


def test_sdpa_kernel_inside_the_compiled_function():
    """Ours leaves the graph there, since nothing guards one by sdpa_kernel; the host's is decided when traced."""
    def block(function):
        def inside(q, k, v):
            with sdpa_kernel(SDPBackend.MATH):
                return function(q, k, v)
        return inside

    args = operands()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(block(sdpa))(*args)
    torch._dynamo.reset()
    out, ours, hosts = counted(torch.compile(block(sdpa), backend="aot_eager"), *args)
    assert (ours, hosts) == (0, 1)
    with rapt.torch.install():
        assert counted(compiled(block(F.scaled_dot_product_attention)), *args)[1:] == (0, 0)
    graph = torch.compile(lambda q, k, v: sdpa(q, k, v), backend="aot_eager")
    with sdpa_kernel(SDPBackend.MATH):
        assert counted(graph, *args)[1:] == (0, 1)
    assert counted(graph, *args)[1:] == (1, 0)


def test_sdpa_kernel_eager_under_install(installed):
    for dv in (16, 24):
        args = operands(dv)
        for backends, ours in (([SDPBackend.MATH], 0), ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], 1),
                               ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], 0)):
            with sdpa_kernel(backends):
                assert counted(F.scaled_dot_product_attention, *args)[1] == ours
                assert counted(sdpa, *args)[1] == ours


# ---- Calls that want a gradient, said in ways that only rapt takes ----

@pytest.mark.parametrize("keywords", [
    {"is_causal": True, "attn_mask": torch.arange(108).reshape(9, 12) % 4 > 0},
    {"is_causal": True, "attn_mask": torch.arange(108.0).reshape(9, 12) / 50}, {"causal": "br"}, {"causal": "off:2"},
    {"window": (3, 1), "align": "tl"}, {"window": (3, -1), "align": "br", "causal": True},
    {"mask": torch.arange(108).reshape(9, 12) % 4 > 0, "bias": torch.ones(12)}], ids=lambda k: ",".join(k))
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_gradients_where_one_mask_is_made_equal_eager_ones_d28(keywords, dynamic):
    def run(function):
        args = [t.requires_grad_() for t in start]
        out = function(*args, **keywords)
        return out, *torch.autograd.grad(out.square().sum(), args)

    start = [t.detach() for t in operands(24)]
    for a, b in zip(run(compiled(sdpa, dynamic=dynamic)), run(sdpa)):
        torch.testing.assert_close(a, b)
    if dynamic:
        return
    with pytest.raises(RuntimeError, match="REFUSED"):          # D17: the mask would not fit
        run(compiled(lambda *a, **k: sdpa(*a, memory_limit=16, **k)))


# ---- Refusals inside operators ----

def test_a_refusal_inside_an_operator_is_the_last_report_e8(installed):
    q, k, v = (t.requires_grad_() for t in operands())
    calls = {"flash": lambda: F.scaled_dot_product_attention(q, k, v),
             "compiled": lambda: compiled(lambda q, k, v: sdpa(q, k, v, require="cpu"))(q, k, v)}
    for name, call in calls.items():
        sdpa(q.detach(), k.detach(), v.detach())
        with rapt.policy(require="cpu"), pytest.raises(RuntimeError) as caught:
            call()
        report = rapt.last_report()
        assert report.status == "REFUSED" and "GRAD" in report.codes("cpu.scalar"), name
        assert str(caught.value).splitlines()[0].startswith(str(report).splitlines()[0]), name
    with rapt.policy(require="cpu"), pytest.raises(rapt.RefusedError) as caught:
        F.scaled_dot_product_attention(q, k, v[..., :8])        # the general operator is Python
    assert rapt.last_report() is caught.value.report


@pytest.mark.parametrize("variable", ["RAPT_REQUIRE=cpu", "RAPT_FORBID=class:host"])
def test_the_environment_is_heard_where_the_host_would_run_d23(variable):
    code = """
import torch, rapt, rapt.torch
from torch.nn import functional as F
q, v = torch.rand(1, 2, 5, 16, requires_grad=True), torch.rand(1, 2, 5, 8)
rapt.torch.install()
for value in (q, v):
    try:
        F.scaled_dot_product_attention(q, q, value)
    except RuntimeError as error:
        print(str(error).split(":")[0], rapt.last_report().status)
"""
    name, value = variable.split("=")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
                          env={**os.environ, name: value})
    assert done.stdout.split() == ["REFUSED"] * 4, done.stdout + done.stderr


# ---- Reports of what the host ran ----

def test_a_call_that_the_host_runs_under_install_says_so_r1_r3(installed):
    q, k, v = (t.requires_grad_() for t in operands())
    mask = torch.rand(9, 12) > 0.3
    for args, keywords in (((q, k, v), {}), ((q, k, v[..., :8]), {}), ((q, k, v), {"dropout_p": 0.2}),
                           ((q, k, v, mask), {"is_causal": True}), ((q, k, v, rand(9, 12).requires_grad_()), {}),
                           (tuple(t.double() for t in (q, k, v)), {"is_causal": True})):
        before = rapt.torch.context.entered()
        F.scaled_dot_product_attention(*args, **keywords)
        report = rapt.last_report()
        after = rapt.torch.context.entered()
        assert str(report).startswith(f"{report.row} ran ") and report.row.startswith("torch.")
        assert {row: after[row] - before[row] for row in after if after[row] != before[row]} == {report.row: 1}
    with torch.no_grad():
        F.scaled_dot_product_attention(*(t.double() for t in (q, k, v)), mask, is_causal=True)
    report = rapt.last_report()
    assert report.row == "torch.sdpa" and "one mask" in report.notes[0] and "one mask" in str(report)


# ---- Export ----

BLOCK = """
import sys, torch, warnings
warnings.simplefilter("ignore")
class Block(torch.nn.Module):
    def forward(self, q, k, v):
        return rapt.torch.sdpa(q, k, v, is_causal=True) * 2
args = (torch.arange(160.).reshape(1, 2, 5, 16) / 160, torch.ones(1, 2, 7, 16), torch.rand(1, 2, 7, 16))
"""


def in_a_fresh_process(code, *args):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *map(str, args)], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1:], done.stderr


def test_an_exported_program_is_loaded_where_rapt_torch_is_imported(tmp_path):
    path, values = tmp_path / "block.pt2", tmp_path / "values.pt"
    save = "import rapt.torch" + BLOCK + """
torch.export.save(torch.export.export(Block(), args), sys.argv[1])
torch.save((args, Block()(*args)), sys.argv[2])
print("saved")
"""
    load = """
import sys, torch
{}
args, want = torch.load(sys.argv[2])
out = torch.export.load(sys.argv[1]).module()(*args)
print(torch.equal(out, want), rapt.last_report().row)
"""
    assert in_a_fresh_process(save, path, values)[0] == ["saved"]
    (said,), errors = in_a_fresh_process(load.format("import rapt, rapt.torch"), path, values)
    assert said.startswith("True ") and own(said.split()[1]), errors
    said, errors = in_a_fresh_process(load.format(""), path, values)
    assert said == [] and "failed to resolve torch.ops.rapt.sdpa.default to an operator" in errors, errors


def test_one_graph_under_every_switch_at_once():
    args = operands()
    with ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu"))
        stack.enter_context(rapt.policy(prefer="ref"))
        stack.enter_context(torch.no_grad())
        explained = torch._dynamo.explain(lambda q, k, v: sdpa(q, k, v) + sdpa(k, k, v)[:, :, :9])(*args)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
