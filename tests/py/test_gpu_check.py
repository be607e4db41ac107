# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check without a GPU: it says so, its checks run over the fakes, and they see a fault."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _providers  # noqa: E402

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "gpu-check"


def load():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


def test_without_a_device_it_says_so_and_exits_3():
    if torch.cuda.is_available():
        return
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout == "not run here: no CUDA device\n", done.stderr


PACKAGES = ("fa2", "fa3", "fa4", "sage.auto", "mslk.auto")


def over_fakes(monkeypatch, titles):
    fake_device.pretend(monkeypatch)
    lines = []
    counts = load().run(torch, rapt, "cpu", lines.append, lambda title: title in titles)
    return counts, lines


def test_its_checks_of_packages_pass_over_the_fakes(monkeypatch):
    titles = [f"row {row}" for row in PACKAGES] + [f"lse of {row}" for row in PACKAGES]
    counts, lines = over_fakes(monkeypatch, titles + ["fp32 with backward", "autocast after a norm",
                                                      "a Flux block under autocast"])
    assert counts == (13, 0, 0), lines[-1]


def test_its_check_of_cpu_tensors_passes_where_they_are_cpu_tensors(monkeypatch):
    fake_device.at_home(monkeypatch)
    lines = []
    assert load().run(torch, rapt, "cpu", lines.append, lambda title: title == "CPU tensors") == (1, 0, 0), lines


def test_a_package_that_is_missing_is_no_failure(monkeypatch):
    fake_device.pretend(monkeypatch)
    monkeypatch.setattr(_providers._packages, "_version", lambda names: None)
    monkeypatch.setattr(rapt.torch, "context", rapt._call.Context(rapt.torch._register))
    lines = []
    counts = load().run(torch, rapt, "cpu", lines.append, lambda title: title == "row fa2")
    assert counts == (0, 0, 1) and "not installed" in lines[0]


@pytest.mark.parametrize("title, fault", [
    ("row fa2", lambda out, lse: (out * 1.5, lse)), ("lse of fa3", lambda out, lse: (out, lse / 0.6931)),
    ("row sage.auto", lambda out, lse: (out + 1, lse))])
def test_its_checks_see_a_fault(monkeypatch, title, fault):
    row = title.split()[-1]
    right = _providers.operators()[row]
    monkeypatch.setitem(_providers.operators(), row, lambda call, package: fault(*right(call, package)))
    counts, lines = over_fakes(monkeypatch, [title])
    assert counts == (0, 1, 0) and "FAILED" in lines[0], lines


def test_a_spy_that_is_not_reached_is_a_failure(monkeypatch):
    fake_device.pretend(monkeypatch)
    monkeypatch.setitem(_providers.operators(), "fa2", lambda call, package: (call.q * 0, None))
    lines = []
    assert load().run(torch, rapt, "cpu", lines.append, lambda title: title == "row fa2")[1] == 1
    assert "was called 0 times" in lines[0]
