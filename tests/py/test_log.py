# SPDX-License-Identifier: Apache-2.0
"""Decisions, refusals and notices as records of the logger "rapt", and RAPT_LOG (E4, R8)."""

import ctypes
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import rapt
from rapt import _call, _log, _numpy, _rapt
from rapt._errors import DTYPE


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def context(monkeypatch):
    """A context of its own: what it has decided before is nothing."""
    fresh = _call.Context()
    monkeypatch.setattr(_numpy, "context", fresh)
    return fresh


@pytest.fixture
def kept(context):
    """Every record of the logger "rapt"."""
    logger, handler = logging.getLogger("rapt"), Kept()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.records
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def call(size=8, **keywords):
    q = np.ones((1, 1, size, 8), np.float32)
    return rapt.attention(q, q, q, **keywords)


def python(code, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAPT_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**env, **environment})
    return done.returncode, done.stdout, done.stderr


ONE = ("import numpy as np, rapt\n"
       "def call(n=8, **k):\n    a = np.ones((1,1,n,8), np.float32)\n    return rapt.attention(a, a, a, **k)\n")


# ---- Records ----

def test_a_new_decision_is_one_record_and_a_known_one_none_e4(kept):
    call()
    call()
    assert [(r.levelname, r.rapt_kind) for r in kept] == [("DEBUG", "decision")]
    said = kept[0].getMessage()
    assert said.startswith("fp32 b1 h1 q8 k8 d8 -> ") and rapt.last_report().kernel in said
    assert kept[0].threadName == threading.current_thread().name and kept[0].name == "rapt"
    call(9)
    assert len(kept) == 2


def test_refusals_and_faults_are_records_too(kept):
    with pytest.raises(rapt.RefusedError):
        call(require="fa2")
    with pytest.raises(rapt.ArgumentError):
        call(kv_len=np.array([9], np.int32))
    kinds = [("INFO", "refusal"), ("DEBUG", "decision"), ("INFO", "fault")]     # the lengths are looked at when it runs
    assert [(r.levelname, r.rapt_kind) for r in kept] == kinds
    assert "fa2" in kept[0].getMessage() and "LENGTHS" in kept[2].getMessage()


def test_a_fallback_from_prefer_is_a_warning_once_r8(kept):
    call(prefer="fa2")
    call(9, prefer="fa2")
    warnings = [r.getMessage() for r in kept if r.rapt_kind == "notice"]
    assert len(warnings) == 1 and "in place of fa2" in warnings[0]
    assert [r.levelno for r in kept if r.rapt_kind == "notice"] == [logging.WARNING]


def test_the_loggers_level_decides_at_the_moment(kept):
    logging.getLogger("rapt").setLevel(logging.WARNING)
    call()
    assert kept == []
    logging.getLogger("rapt").setLevel(logging.DEBUG)
    call(9)
    assert len(kept) == 1


def test_a_handler_that_raises_loses_nothing(kept, context, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    class Broken(logging.Filter):
        def filter(self, record):
            raise OSError("on purpose")

    broken, logger = Broken(), logging.getLogger("rapt")
    logger.addFilter(broken)
    try:
        assert call().shape == (1, 1, 8, 8)     # the call has run and keeps its result
        with pytest.raises(rapt.RefusedError):
            call(require="fa2")                 # and a refusal stays the refusal
    finally:
        logger.removeFilter(broken)
    assert len(unraisable) == 2 and isinstance(unraisable[0].exc_value, OSError)
    call(9)
    assert len(kept) == 1 and context.entered()[rapt.last_report().row] == 2


def test_ctrl_c_in_a_handler_reaches_the_program(kept):
    class Interrupted(logging.Filter):
        def filter(self, record):
            raise KeyboardInterrupt

    interrupted, logger = Interrupted(), logging.getLogger("rapt")
    logger.addFilter(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
            for _ in range(1000):
                pass
    finally:
        logger.removeFilter(interrupted)


def test_a_handler_may_call_rapt_itself(kept):
    class Caller(logging.Handler):
        calls = 0

        def emit(self, record):
            self.calls += 1
            call(100 + self.calls)

    caller, logger = Caller(), logging.getLogger("rapt")
    logger.addHandler(caller)
    try:
        call()
    finally:
        logger.removeHandler(caller)
    assert caller.calls == 1 and len(kept) == 1         # what it does itself is not logged, or it would not end
    call(9)
    assert len(kept) == 2


def test_threads_log_under_their_own_names(kept):
    threads = [threading.Thread(target=call, args=(50 + i,), name=f"worker-{i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {r.getMessage().split()[4]: (r.thread, r.threadName) for r in kept}
    assert len(names) == 4
    for i, thread in enumerate(threads):
        assert names[f"k{50 + i}"][0] == thread.ident
        assert names[f"k{50 + i}"][1] in (f"worker-{i}", None)      # None: told after the thread had ended


def test_lines_that_nobody_takes_are_counted_not_piled_up(kept):
    _log._receive(0, "rapt: a line", threading.get_ident(), 0, 3)
    assert "3 lines before this one were lost" in kept[0].getMessage() and kept[1].getMessage() == "a line"


def test_an_operator_of_pytorch_logs_from_threads_that_do_not_hold_the_lock(kept):
    torch = pytest.importorskip("torch")
    import rapt.torch
    sizes = [11, 13, 17, 19]

    def work(n):
        q = torch.rand(1, 1, n, 8)
        torch.ops.rapt.sdpa(q, q, q)

    threads = [threading.Thread(target=work, args=(n,)) for n in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(100):                # the main thread comes by
        pass
    said = [r.getMessage().split()[4] for r in kept]
    assert sorted(said) == sorted(f"k{n}" for n in sizes)


def test_the_hook_does_not_want_the_lock_of_the_interpreter(kept, context):
    """A call computes while this thread keeps the lock, as it may do until the call has its result. Four thousand rows
    make the decision take longer than this thread needs to get the lock."""
    rows = [{"id": f"fake.r{i}", "kinds": 1, "dtypes": 1 << 3, "place": 1} for i in range(4000)]
    _rapt.ctx_register(context.handle, "fake", rows, lambda *call: 0, {}, None)
    q, out = np.ones((1, 1, 8, 8), np.float32), np.zeros((1, 1, 8, 8), np.float32)
    prepared = _rapt.prepare({name: (q, DTYPE["fp32"]) for name in "qkv"}, {})
    _rapt.attach(prepared, "out", (out, DTYPE["fp32"]))
    started, keep_the_lock, before = threading.Event(), ctypes.PyDLL(None).usleep, sys.getswitchinterval()

    def work():
        started.set()
        _rapt.attention(context.handle, prepared)

    thread = threading.Thread(target=work)
    sys.setswitchinterval(100)
    try:
        thread.start()
        started.wait()
        keep_the_lock(400000)
        done = out.all()
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert done and len(kept) == 1


# ---- Nothing by itself ----

def test_nothing_is_printed_or_imported_e4():
    code = "import sys\n" + ONE + "before = 'logging' in sys.modules\ncall(prefer='fa2')\nprint(before)"
    status, out, err = python(code)
    assert (status, err) == (0, "")
    code = "import logging\n" + ONE + "call(prefer='fa2')\ntry:\n    call(require='fa2')\nexcept rapt.RefusedError:\n    pass"
    assert python(code) == (0, "", "")          # a program that uses logging and has set nothing up


def test_a_program_that_sets_logging_up_sees_warnings():
    code = "import logging\nlogging.basicConfig()\n" + ONE + "call(prefer='fa2')"
    status, out, err = python(code)
    assert (status, out) == (0, "") and err.startswith("WARNING:rapt:") and err.count("\n") == 1


# ---- RAPT_LOG ----

def test_rapt_log_writes_the_cores_lines_e4(tmp_path):
    path = str(tmp_path / "rapt.log")
    code = ONE + "call()\ncall()\ntry:\n    call(require='fa2')\nexcept rapt.RefusedError:\n    pass"
    assert python(code, RAPT_LOG=path) == (0, "", "")
    lines = open(path).read().splitlines()
    assert len(lines) == 2 and lines[0].startswith("rapt: fp32 b1 h1 q8 k8 d8 -> ") and "REFUSED" in lines[1]
    status, out, err = python(code, RAPT_LOG="stderr:refusals")
    assert (status, out) == (0, "") and err.splitlines() == lines[1:]
    status, out, err = python(code, RAPT_LOG="stderr:decisions")
    assert err.splitlines() == lines[:1]


def test_rapt_log_and_logging_go_together(tmp_path):
    path = str(tmp_path / "rapt.log")
    code = "import logging\nlogging.basicConfig(level=logging.DEBUG)\n" + ONE + "call()"
    status, out, err = python(code, RAPT_LOG=path)
    assert status == 0 and open(path).read() == "rapt: " + err.removeprefix("DEBUG:rapt:")


def test_a_wrong_rapt_log_is_the_cores_error_d23():
    code = ONE + "try:\n    call()\nexcept rapt.ArgumentError as e:\n    print(e.code, e.field)"
    assert python(code, RAPT_LOG="nowhere") == (0, "SYNTAX RAPT_LOG\n", "")
    assert python(code, RAPT_LOG="/nowhere/at/all")[1] == "SYNTAX RAPT_LOG\n"


def test_the_last_lines_are_told_at_exit(tmp_path):
    pytest.importorskip("torch")
    path = str(tmp_path / "rapt.log")
    code = ("import torch, rapt.torch, threading\nq = torch.rand(1,1,8,8)\n"
            "t = threading.Thread(target=lambda: torch.ops.rapt.sdpa(q, q, q))\nt.start()\nt.join()")
    assert python(code, RAPT_LOG=path)[0] == 0
    assert open(path).read().count("\n") == 1


def test_a_forked_child_logs_its_own_lines(tmp_path):
    path = str(tmp_path / "rapt.log")
    code = ONE + ("import os\ncall()\npid = os.fork()\ncall(9)\n"
                  "if pid:\n    os.waitpid(pid, 0)\nelse:\n    os._exit(0)")
    assert python(code, RAPT_LOG=path)[0] == 0
    lines = open(path).read().splitlines()
    assert len(lines) == 3 and sum(" k9 " in line for line in lines) == 2
