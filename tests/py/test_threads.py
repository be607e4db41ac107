# SPDX-License-Identifier: Apache-2.0
"""Threads, forked and spawned processes, and PyTorch's threads on request (N18, P5, P10)."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _rapt  # noqa: E402

BIG = (2, 4, 150, 32)                   # more than one task


@pytest.fixture
def pool():
    """Switches pools and PyTorch's thread count, and puts both back."""
    name, threads = rapt.torch.use_pool("own"), torch.get_num_threads()

    def switch(to, count=None):
        rapt.torch.use_pool(to)
        if count is not None:
            torch.set_num_threads(count)

    yield switch
    rapt.torch.use_pool(name)
    torch.set_num_threads(threads)


def operands(dtype=torch.float32, seed=0, shape=BIG):
    g = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=g).to(dtype) for _ in range(3)]


def python(code, limit=60, **environment):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=limit,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# ---- Several threads ----

def run_in(count, work):
    results, errors = [None] * count, []

    def one(i):
        try:
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001  said by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return results


@pytest.mark.parametrize("name", ["own", "torch"])
def test_calls_of_several_threads_give_the_bits_of_one_p5_n18(pool, name):
    inputs = [operands(seed=i) for i in range(4)]
    alone = [rapt.torch.sdpa(*x) for x in inputs]
    pool(name)

    def work(i):
        return [rapt.torch.sdpa(*inputs[i]) for _ in range(25)]

    for mine, expected in zip(run_in(4, work), alone):
        assert all(torch.equal(result, expected) for result in mine)


def test_each_thread_has_its_own_last_report_d21():
    def work(i):
        for _ in range(20):
            rapt.torch.sdpa(*operands(seed=i, shape=(1, 1, 3 + i, 8)), require=("ref", "cpu")[i % 2])
            row = rapt.last_report().row
            assert (row == "ref") == (i % 2 == 0), row
        return True

    assert all(run_in(4, work))


def test_numpy_and_pytorch_at_once():
    q = np.random.default_rng(0).random(BIG, np.float32)
    alone = rapt.attention(q, q, q)
    results = run_in(4, lambda i: rapt.torch.sdpa(*[torch.from_numpy(q)] * 3).numpy() if i % 2 else rapt.attention(q, q, q))
    assert all(np.array_equal(result, alone) for result in results)


def test_installed_calls_of_several_threads(pool):
    inputs = [operands(seed=i) for i in range(4)]
    with rapt.torch.install():
        alone = [F.scaled_dot_product_attention(*x) for x in inputs]
        for name in ("own", "torch"):
            pool(name)
            results = run_in(4, lambda i: F.scaled_dot_product_attention(*inputs[i]))
            assert all(torch.equal(a, b) for a, b in zip(results, alone))


# ---- PyTorch's threads ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2])
def test_both_pools_give_the_same_bits_n18(pool, dtype, count):
    q, k, v = operands(dtype)
    mask = torch.rand(2, 1, 150, 150) < 0.7
    own = [rapt.torch.sdpa(q, k, v), rapt.torch.sdpa(q, k, v, mask), rapt.torch.sdpa(q, k, v, is_causal=True),
           rapt.torch.sdpa(q.float(), k.float(), v, autocast="bf16"), rapt.torch.sdpa(q, k, v, require="ref")]
    pool("torch", count)
    lent = [rapt.torch.sdpa(q, k, v), rapt.torch.sdpa(q, k, v, mask), rapt.torch.sdpa(q, k, v, is_causal=True),
            rapt.torch.sdpa(q.float(), k.float(), v, autocast="bf16"), rapt.torch.sdpa(q, k, v, require="ref")]
    assert all(torch.equal(a, b) for a, b in zip(own, lent))


THREADS = """
import os, torch, rapt.torch
def started(work):
    before = set(os.listdir("/proc/self/task"))
    work()
    return len(set(os.listdir("/proc/self/task")) - before)
q = torch.rand(2, 4, 300, 32)
call, host = lambda: rapt.torch.sdpa(q, q, q), lambda: torch.rand(2000, 2000).sin()
"""


def test_whose_threads_run_shows_in_the_process():
    """A pool starts its threads at its first run: the one that is not used never does."""
    code = THREADS + "torch.set_num_threads(2); rapt.torch.use_pool('torch')\nprint(started(call), started(host))"
    several = len(os.sched_getaffinity(0)) > 1
    assert python(code) == (["1", "0"] if several else ["0", "1"])      # the one thread that PyTorch itself then uses
    code = THREADS + "torch.set_num_threads(1); rapt.torch.use_pool('torch')\nprint(started(call))"
    assert python(code) == ["0"]                # set_num_threads(1) holds


def test_set_num_threads_has_no_say_over_rapts_own_threads_p3():
    code = THREADS + "torch.set_num_threads(1)\nprint(started(call), len(os.sched_getaffinity(0)) - 1)"
    ours, others = map(int, python(code))
    assert ours <= others and (ours > 0) == (others > 0)


def test_the_switch_says_what_held_and_refuses_other_names(pool):
    assert rapt.torch.use_pool("torch") == "own" and rapt.torch.use_pool("own") == "torch"
    for wrong in ("omp", None, 2):
        with pytest.raises(rapt.ArgumentError, match="own"):
            rapt.torch.use_pool(wrong)
    assert rapt.torch.use_pool("own") == "own"


def test_runs_are_counted_under_either_pool_r1(pool):
    x = operands()
    rapt.torch.sdpa(*x)
    row = rapt.last_report().row
    before = rapt.torch.context.entered()[row]
    rapt.torch.sdpa(*x)
    pool("torch")
    rapt.torch.sdpa(*x)
    rapt.torch.sdpa(*x)
    assert rapt.torch.context.entered()[row] == before + 3
    assert rapt.last_report().json["chosen"]["row"] == row and rapt.last_report().json["chosen"]["threads"] >= 1


def test_rows_registered_under_one_pool_are_there_under_the_other(pool, monkeypatch):
    from rapt import _call
    fresh = _call.Context(rapt.torch._register)
    ran, handle = [], fresh.handle
    row = {"id": "fake.row", "kinds": 1, "dtypes": 1 << 3, "place": 1, "ran_on_hardware": 1, "can": 1 << 22 | 1 << 29,
           "dv_rule": 1}
    _rapt.ctx_pool(handle, "torch")
    _rapt.ctx_register(handle, "fake", [row], lambda *call: ran.append(call[0]) or 0, {}, None)
    monkeypatch.setattr(rapt.torch, "context", fresh)
    for name in ("own", "torch"):
        _rapt.ctx_pool(handle, name)
        rapt.torch.sdpa(*operands(shape=(1, 1, 4, 8)), require="fake.row")
    assert ran == ["fake.row"] * 2 and fresh.entered()["fake.row"] == 2


def test_what_loading_a_package_found_holds_with_either_pool():
    from rapt import _call, _providers
    handle = _call.Context(rapt.torch._register).handle
    package = _providers.package_of("fa2")
    _rapt.ctx_register(handle, package.name, package.rows, None, "broken on purpose", None)
    for name in ("own", "torch"):
        _rapt.ctx_pool(handle, name)
        _, report = _rapt.ctx_explain(handle, "fp16 b1 h1 q8 k8 d64 dev=cuda prefer=fa2")
        assert "broken on purpose" in rapt._report.Report(report).text, name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nested_in_a_parallel_region_of_pytorch_p10(pool):
    """One call inside another's task: at::parallel_for is not nested, the inner call does its work itself."""
    pool("torch", 2)
    x = operands()
    alone = rapt.torch.sdpa(*x)
    scripted = [torch.jit.fork(lambda: rapt.torch.sdpa(*x)) for _ in range(4)]
    assert all(torch.equal(torch.jit.wait(one), alone) for one in scripted)
    g = [t.clone().requires_grad_() for t in x]
    with rapt.torch.install():          # backward runs on the autograd engine's threads
        F.scaled_dot_product_attention(*g).sum().backward()
    assert all(t.grad is not None for t in g)


# ---- Processes ----

FORK = """
import os, signal, torch, rapt, rapt.torch
from torch.nn import functional as F
torch.manual_seed(0)
q = torch.rand(2, 4, 300, 32)
torch.set_num_threads(2)
rapt.torch.use_pool(POOL)
expected = rapt.torch.sdpa(q, q, q)
torch.rand(2000, 2000).sin()                # PyTorch's threads are running
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    signal.alarm(25)                        # of a child that hangs nothing stays behind
    results = [rapt.torch.sdpa(q, q, q) for _ in range(3)]
    rapt.torch.install()
    results.append(F.scaled_dot_product_attention(q, q, q))
    same = all(result.numpy().tobytes() == expected.numpy().tobytes() for result in results)    # torch.equal would hang
    os.write(write, b"same" if same else b"differs")
    os._exit(0)
print(os.read(read, 10).decode())
os.waitpid(pid, 0)
print(torch.equal(rapt.torch.sdpa(q, q, q), expected))
"""


@pytest.mark.parametrize("name", ["own", "torch"])
def test_a_forked_child_runs_with_the_same_bits_p10(name):
    assert python(f"POOL = {name!r}\n" + FORK, limit=30) == ["same", "True"]


LOADER = """
import sys, torch, rapt, rapt.torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        q = torch.rand(4, 300, 32, generator=g)
        return rapt.torch.sdpa(q, q, q)
def collate(rows):
    q = torch.stack(rows)
    return rapt.torch.sdpa(q, q, q)
if __name__ == "__main__":
    rapt.torch.use_pool(POOL)
    torch.set_num_threads(2)
    torch.rand(2000, 2000).sin()
    expected = [collate([Rows()[i], Rows()[i + 1]]) for i in (0, 2, 4)]
    batches = list(DataLoader(Rows(), batch_size=2, num_workers=2, collate_fn=collate, multiprocessing_context=METHOD))
    print(len(batches), all(torch.equal(a, b) for a, b in zip(batches, expected)))
"""


@pytest.mark.parametrize("name", ["own", "torch"])
def test_workers_of_a_data_loader_run_in_dataset_and_collate_p10(name):
    assert python(f"POOL, METHOD = {name!r}, 'fork'\n" + LOADER, limit=60) == ["3", "True"]


def test_spawned_workers_run_too(tmp_path):
    script = tmp_path / "loader.py"
    script.write_text("POOL, METHOD = 'torch', 'spawn'\n" + LOADER)
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.split() == ["3", "True"], done.stderr


def test_numpy_in_a_forked_child_p10():
    code = """
import os, numpy as np, rapt
q = np.random.default_rng(0).random((2, 4, 300, 32), np.float32)
expected = rapt.attention(q, q, q)
pid = os.fork()
if pid == 0:
    os._exit(0 if np.array_equal(rapt.attention(q, q, q), expected) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert python(code, limit=30) == ["0"]


def test_the_rule_for_forks_is_needed():
    """What the child would do without it: PyTorch's own operator waits for threads that the fork has not taken along."""
    code = """
import os, signal, torch
torch.set_num_threads(2)
torch.rand(2000, 2000).sin()
pid = os.fork()
if pid == 0:
    signal.setitimer(signal.ITIMER_REAL, 2)
    torch.rand(2000, 2000).sin()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM)
"""
    assert python(code, limit=30) == ["True"]
