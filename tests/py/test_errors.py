# SPDX-License-Identifier: Apache-2.0
"""An exception's text is the refusal, with the argument, the value, the limit and the remedy; it carries the record (E3, E8)."""

import pickle
import re

import numpy as np
import pytest
import rapt
from rapt import _call, _numpy, _rapt

FIRST, DENSE, ISOLATE = 1, 1 << 22, 1 << 29


def arrays(dtype=np.float32, shape=(1, 2, 4, 8)):
    return [np.ones(shape, dtype)] * 3


def caught(kind, **keywords):
    with pytest.raises(kind) as error:
        rapt.attention(*arrays(), **keywords)
    return error.value


# One fault a keyword: (what is passed, what the text must say of it)
FAULTS = [
    ({"window": (-2, 0)}, ("window", "-2")), ({"scale": float("nan")}, ("scale", "nan")), ({"causal": "up"}, ("causal", "up")),
    ({"kv_len": np.array([9], np.int32)}, ("kv_len", "9")), ({"mask": np.ones((4, 4), np.int32)}, ("mask", "int32")),
    ({"bias": np.ones((4, 5), np.float32)}, ("bias", "5")), ({"autocast": "fp64"}, ("autocast", "fp64")),
    ({"require": "nobody"}, ("require", "nobody")), ({"determinism": "always"}, ("determinism", "always")),
    ({"memory_limit": -1}, ("memory_limit", "-1")), ({"strict": "no"}, ("strict", "no")), ({"dropout": 2.0}, ("dropout", "2")),
    ({"layout": "dshb"}, ("layout", "dshb")), ({"softcap": -1.0}, ("softcap", "-1")),
]


@pytest.mark.parametrize("keywords, said", FAULTS, ids=[next(iter(keywords)) for keywords, _ in FAULTS])
def test_a_fault_names_the_argument_the_value_and_what_is_wanted_e3(keywords, said):
    error = caught(rapt.ArgumentError, **keywords)
    text = str(error)
    assert all(part in text for part in said), text
    assert error.code in _rapt.CODES and error.field and error.want and text.startswith(f"{error.code}: ")
    remedy = re.split(r"[.;:,] ", text, maxsplit=1)[1]
    assert len(remedy) > 8 and text.rstrip()[-1] in '.?)"', text


def test_a_fault_of_the_core_carries_its_report_e8():
    error = caught(rapt.ArgumentError, softcap=-1.0)
    assert error.report.status == "ARG" and error.report is rapt.last_report() and error.code == "SOFTCAP"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_a_refusal_says_the_remedy_of_every_row_that_was_asked_for_d10_e8():
    error = caught(rapt.RefusedError, require="fa2,sage.auto")
    text = str(error)
    for row in ("fa2", "sage.auto"):
        reasons = next(v for v in error.report.rows if v.row == row).reasons
        for reason in reasons:
            if reason.state == "failed" and reason.code not in ("OPT_IN",):
                assert reason.text in text, reason
    assert error.report.status == "REFUSED" and error.report is rapt.last_report()
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text and again.report.rows == error.report.rows


@pytest.fixture
def failing(monkeypatch):
    """A row that fails when told to: failing.append(1)."""
    context, told = _call.Context(), []
    monkeypatch.setattr(_numpy, "context", context)

    def run(row, problem, pointers):
        if told:
            raise ValueError("on purpose")
        return 0

    row = {"id": "fake.bad", "kinds": 1, "dtypes": 1 << 3, "place": FIRST, "ran_on_hardware": 1, "can": DENSE | ISOLATE}
    _rapt.ctx_register(context.handle, "bad", [row], run, {}, None)
    return context, told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_run_names_the_row_and_carries_its_report_d13(failing):
    failing[1].append(1)
    error = caught(rapt.BackendError)
    assert "DEVICE_ERROR" in str(error) and error.report.json["chosen"]["row"] == "fake.bad"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_so_does_one_of_a_call_that_ran_before(failing, monkeypatch):
    torch = pytest.importorskip("torch")
    import rapt.torch
    context, told = failing
    monkeypatch.setattr(rapt.torch, "context", context)
    q = torch.ones(1, 2, 4, 8)
    for _ in range(3):
        rapt.torch.sdpa(q, q, q)
    told.append(1)
    with pytest.raises(rapt.BackendError) as error:
        rapt.torch.sdpa(q, q, q)
    assert "fake.bad" in str(error.value) and error.value.report.row == "fake.bad"


def test_an_operator_says_the_same_and_last_report_is_the_record():
    """PyTorch makes a RuntimeError of what an operator raises, and drops everything but the text."""
    torch = pytest.importorskip("torch")
    import rapt.torch
    q = torch.ones(1, 2, 4, 8)
    for call, kind, status in (
            (lambda ask: ask(q, q, q, require="fa2"), rapt.RefusedError, "REFUSED"),
            (lambda ask: ask(q, q, q.half()), rapt.ArgumentError, "ARG")):
        with pytest.raises(kind) as eager:
            call(rapt.torch.sdpa)
        with pytest.raises(RuntimeError) as operator:
            call(lambda *tensors, require=None: torch.ops.rapt.sdpa(
                *tensors, policy="" if require is None else f"{require}\x01\x01\x01\x01"))
        report = rapt.last_report()
        assert report.status == status
        told = str(operator.value).splitlines()
        assert told[0].partition(" Expected")[0] in str(eager.value).replace("forbid=", "") or "no permitted backend" in told[0]
        remedies = [line.split(". ", 1)[1].rstrip(".") for line in told if ". " in line]
        assert remedies and all(remedy[:20] in str(eager.value) for remedy in remedies)
