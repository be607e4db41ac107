# SPDX-License-Identifier: Apache-2.0
"""The twelve tests of the dispatch guard, by name: fused kernels are CUDA half-precision kernels that raise, so a site
that chooses one because it is installed breaks on every fp32 and CPU input.

Fake packages record what reaches them and raise as the kernels do; CPU tensors count as CUDA where a test says so. Each
test runs again with hand-written dispatch in place of the sites, which has one of the faults, and must then fail."""

import re

import fake_device
import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call, _torch_request  # noqa: E402

HALF, FULL = torch.bfloat16, torch.float32
DISPLAY = {"flash2": "flash_attention_2", "flash3": "flash_attention_3", "sage": "sage", "xformers": "xformers"}
ENTRY = {"flash2": ("flash_attn", "flash_attn_func"), "flash3": ("flash_attn_interface", "flash_attn_func"),
         "sage": ("sageattention", "sageattn"), "xformers": ("xformers.ops", "memory_efficient_attention")}
LAYOUTS = {"Video DiT": "bs(hd)", "ActionDiT": "bshd", "Wan shared core": "bhsd"}
SITES = [("Video DiT", "flash2"), *(("ActionDiT", package) for package in DISPLAY),
         *(("Wan shared core", package) for package in DISPLAY)]
HEADS, WIDTH = 2, 64


class World:
    """Every package installed and a CUDA device of generation 9.0 present; where tensors lie is for the test to say."""

    def __init__(self, monkeypatch, fault):
        self.monkeypatch, self.fault, self.rows = monkeypatch, fault, 5
        self.fakes = fake_device.pretend(monkeypatch, "cuda", "9.0")

    def site(self, place, package):
        if self.fault is not None:
            return HandWritten(self, place, package)
        return rapt.torch.attention_site(place, layout=LAYOUTS[place], prefer=package, otherwise="torch.sdpa")

    def operands(self, device, dtype):
        """Shapes no earlier call had, so that nothing known from another device answers."""
        self.rows += 1
        self.fakes.on_device = device == "cuda"
        self.monkeypatch.setitem(_torch_request._KINDS, "cpu", _call.KINDS[device])
        return [(torch.rand(1, self.rows, HEADS, WIDTH) * 2 - 1).to(dtype) for _ in range(3)]

    def call(self, site, place, device, dtype, backward=False):
        """Whether the package's own entry ran; the result, and its gradients, are right either way."""
        q, k, v = (t.requires_grad_(backward) for t in self.operands(device, dtype))
        before = len(self.fakes.calls)
        if place == "Video DiT":
            out = site(q.flatten(2), k.flatten(2), v.flatten(2), HEADS).unflatten(-1, (HEADS, WIDTH))
        elif place == "Wan shared core":
            out = site(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
        else:
            out = site(q, k, v)
        assert out.dtype is dtype
        heads_first = [t.detach().transpose(1, 2).double().numpy() for t in (q, k, v)]
        want, _, bound, _ = oracle_np.attention(*heads_first, dtype="bf16" if dtype is HALF else "fp32")
        oracle_np.check(out.detach().transpose(1, 2).double().numpy(), want, bound)
        if backward:
            got = torch.autograd.grad(out.square().sum(), (q, k, v))
            wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
            host = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in wide))
            for g, w in zip(got, torch.autograd.grad(host.square().sum(), wide)):
                tolerance = 5e-2 if dtype is HALF else 1e-4
                torch.testing.assert_close(g.double(), w, atol=tolerance, rtol=tolerance)
        return len(self.fakes.calls) > before


class HandWritten:
    """What the sites stand for, as it was written by hand. fault: which of the reported mistakes it makes."""

    def __init__(self, world, place, package):
        self.world, self.place, self.package = world, place, package
        self.resolved = {"installed": "fused", "resolved once": "fused", "never fused": "host"}.get(world.fault)

    def usable(self, q):
        cuda = self.world.fakes.on_device
        if self.world.fault == "device only":
            return cuda
        half = q.dtype in (torch.float16, torch.bfloat16)
        if self.world.fault == "half for all":
            return cuda and half
        return cuda and (half or self.package == "xformers")    # the right guard, for the faults that lie elsewhere

    def __call__(self, q, k, v, num_heads=None):
        if num_heads:
            q, k, v = (t.unflatten(-1, (num_heads, -1)) for t in (q, k, v))
        if self.place == "Wan shared core":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.world.fault == "resolved once" and self.resolved is None:
            self.resolved = "fused" if self.usable(q) else "host"
        if (self.resolved or ("fused" if self.usable(q) else "host")) == "fused":
            out = self.fused(q, k, v)
        else:
            heads_first = (t.transpose(1, 2) for t in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)
        if self.place == "Wan shared core":
            return out.transpose(1, 2)
        return out.flatten(2) if num_heads else out

    def fused(self, q, k, v):
        module, name = ENTRY[self.package]
        function = getattr(__import__(module, fromlist=[name]), name)
        keywords = {"xformers": {}, "sage": {"sm_scale": WIDTH ** -0.5, "tensor_layout": "NHD"}}
        return function(q, k, v, **keywords.get(self.package, {"softmax_scale": WIDTH ** -0.5}))

    def report_line(self, **keywords):
        name = DISPLAY[self.package]
        if self.world.fault == "bare line":                     # what is installed, said without a condition
            return f"{self.place:<19}: {name}"
        where = "CUDA" if self.package == "xformers" else "CUDA fp16/bf16"
        return f"{self.place:<19}: {name} ({where} only; torch_sdpa otherwise)"


# ---- The tests ----

def fused(world, place, package, device, dtype, backward=False):
    site = world.site(place, package)
    assert world.call(site, place, device, dtype, backward), f"{place}: {package} did not run"
    if world.fault is None:
        assert display(rapt.last_report().row) == DISPLAY[package]


def elsewhere(world, place, package, device, dtype, backward=False):
    site = world.site(place, package)
    assert not world.call(site, place, device, dtype, backward), f"{place}: {package} ran"
    if world.fault is None:
        report = rapt.last_report()
        assert report.row == "torch.sdpa" and site.entered() == {"torch.sdpa": 1}
        wanted = {"cpu": "DEVICE", "cuda": "DTYPE"}[device]
        first = {"flash2": "fa2", "flash3": "fa3", "sage": "sage.auto", "xformers": "mslk.auto"}[package]
        assert wanted in report.codes(first) and "AVAIL" not in report.codes(first)


def display(row):
    return next(info[1] for info in rapt._rapt.ctx_rows(rapt.torch.context.handle) if info[0] == row)


def guarded(world, place, package):
    """The three inputs of the report: cuda/bf16 fused, cuda/fp32 and cpu/fp32 elsewhere, forward and backward."""
    fused(world, place, package, "cuda", HALF)
    if package == "xformers":
        fused(world, place, package, "cuda", FULL)
    else:
        elsewhere(world, place, package, "cuda", FULL)
        elsewhere(world, place, package, "cuda", FULL, True)
    elsewhere(world, place, package, "cpu", FULL)
    elsewhere(world, place, package, "cpu", FULL, True)


def each_input_anew(world, place, package):
    """One site for all inputs: nothing that an earlier one decided holds for the next."""
    site = world.site(place, package)
    ran = [world.call(site, place, *cell) for cell in (("cuda", HALF), ("cpu", FULL), ("cuda", FULL), ("cuda", HALF))]
    assert ran == [True, False, package == "xformers", True]


def lines(world):
    for place, package in SITES:
        where = "CUDA" if package == "xformers" else "CUDA fp16/bf16"
        line = world.site(place, package).report_line(devices="cpu,cuda", load=True)
        assert line == f"{place:<19}: {DISPLAY[package]} ({where} only; torch_sdpa otherwise)"


def lines_are_what_runs(world):
    line = re.compile(r".{19}: (\w+)(?: \((CPU|CUDA)?(?: ?([\w/]+))? only; (\w+) otherwise\))?")
    for place, package in SITES:
        site = world.site(place, package)
        before, called = rapt.torch.context.entered(), len(world.fakes.calls)
        head, where, dtypes, other = line.fullmatch(site.report_line(devices="cpu,cuda", load=True)).groups()
        assert rapt.torch.context.entered() == before and len(world.fakes.calls) == called     # asking runs nothing
        for device, dtype in (("cuda", HALF), ("cuda", FULL), ("cpu", FULL), ("cpu", HALF)):
            name = "bf16" if dtype is HALF else "fp32"
            said = where in (None, device.upper()) and (dtypes is None or name in dtypes.split("/"))
            assert world.call(site, place, device, dtype) is (said and head == DISPLAY[package])
            if world.fault is None:
                assert display(rapt.last_report().row) == (head if said else other)
        if world.fault is None:
            after = rapt.torch.context.entered()
            assert site.entered() == {row: after[row] - before[row] for row in after if after[row] != before[row]}


BREAKS_ALL = ("installed", "device only", "resolved once", "never fused")

# name: (the test, the faults with which it must fail)
TESTS = {
    "video dit: cuda/bf16 stays fused": (lambda w: fused(w, "Video DiT", "flash2", "cuda", HALF), ("never fused",)),
    "video dit: cuda/fp32 and cpu/fp32 run elsewhere, forward and backward":
        (lambda w: guarded(w, "Video DiT", "flash2"), BREAKS_ALL),
    "action dit over flash2": (lambda w: guarded(w, "ActionDiT", "flash2"), BREAKS_ALL),
    "action dit over flash3": (lambda w: guarded(w, "ActionDiT", "flash3"), BREAKS_ALL),
    "action dit over sage, which falls back on cpu":
        (lambda w: (elsewhere(w, "ActionDiT", "sage", "cpu", FULL), guarded(w, "ActionDiT", "sage")), BREAKS_ALL),
    "action dit over xformers, which keeps fp32":
        (lambda w: guarded(w, "ActionDiT", "xformers"), ("installed", "resolved once", "never fused", "half for all")),
    "shared core over flash3": (lambda w: each_input_anew(w, "Wan shared core", "flash3"), BREAKS_ALL),
    "shared core over flash2": (lambda w: each_input_anew(w, "Wan shared core", "flash2"), BREAKS_ALL),
    "shared core over sage": (lambda w: each_input_anew(w, "Wan shared core", "sage"), BREAKS_ALL),
    "shared core over xformers":
        (lambda w: each_input_anew(w, "Wan shared core", "xformers"),
         ("installed", "resolved once", "never fused", "half for all")),
    "report lines of every site are qualified": (lines, ("bare line",)),
    "report lines say what then runs": (lines_are_what_runs, ("bare line", "installed", "never fused")),
}
assert len(TESTS) == 12


@pytest.mark.parametrize("name", TESTS)
def test_dispatch_guard(monkeypatch, name):
    TESTS[name][0](World(monkeypatch, None))


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, (_, faults) in TESTS.items() for fault in faults])
def test_dispatch_guard_fails_with_the_fault_put_back(monkeypatch, name, fault):
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        TESTS[name][0](World(monkeypatch, fault))


@pytest.mark.parametrize("name", TESTS)
def test_hand_written_dispatch_without_a_fault_passes(monkeypatch, name):
    """So what the faults break is the fault, not the stand-in."""
    TESTS[name][0](World(monkeypatch, "none of them"))


def test_the_kernels_raise_as_reported(monkeypatch):
    """What the guard is for: the two texts that users saw."""
    world = World(monkeypatch, "installed")
    with pytest.raises(RuntimeError, match="FlashAttention only support fp16 and bf16 data type"):
        world.call(world.site("ActionDiT", "flash2"), "ActionDiT", "cuda", FULL)
    with pytest.raises(NotImplementedError, match="_flash_attn_forward' with arguments from the 'CPU' backend"):
        world.call(world.site("ActionDiT", "flash2"), "ActionDiT", "cpu", FULL)


def test_the_fused_kernel_gets_the_tensors_as_they_are(monkeypatch):
    """The spy of the report: cuda/bf16 reaches flash_attn_func, without a cast or copy, forward and backward."""
    world = World(monkeypatch, None)
    site = world.site("ActionDiT", "flash2")
    q, k, v = world.operands("cuda", HALF)
    site(q, k, v)
    name, got = world.fakes.calls[-1]
    assert name == "flash_attn_func" and not rapt.last_report().json["casts"]
    for tensor, passed in zip((q, k, v), (got["q"], got["k"], got["v"])):
        assert passed.data_ptr() == tensor.data_ptr()
        assert passed.shape == tensor.shape and passed.stride() == tensor.stride()
    assert world.call(site, "ActionDiT", "cuda", HALF, True) and rapt.last_report().row == "fa2"
    assert world.call(world.site("ActionDiT", "sage"), "ActionDiT", "cuda", HALF, True) is False     # no backward there


def test_masks_and_compatibility_mode_fall_out_of_the_fused_field(monkeypatch):
    world = World(monkeypatch, None)
    video = world.site("Video DiT", "flash2")
    q, k, v = world.operands("cuda", HALF)
    before = len(world.fakes.calls)
    packed = [t.flatten(2) for t in (q, k, v)]
    video(*packed, HEADS, True)
    assert rapt.last_report().row == "torch.sdpa"
    video(*packed, HEADS, False, torch.ones(q.shape[1], q.shape[1], dtype=torch.bool))
    assert "MASK" in rapt.last_report().codes("fa2") and len(world.fakes.calls) == before


def test_unequal_lengths_reach_the_fused_kernel_a_sample_at_a_time(monkeypatch):
    """Wan's own signature: fp32 becomes bf16 first, and every sample has its own keys."""
    world = World(monkeypatch, None)
    site = rapt.torch.attention_site("Video DiT", prefer="flash2", otherwise="torch.sdpa")
    world.operands("cuda", HALF)
    q, k, v = (torch.rand(2, n, HEADS, WIDTH) * 2 - 1 for n in (5, 7, 7))
    out = site(q, k, v, q_lens=[5, 2], k_lens=[3, 6], causal=True, window_size=(4, 0))
    assert out.dtype is FULL and site.entered() == {"fa2": 2}
    assert [tuple(call[1]["k"].shape) for call in world.fakes.calls] == [(1, 3, HEADS, WIDTH), (1, 6, HEADS, WIDTH)]
    half = [t.to(HALF).double().numpy().swapaxes(1, 2) for t in (q, k, v)]
    want, _, bound, _ = oracle_np.attention(*half, dtype="bf16", off=np.array([3 - 5, 6 - 2]), causal=True, window=(4, 0),
                                            q_len=[5, 2], kv_len=[3, 6])
    oracle_np.check(out.double().numpy().swapaxes(1, 2), want, bound)
