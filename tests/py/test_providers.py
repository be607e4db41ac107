# SPDX-License-Identifier: Apache-2.0
"""Two fakes: installed is not usable, and what a half-only backend receives under autocast (D2, D4, A5)."""

import ctypes

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call, _providers, _rapt  # noqa: E402

FIRST = 1
DENSE, ISOLATE, BROADCAST, CAUSAL = 1 << 22, 1 << 29, 1 << 4, 1 << 8
HALVES = 1 << 1 | 1 << 2


@pytest.fixture
def context(monkeypatch):
    """A context of its own, so that the fakes of a test are met by that test only."""
    def register(handle):
        _rapt.ctx_register(handle, "torch", "torch.sdpa", None, {"torch": "2.13.0"}, None)

    fresh = _call.Context(register)
    monkeypatch.setattr(rapt.torch, "context", fresh)
    monkeypatch.setattr(_providers, "load", lambda context, kind: None)         # whatever is installed here
    return fresh


def values(address, count, dtype):
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def test_installed_is_not_usable_d2_d4(context):
    calls = []
    facts = {"flash-attn": "2.8.3"}
    _rapt.ctx_register(context.handle, "fa2", "fa2", lambda *call: calls.append(call) or 0, facts, FIRST)
    q = torch.rand(1, 2, 4, 64)
    out = rapt.torch.sdpa(q, q, q)
    report = rapt.last_report()
    assert report.row.startswith("cpu.") and out.abs().max() > 0
    codes = report.codes("fa2")
    assert "DEVICE" in codes and "DTYPE" in codes and "AVAIL" not in codes
    half = q.to(torch.bfloat16)
    rapt.torch.sdpa(half, half, half)
    assert rapt.last_report().codes("fa2").count("DEVICE") == 1 and "DTYPE" not in rapt.last_report().codes("fa2")
    with pytest.raises(rapt.RefusedError) as caught:
        rapt.torch.sdpa(q, q, q, require="fa2")                 # D10: nothing else is tried
    assert "DEVICE" in caught.value.report.codes("fa2")
    assert calls == [] and context.entered()["fa2"] == 0


def half_only(context, calls):
    def run(row, problem, pointers):
        calls.append((row, problem))
        values(pointers["out"], 1 * 2 * 4 * 8, np.uint16)[:] = 0x3F80           # ones in bf16
        return 0

    row = {"id": "fake.half", "kinds": 1, "dtypes": HALVES, "place": FIRST, "ran_on_hardware": 1,
           "can": DENSE | ISOLATE | BROADCAST | CAUSAL, "dv_rule": 1}
    _rapt.ctx_register(context.handle, "fake", [row], run, {}, None)


def test_a_half_only_row_receives_one_half_dtype_under_autocast_a5_a6(context):
    calls = []
    half_only(context, calls)
    q, k, v = torch.rand(1, 2, 4, 8), torch.rand(1, 2, 4, 8), torch.rand(1, 2, 4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu"):
        out = rapt.torch.sdpa(q, k, v)
    assert rapt.last_report().row == "fake.half"
    assert len(calls) == 1 and calls[0][0] == "fake.half"
    assert calls[0][1].split()[0] == "bf16"                     # one dtype for all three
    assert out.dtype is torch.bfloat16 and torch.equal(out, torch.ones_like(out))
    assert context.entered()["fake.half"] == 1                  # R1
    with torch.autocast("cpu", dtype=torch.float16):
        rapt.torch.sdpa(q, k, v)
    assert calls[1][1].split()[0] == "fp16"


def test_outside_autocast_it_is_passed_over_with_its_reason_d4(context):
    calls = []
    half_only(context, calls)
    q = torch.rand(1, 2, 4, 8)
    rapt.torch.sdpa(q, q, q)
    report = rapt.last_report()
    assert calls == [] and report.row != "fake.half" and report.codes("fake.half") == ["DTYPE"]
    rapt.torch.sdpa(q, q, q, forbid="fake.half", autocast="bf16")
    assert calls == [] and "FORBIDDEN" in rapt.last_report().codes("fake.half")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_backend_is_an_error_and_no_other_is_tried_d13(context):
    def run(row, problem, pointers):
        raise ValueError("on purpose")

    row = {"id": "fake.bad", "kinds": 1, "dtypes": 1 << 3, "place": FIRST, "ran_on_hardware": 1, "can": DENSE | ISOLATE}
    _rapt.ctx_register(context.handle, "bad", [row], run, {}, None)
    q = torch.rand(1, 2, 4, 8)
    before = context.entered()
    with pytest.raises(rapt.BackendError, match="DEVICE_ERROR"):
        rapt.torch.sdpa(q, q, q)
    after = context.entered()
    assert {name for name in after if after[name] != before[name]} <= {"fake.bad"}


def test_a_bad_row_is_refused_at_registration(context):
    with pytest.raises(_rapt.Fault):
        _rapt.ctx_register(context.handle, "x", [{"id": "NOT LEGAL"}], None, {}, None)
    with pytest.raises(KeyError):
        _rapt.ctx_register(context.handle, "x", "no.such.row", None, {}, None)
    with pytest.raises(KeyError):
        _rapt.ctx_register(context.handle, "x", "ref", None, {}, None)          # our own rows are not lent


# ---- Some rows of a known backend ----

def test_some_rows_keep_the_objections_of_their_backend(context):
    """The callbacks of the tables go by the number of a row there, not by its place among those registered."""
    facts = {"sageattention": "2.1.1", "cc": "12.0", "cuda": "12.4", "triton": "3.5.0"}
    _rapt.ctx_register(context.handle, "sage", ("sage.fp8_cuda", "sage.auto"), None, facts, {"place": 4})
    q = torch.empty(1, 2, 8, 64, dtype=torch.float16, device="meta")
    report = rapt.torch.explain(q, q, q, device="cuda", require="sage.auto")
    assert "VERSION" in report.codes("sage.fp8_cuda") and "VERSION" in report.codes("sage.auto")    # of cuda on cc 12
    assert "AVAIL" not in report.codes("sage.auto") and "AVAIL" in report.codes("sage.varlen")
    _rapt.ctx_register(context.handle, "sage", ("sage.fp8_cuda", "sage.auto"), None, {"cuda": "12.8"}, {"place": 4})
    assert rapt.torch.explain(q, q, q, device="cuda", require="sage.auto").row == "sage.auto"       # the same, with other facts


def test_a_member_that_nobody_brought_is_not_guessed(context):
    facts = {"sageattention": "2.1.1", "cc": "9.0", "cuda": "12.8", "triton": "3.5.0"}
    _rapt.ctx_register(context.handle, "sage", ("sage.auto",), None, facts, {"place": 4})
    q = torch.empty(1, 2, 8, 64, dtype=torch.float16, device="meta")
    report = rapt.torch.explain(q, q, q, device="cuda", require="sage.auto")
    assert report.status == "REFUSED" and "UNKNOWN_SUPPORT" in report.codes("sage.auto")


def test_the_text_of_a_failed_load_is_the_reason_and_facts_of_before_stay_d15(context):
    rows = ("fa2", "fa2.varlen")
    _rapt.ctx_register(context.handle, "flash-attn", rows, None, {"flash-attn": "2.5.0"}, {"place": 4})
    _rapt.ctx_register(context.handle, "flash-attn", rows, None, "OSError: undefined symbol", {"place": 4})
    q = torch.empty(1, 2, 8, 64, dtype=torch.float16, device="meta")
    report = rapt.torch.explain(q, q, q, device="cuda", require="fa2")
    reasons = [(r.code, r.got) for verdict in report.rows if verdict.row == "fa2" for r in verdict.reasons]
    assert ("AVAIL", "OSError: undefined symbol") in reasons and ("VERSION", "flash-attn 2.5.0") in reasons


def test_capabilities_that_a_binding_adds_count(context):
    q = torch.rand(1, 2, 4, 16)
    mask = torch.ones(4, 4, dtype=torch.bool)
    _rapt.ctx_register(context.handle, "flex", ("flex",), None, {}, {"place": 4})
    assert {"MASK", "ISOLATION"} <= set(rapt.torch.explain(q, q, q, mask=mask, require="flex").codes("flex"))
    other = _call.Context(rapt.torch._register)
    status, report = _call.explain(other, _call.prepare(*_described(q, mask)), None)
    assert report.row == "flex"


def _described(q, mask):
    from rapt import _torch_request
    r = _torch_request.request(True, None, q, q, q, mask, require="flex")
    return r.tensors, r.options, r.names


@pytest.mark.parametrize("rows, changes", [((), None), (("fa2", "sage.auto"), None), (("ref",), None),
                                           (("fa2", "no.such"), None), (("fa2",), {"no_field": 1}), (("fa2",), 4),
                                           (("fa2",), {"also": "x"}), (("fa2",), {"place": 2}), ((7,), None)])
def test_bad_rows_of_a_known_backend_are_refused_at_registration(context, rows, changes):
    with pytest.raises((KeyError, TypeError, _rapt.Fault)):
        _rapt.ctx_register(context.handle, "bad", rows, None, {}, changes)
