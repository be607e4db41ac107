# SPDX-License-Identifier: Apache-2.0
"""Packages that break: at import, by version, while they run, or in what they hand back. Each is a reason or an error that
names the row; none is papered over and no other row is tried (D13, D15, R1)."""

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call, _providers  # noqa: E402
from test_provider_conventions import LINES, PLAIN, SQUARE, compare, stand, tensors  # noqa: E402

# ---- What comes back ----

_SPOILED = {
    "raises": (lambda out, lse: _raise(RuntimeError("CUDA error: no kernel image is available")), "no kernel image"),
    "raises an assertion": (lambda out, lse: _raise(AssertionError("only for sm90")), "AssertionError: only for sm90"),
    "NaN": (lambda out, lse: (out * float("nan"), lse), "NaN for finite tensors"),
    "wrong shape": (lambda out, lse: (out[..., :-1], lse), "out of shape"),
    "heads and rows swapped": (lambda out, lse: (out.transpose(1, 2), lse), "out of shape"),
    "wrong dtype": (lambda out, lse: (out.float(), lse), "out of dtype torch.float32"),
    "wrong device": (lambda out, lse: (out.to("meta"), lse), "out of device meta"),
    "nothing": (lambda out, lse: (None, lse), "NoneType as out"),
    "a number": (lambda out, lse: (3.0, lse), "float as out"),
    "lse of another shape": (lambda out, lse: (out, lse.transpose(1, 2)), "lse of shape"),
    "lse padded": (lambda out, lse: (out, torch.nn.functional.pad(lse, (0, 5))), "lse of shape"),
    "lse of a half dtype": (lambda out, lse: (out, lse.half()), "lse of dtype"),
    "no lse": (lambda out, lse: (out, None), "NoneType as lse"),
}


def _raise(error):
    raise error


def _spoil(change):
    def spoil(name, result):
        if isinstance(result, tuple):
            out, lse = change(*result[:2])
            return out, lse, *result[2:]
        return change(result, None)[0]
    return spoil


@pytest.mark.parametrize("row", ["fa2", "fa3", "fa4", "sage.auto", "mslk.auto", "aiter.ck", "hub.sage"])
@pytest.mark.parametrize("how", _SPOILED)
def test_a_package_that_misbehaves_is_an_error_that_names_the_row_d13(monkeypatch, row, how):
    if row == "mslk.auto" and how == "lse padded":
        return                                                  # lse may be padded there; it is cut (H9)
    fakes = stand(monkeypatch, row)
    change, words = _SPOILED[how]
    fakes.spoil = _spoil(change)
    q, k, v = tensors(PLAIN)
    with pytest.raises(rapt.BackendError, match=row.replace(".", r"\.")) as caught:
        rapt.torch.sdpa(q, k, v, prefer=row, require=f"{row},torch.sdpa", return_lse="lse" in how)
    assert words in str(caught.value), str(caught.value)
    assert caught.value.report.row == row and rapt.last_report().row == row
    entered = rapt.torch.context.entered()
    assert entered[row] == 1 and sum(entered.values()) == 1     # nobody else was tried


def test_a_detached_result_where_a_gradient_is_needed_is_an_error(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    fakes.spoil = lambda name, result: result.detach()
    q, k, v = (t.requires_grad_() for t in tensors(SQUARE))
    with pytest.raises(rapt.BackendError, match="fa2 returned a result that is detached"):
        rapt.torch.sdpa(q, k, v, require="fa2")


def test_nan_that_comes_of_the_tensors_is_no_failure_n10(monkeypatch):
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    v[0, 0, 3, 5] = float("nan")
    assert rapt.torch.sdpa(q, k, v, require="fa2").isnan().any()
    q, k, v = tensors(SQUARE, torch.bfloat16)
    q, k = q * 1e30, k * 1e30                                   # logits beyond fp32
    rapt.torch.sdpa(q, k, v, require="fa2")


def test_out_of_memory_keeps_its_type_and_is_counted(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    fakes.spoil = lambda name, result: _raise(torch.OutOfMemoryError("2 GiB"))
    q, k, v = tensors(SQUARE)
    with pytest.raises(torch.OutOfMemoryError):
        rapt.torch.sdpa(q, k, v, require="fa2")
    assert rapt.torch.context.entered()["fa2"] == 1


def test_after_a_failure_the_host_works_as_before(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    fakes.spoil = _spoil(_SPOILED["raises"][0])
    with pytest.raises(rapt.BackendError):
        rapt.torch.sdpa(q, k, v, require="fa2")
    fakes.spoil = None
    rapt.torch.sdpa(q, k, v, require="fa2")
    assert rapt.torch.context.entered()["fa2"] == 2
    with rapt.policy(forbid="fa2"):
        rapt.torch.sdpa(q, k, v)
    assert rapt.last_report().row.startswith("torch.")


# ---- What does not load ----

def _install(monkeypatch, folder, module, text, version, distribution=None):
    fake_device.forget(monkeypatch)
    monkeypatch.setattr(sys, "path", [str(folder), *(p for p in sys.path if not p.startswith(str(fake_device.FAKES)))])
    importlib.invalidate_caches()
    (folder / f"{module}.py").write_text(text)
    if version is not None:
        name = distribution or module.replace("_", "-")
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _pretend_without_fakes(monkeypatch, cc="9.0"):
    monkeypatch.setattr(fake_device, "on_path", lambda monkeypatch, other: type("none", (), {})())
    fake_device.pretend(monkeypatch, "cuda", cc)


_GOOD = "def flash_attn_func(*a, **k): raise SystemError('not for this test')\nflash_attn_varlen_func = flash_attn_func\n"
_BROKEN = {
    "ImportError": ("raise ImportError('libcudart.so.12: cannot open shared object file')", "ImportError: libcudart.so.12"),
    "OSError": ("raise OSError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E')", "undefined symbol: _ZN3c105"),
    "RuntimeError": ("raise RuntimeError('built for another PyTorch')", "RuntimeError: built for another PyTorch"),
    "SystemExit": ("raise SystemExit(3)", "SystemExit: 3"),
    "SyntaxError": ("this is no Python", "SyntaxError"),
    "missing symbol": ("def flash_attn_func(): pass", "has no flash_attn_varlen_func"),
    "no ASCII": ("raise ImportError('d\\u00e9faut \\u2014 ' + 'x' * 300)", "ImportError: d?faut"),
}


@pytest.mark.parametrize("how", _BROKEN)
def test_what_fails_at_import_is_a_reason_with_its_text_d15(monkeypatch, tmp_path, how):
    code, words = _BROKEN[how]
    _install(monkeypatch, tmp_path, "flash_attn", code, "2.8.3")
    _pretend_without_fakes(monkeypatch)
    q, k, v = tensors(SQUARE)
    out = rapt.torch.sdpa(q, k, v, prefer="fa2")                # falls through, with the reason in the report
    report = rapt.last_report()
    reason = next(r for verdict in report.rows if verdict.row == "fa2" for r in verdict.reasons if r.code == "AVAIL")
    assert words in reason.got and report.row.startswith("torch.") and out.shape == q.shape
    assert "flash-attn" in _providers.failures(rapt.torch.context)
    with pytest.raises(rapt.RefusedError, match="fa2 is not available here"):
        rapt.torch.sdpa(q, k, v, require="fa2")


_VERSIONS = [("flash_attn", "flash-attn", "2.5.8", "fa2", "9.0", "VERSION"),
             ("flash_attn", "flash-attn", "2.8.3", "fa2", "9.0", None),
             ("flash_attn_interface", "flash-attn-3", "3.0.0b1", "fa3", "9.0", "UNKNOWN_SUPPORT"),
             ("sageattention", "sageattention", "1.0.6", "sage.auto", "9.0", "VERSION"),
             ("sageattention", "sageattention", "2.2.0", "sage.fp8_sm90", "9.0", "KNOWN_BAD"),
             ("flash_attn", "flash-attn", "unknown", "fa2", "9.0", "AVAIL"),
             ("flash_attn", "flash-attn", "2.8.3", "fa2", "7.5", "DEVICE")]


@pytest.mark.parametrize("module, distribution, version, row, cc, code", _VERSIONS)
def test_versions_are_read_from_metadata_d2_d25(monkeypatch, tmp_path, module, distribution, version, row, cc, code):
    _install(monkeypatch, tmp_path, module, _GOOD + "sageattn = flash_attn_func\n", version, distribution)
    _pretend_without_fakes(monkeypatch, cc)
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v)
    codes = rapt.last_report().codes(row)
    assert (code in codes) if code else not {"VERSION", "AVAIL", "KNOWN_BAD", "DEVICE"} & set(codes), codes


def test_a_module_without_metadata_is_not_installed(monkeypatch, tmp_path):
    """A folder of that name, as a checkout leaves one, is no package: nothing says which version it is."""
    _install(monkeypatch, tmp_path, "flash_attn", "raise RuntimeError('was imported')", None)
    _pretend_without_fakes(monkeypatch)
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v)
    reasons = [r for verdict in rapt.last_report().rows if verdict.row == "fa2" for r in verdict.reasons]
    assert reasons[0].code == "AVAIL" and reasons[0].got == "not installed"
    assert not _providers.failures(rapt.torch.context)


# ---- When it loads ----

def test_nothing_is_imported_for_cpu_tensors(monkeypatch, tmp_path):
    _install(monkeypatch, tmp_path, "flash_attn", "raise SystemError('was imported')", "2.8.3")
    monkeypatch.setattr(rapt.torch, "context", _call.Context(rapt.torch._register))
    q, k, v = tensors(SQUARE, torch.float32)
    rapt.torch.sdpa(q, k, v, prefer="fa2")
    report = rapt.last_report()
    assert report.row.startswith("cpu.") and not _providers.failures(rapt.torch.context)
    codes = report.codes("fa2")
    assert "DEVICE" in codes and "AVAIL" not in codes           # installed, and its device is the reason


def test_a_package_is_imported_once_a_context(monkeypatch, tmp_path):
    _install(monkeypatch, tmp_path, "flash_attn", "import builtins\nbuiltins.rapt_loads = getattr(builtins, 'rapt_loads', 0)"
             " + 1\nraise ImportError('again')", "2.8.3")
    _pretend_without_fakes(monkeypatch)
    import builtins
    monkeypatch.setattr(builtins, "rapt_loads", 0, raising=False)
    q, k, v = tensors(SQUARE)
    for _ in range(3):
        rapt.torch.sdpa(q, k, v)
        rapt.torch.explain(q, k, v)
    assert builtins.rapt_loads == 1


def test_explain_of_meta_tensors_loads_what_a_call_there_would(monkeypatch):
    fakes = fake_device.pretend(monkeypatch)
    shape = torch.empty(2, 4, 9, 64, device="meta", dtype=torch.float16)
    report = rapt.torch.explain(shape, shape, shape, device="cuda", prefer="fa2")
    assert report.row == "fa2" and fakes.calls == [] and not any(rapt.torch.context.entered().values())
    assert "ran" not in str(report).split("\n")[0]              # R3


def test_a_package_is_imported_without_the_callers_modes(monkeypatch, tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode
    _install(monkeypatch, tmp_path, "flash_attn", "import torch\nTABLE = torch.zeros(3)\n"
             "assert type(TABLE) is torch.Tensor\n" + _GOOD, "2.8.3")
    _pretend_without_fakes(monkeypatch)
    with FakeTensorMode():
        q = torch.empty(2, 4, 9, 64, dtype=torch.float16)
        report = rapt.torch.explain(q, q, q, device="cuda", prefer="fa2")
    assert report.row == "fa2", _providers.failures(rapt.torch.context)


# ---- The lines of test_provider_conventions.py can fail ----

def _wrong(row, change):
    """The row's operator, its call changed first or its result after."""
    right = _providers.operators()[row]

    def operator(call, package):
        done = change(call)
        out, lse = right(call, package)
        return done(out, lse) if done is not None else (out, lse)
    return operator


def _set(**fields):
    def change(call):
        for name, value in fields.items():
            setattr(call, name, value(call) if callable(value) else value)
    return change


_BASE_2 = lambda call: lambda out, lse: (out, lse / 0.6931471805599453)  # noqa: E731
_FAULTS = [
    ("fa2", "scale", _set(scale=1.0)), ("fa2", "soft cap", _set(softcap=0.0)),
    ("fa2", "layout bshd, lse (B,H,S)", _BASE_2), ("fa2", "causal with a window", _set(window=(-1, -1))),
    ("fa2", "corner bottom right", _set(causal=False)), ("fa2", "alibi from the bottom right", _set(slopes=None)),
    ("fa2", "dropout stays exactly 0 where lse is asked for", _set(dropout=1e-30)),
    ("fa4", "sinks", _set(sinks=None)), ("sage.auto", "scale", _set(scale=lambda call: None)),
    ("npu", "True of the mask is dropped there", _set(mask=lambda call: ~call.mask)),
    ("npu", "scale is always passed", _set(scale=1.0)), ("npu", "causal is not dropped", _set(causal=False)),
    ("mslk.auto", "a causal window counts its keys", _set(window=lambda call: (call.window[0] - 1, -1))),
    ("mslk.auto", "corner top left", _set(off=lambda call: call.k.shape[2] - call.q.shape[2])),
    ("aiter.ck", "a bias of two axes", _set(bias=lambda call: call.bias * 0.5)),
    ("flex", "soft cap, lse to base e", _BASE_2), ("flex", "an offset", _set(off=0)),
    ("flex", "bias of a broadcast shape, mask and soft cap", _set(mask=None)),
]


@pytest.mark.parametrize("row, what, change", _FAULTS, ids=[f"{row}: {what}" for row, what, _ in _FAULTS])
def test_the_lines_fail_where_the_conversion_is_wrong(monkeypatch, row, what, change):
    line = next(line for line in LINES if (line.row, line.what) == (row, what))
    fakes = stand(monkeypatch, row)
    monkeypatch.setitem(_providers.operators(), row, _wrong(row, change))
    with pytest.raises((AssertionError, rapt.BackendError)):
        compare(line, fakes)


def test_without_the_rule_of_visibility_lse_of_an_empty_row_would_be_positive(monkeypatch):
    line = next(line for line in LINES if line.row == "fa2" and "without keys" in line.what)
    fakes = stand(monkeypatch, "fa2")
    monkeypatch.setattr(_providers._run, "_without_keys", lambda call, out, lse: (out, lse))
    with pytest.raises(AssertionError):
        compare(line, fakes)
