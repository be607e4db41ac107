# SPDX-License-Identifier: Apache-2.0
"""The operators of the PyTorch binding, and the front that torch.compile sees (contract sections 6, 7 and 11)."""

import os
import threading

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from rapt import _ops  # noqa: E402
from torch.nn import functional as F  # noqa: E402

sdpa = rapt.torch.sdpa
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)
    torch._dynamo.reset()


def rand(*shape, dtype=torch.float32):
    return (torch.rand(shape) * 2 - 1).to(dtype)


def numpy(tensor):
    return tensor.detach().to(torch.float64).numpy()


def within(q, k, v, out, **oracle):
    """N13: the result is within the bound of the exact one."""
    o, _, bound, _ = oracle_np.attention(numpy(q), numpy(k), numpy(v), dtype=NAMES[out.dtype], **oracle)
    oracle_np.check(numpy(out), o, bound)


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def strided():
    """Operands as hosts have them: dense, a view of [B,S,H,D], slices of packed qkv, expanded kv, strided, Dv != D."""
    q, k, v = rand(2, 4, 9, 16), rand(2, 4, 11, 16), rand(2, 4, 11, 16)
    yield "bhsd", (q, k, v)
    yield "bshd", tuple(rand(2, n, 4, 16).transpose(1, 2) for n in (9, 11, 11))
    yield "packed", rand(2, 9, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    yield "expanded", (q, *(rand(2, 1, 11, 16).expand(2, 4, 11, 16) for _ in range(2)))
    yield "last stride 2", tuple(rand(2, 4, n, 32)[..., ::2] for n in (9, 11, 11))
    yield "dv", (q, k, rand(2, 4, 11, 24))
    yield "gqa", (q, rand(2, 2, 11, 16), rand(2, 2, 11, 16))
    yield "rank 3", tuple(rand(4, n, 16) for n in (9, 11, 11))
    yield "no keys", (q, rand(2, 4, 0, 16), rand(2, 4, 0, 16))
    yield "q of one head by columns", (rand(2, 9, 1, 16).transpose(1, 2), *(rand(2, 1, 11, 16) for _ in range(2)))


STRIDED = dict(strided())


# ---- The operators ----

@pytest.mark.parametrize("name", STRIDED)
def test_opcheck_over_strided_operands_h2_d19(name):
    q, k, v = STRIDED[name]
    for op in (_ops.sdpa_op, _ops.sdpa_lse_op):
        torch.library.opcheck(op, (q, k, v), test_utils=CHECKS)


def test_opcheck_with_every_kind_of_argument_h2():
    q, k, v = (t.to(torch.bfloat16) for t in STRIDED["bshd"])
    mask, bias = torch.rand(2, 1, 9, 11) > 0.2, rand(9, 11)
    for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias, "scale": 0.3},
                    {"causal": True, "align": 2, "left": 3, "right": 0}, {"kv_len": torch.tensor([4, 11])},
                    {"causal": True, "align": 4, "offsets": torch.tensor([1, 2])},
                    {"flags": _ops.CONTIGUOUS | _ops.STRICT}):
        torch.library.opcheck(_ops.sdpa_op, (q, k, v), options, test_utils=CHECKS)
    torch.library.opcheck(_ops.sdpa_op, (q.float(), k.float(), v), {"autocast": 2}, test_utils=CHECKS)


def test_opcheck_with_gradients_b8():
    for name in ("bshd", "dv"):
        q, k, v = (t.detach().clone().requires_grad_() for t in STRIDED[name])
        flags = _ops.GRAD_Q | _ops.GRAD_K | _ops.GRAD_V
        torch.library.opcheck(_ops.sdpa_ag_op, (q, k, v), {"flags": flags}, test_utils=CHECKS)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", STRIDED)
def test_values_are_within_the_bound_n13(name, dtype):
    q, k, v = (t.to(dtype) for t in STRIDED[name])
    out, lse = _ops.sdpa_lse_op(q, k, v)
    batch = (lambda t: t[None]) if q.dim() == 3 else (lambda t: t)
    within(batch(q), batch(k), batch(v), batch(out))
    assert lse.dtype == torch.float32 and lse.shape == q.shape[:-1] and lse.is_contiguous()
    assert torch.equal(_ops.sdpa_op(q, k, v), out)


def test_out_is_dense_in_the_axis_order_of_q_h2():
    q, k, v = STRIDED["bshd"]
    assert _ops.sdpa_op(q, k, v).transpose(1, 2).is_contiguous()
    assert _ops.sdpa_op(q, k, v, flags=_ops.CONTIGUOUS).is_contiguous()
    fake = _ops.sdpa_op(q.to("meta"), k.to("meta"), v.to("meta"))
    assert fake.stride() == _ops.sdpa_op(q, k, v).stride() and fake.device.type == "meta"


def test_errors_name_the_fault_and_leave_the_process_whole_e3():
    q, k, v = STRIDED["bhsd"]
    for wanted, args in (("DTYPE_MIX", (q, k.double(), v)), ("SHAPE", (q, k[:1], v)), ("RANK", (q[0], k, v)),
                         ("HEADS", (q, k[:, :3], v[:, :3]))):
        for _ in range(20):
            with pytest.raises(RuntimeError, match=wanted):
                _ops.sdpa_op(*args)
    with pytest.raises(RuntimeError, match="MASK|SHAPE"):
        _ops.sdpa_op(q, k, v, mask=torch.ones(3, 3, dtype=torch.bool))


def test_calls_do_not_leak_operands_or_results():
    q = rand(1, 8, 256, 64)
    mask = torch.rand(256, 256) > 0.1
    resident = lambda: int(open("/proc/self/statm").read().split()[1])  # noqa: E731
    for n in range(80):
        _ops.sdpa_op(q, q, q, 0.1, False, mask)
        with pytest.raises(RuntimeError):
            _ops.sdpa_op(q.clone(), q, q.double())
        if n == 10:
            before = resident()
    assert resident() - before < 16 << 20 >> 12     # 70 results of 512 KiB would be 35 MiB


def test_the_report_of_an_operator_says_what_ran_r2():
    q, k, v = STRIDED["bhsd"]
    before = rapt.torch.context.entered()
    _ops.sdpa_op(q, k, v, causal=True, align=1)
    report = rapt.last_report()
    assert report.row.startswith("cpu.") and report.json["problem"]
    assert str(report).startswith(f"{report.row} ran ")
    assert rapt.torch.context.entered()[report.row] == before[report.row] + 1
    _ops.sdpa_op(q.double(), k.double(), v.double())
    assert rapt.last_report().row.startswith("torch.")


def test_the_host_serves_what_no_own_row_can_d28():
    for name in ("bhsd", "bshd", "dv", "gqa", "rank 3"):
        q, k, v = (t.double() for t in STRIDED[name])
        host = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        out = _ops.sdpa_op(q, k, v)
        torch.testing.assert_close(out, host)
        assert out.stride() == _ops.sdpa_op(q.to("meta"), k.to("meta"), v.to("meta")).stride()


def test_a_scope_is_read_at_every_call_d9():
    q, k, v = STRIDED["bhsd"]
    with rapt.policy(forbid="cpu"):
        _ops.sdpa_op(q, k, v)
        inside = rapt.last_report().row
    _ops.sdpa_op(q, k, v)
    assert not inside.startswith("cpu.") and rapt.last_report().row.startswith("cpu.")
    with rapt.policy(require="cpu"), pytest.raises(RuntimeError, match="cpu.scalar"):
        _ops.sdpa_op(q.double(), k.double(), v.double())
    _ops.sdpa_op(q, k, v, policy=_ops.policy_text("torch.math", None, None, None))
    assert rapt.last_report().row == "torch.math"


def test_vmap_folds_the_mapped_axis_into_the_batch():
    q, k, v = (rand(3, 2, 4, n, 16) for n in (9, 11, 11))
    mask = torch.rand(3, 9, 11) > 0.2
    out = torch.vmap(_ops.sdpa_op)(q, k, v)
    for i in range(3):
        assert torch.equal(out[i], _ops.sdpa_op(q[i], k[i], v[i]))
    masked = torch.vmap(lambda q, m: _ops.sdpa_op(q, k[0], v[0], None, False, m), in_dims=(0, 0))(q, mask)
    for i in range(3):
        torch.testing.assert_close(masked[i], _ops.sdpa_op(q[i], k[0], v[0], None, False, mask[i]))
    ranked = torch.vmap(_ops.sdpa_op)(q[:, 0], k[:, 0], v[:, 0])
    torch.testing.assert_close(ranked[1], _ops.sdpa_op(q[1, 0], k[1, 0], v[1, 0]))


def test_threads_and_a_forked_child_p10():
    q, k, v = rand(2, 4, 65, 64), rand(2, 4, 65, 64), rand(2, 4, 65, 64)
    want, wrong = _ops.sdpa_op(q, k, v), []
    work = lambda: wrong.extend(1 for _ in range(20) if not torch.equal(_ops.sdpa_op(q, k, v), want))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(_ops.sdpa_op(q, k, v), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- Scopes ----

@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_scope_that_cannot_be_read_refuses_the_call_d12(monkeypatch):
    def fail(*_):
        raise ValueError("unreadable")

    q, k, v = STRIDED["bhsd"]
    with rapt.policy(require="ref"):
        monkeypatch.setattr(_ops._policy, "resolve", fail)
        with pytest.raises(RuntimeError, match="preferences in scope could not be read"):
            _ops.sdpa_op(q, k, v)
        monkeypatch.undo()
        assert torch.isfinite(_ops.sdpa_op(q, k, v)).all()


# ---- Compiled ----

def both(**keywords):
    return compiled(lambda q, k, v: sdpa(q, k, v, **keywords)), lambda q, k, v: sdpa(q, k, v, **keywords)


@pytest.mark.parametrize("keywords", [
    {}, {"is_causal": True}, {"scale": 0.2}, {"causal": "br"}, {"causal": "off:3"}, {"window": (3, 1), "align": "tl"},
    {"attn_mask": torch.arange(99).reshape(9, 11) % 3 > 0}, {"attn_mask": torch.arange(99.0).reshape(9, 11) / 50},
    {"attn_mask": torch.arange(99).reshape(9, 11) % 3 > 0, "bias": torch.ones(11), "is_causal": True},
    {"kv_len": torch.tensor([5, 11])}, {"return_lse": True}, {"causal": True, "q_offset": torch.tensor([1, 2])},
    {"strict": True, "determinism": "batch"}, {"prefer": "ref"}], ids=lambda k: ",".join(k) or "none")
def test_compiled_equals_eager_bit_for_bit_d19(keywords):
    graph, eager = both(**keywords)
    for name in ("bhsd", "bshd", "dv") if not keywords else ("bshd",):
        a, b = graph(*STRIDED[name]), eager(*STRIDED[name])
        for x, y in zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,)):
            assert torch.equal(x, y) and x.stride() == y.stride()


def test_every_rank_is_traced_s3_h4():
    graph, eager = both()
    for shapes in (((9, 16), (11, 16)), ((4, 9, 16), (4, 11, 16)), ((2, 3, 4, 9, 16), (2, 3, 4, 11, 16)),
                   ((2, 4, 9, 16), (1, 1, 11, 16))):
        q, k, v = rand(*shapes[0]), rand(*shapes[1]), rand(*shapes[1])
        assert torch.equal(graph(q, k, v), eager(q, k, v))


def test_dynamic_shapes_compile_once():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    graph = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=True), fullgraph=True, dynamic=True, backend=counter)
    compilations = []
    for n in (9, 17, 33):
        q, k, v = rand(2, 4, n, 16), rand(2, 4, n + 3, 16), rand(2, 4, n + 3, 16)
        assert torch.equal(graph(q, k, v), sdpa(q, k, v, is_causal=True))
        compilations.append(counter.frame_count)
    assert compilations[0] == compilations[-1]


def test_toggling_autocast_changes_the_next_call_a1_a12():
    q, k, v = rand(2, 4, 9, 16), rand(2, 4, 11, 16), rand(2, 4, 11, 16, dtype=torch.bfloat16)
    graph = compiled(lambda q, k, v: sdpa(q, k, v))
    same = v.float()
    assert graph(q, k, same).dtype == torch.float32
    with torch.autocast("cpu"):
        assert torch.equal(graph(q, k, v), sdpa(q.bfloat16(), k.bfloat16(), v))
        with torch.autocast("cpu", dtype=torch.float16):
            assert graph(q, k, same).dtype == torch.float16
        with torch.autocast("cpu", enabled=False):
            assert graph(q, k, same).dtype == torch.float32
    assert torch.equal(graph(q, k, same), sdpa(q, k, same))


def test_a_scope_around_a_compiled_function_holds_d9():
    q, k, v = STRIDED["bhsd"]
    graph = compiled(lambda q, k, v: sdpa(q, k, v))
    rows = []
    for _ in range(2):
        graph(q, k, v)
        rows.append(rapt.last_report().row)
        with rapt.policy(forbid="cpu"):
            graph(q, k, v)
            rows.append(rapt.last_report().row)
    assert rows[0] == rows[2] and rows[0].startswith("cpu.") and rows[1] == rows[3] and rows[1] != rows[0]


@pytest.mark.parametrize("name", ["bshd", "dv", "gqa", "rank 3"])
@pytest.mark.parametrize("mask", [None, "bool", "bias"])
def test_gradients_of_a_compiled_call_equal_the_hosts_b8(name, mask):
    def run(function):
        q, k, v = (t.detach().clone().requires_grad_() for t in STRIDED[name])
        bias = (torch.arange(q.shape[-2] * k.shape[-2]).reshape(q.shape[-2], -1) % 5).float()
        m = None if mask is None else bias > 0 if mask == "bool" else bias.requires_grad_()
        out = function(q, k, v, attn_mask=m, enable_gqa=name == "gqa")
        out.square().sum().backward()
        return [out] + [t.grad for t in (q, k, v, m if mask == "bias" else q)]

    for a, b in zip(run(compiled(sdpa)), run(F.scaled_dot_product_attention)):
        torch.testing.assert_close(a, b)


def test_a_call_that_wants_gradients_says_that_the_host_ran_r2():
    q, k, v = (t.clone().requires_grad_() for t in STRIDED["bhsd"])
    compiled(sdpa)(q, k, v)
    report = rapt.last_report()
    assert report.row.startswith("torch.") and "GRAD" in report.codes("cpu.scalar")
    assert str(report).startswith(f"{report.row} ran ")


def test_gradcheck_of_the_operator_b8():
    q, k, v = (rand(1, 2, n, 4, dtype=torch.float64).requires_grad_() for n in (3, 4, 4))
    bias = rand(3, 4, dtype=torch.float64).requires_grad_()
    flags = _ops.GRAD_Q | _ops.GRAD_K | _ops.GRAD_V
    biased = lambda q, k, v, b: _ops.sdpa_ag_op(q, k, v, 0.3, bias=b, flags=flags | _ops.GRAD_BIAS)  # noqa: E731
    causal = lambda q, k, v: _ops.sdpa_ag_op(q, k, v, None, True, align=1, flags=flags)  # noqa: E731
    assert torch.autograd.gradcheck(biased, (q, k, v, bias))
    assert torch.autograd.gradcheck(causal, (q, k, v))
    assert torch.autograd.gradcheck(causal, (q, k, v[..., :3].detach().requires_grad_()))


def test_what_the_operators_do_not_take_leaves_the_graph_with_the_same_error_e6():
    q, k, v = STRIDED["bhsd"]
    graph = torch.compile(lambda q, k, v: sdpa(q, k, v, **{"softcap": 3.0}), backend="aot_eager")
    with pytest.raises(rapt.RefusedError):
        graph(q, k, v)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(lambda q, k, v: sdpa(q, k, v, softcap=3.0))(q, k, v)


def test_exported_programs_keep_the_operator():
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True)

    q, k, v = STRIDED["bhsd"]
    length = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Block(), (q, k, v), dynamic_shapes=({2: length}, None, None))
    targets = [str(node.target) for node in program.graph.nodes]
    assert "rapt.sdpa.default" in targets
    assert torch.equal(program.module()(q[:, :, :5], k, v), sdpa(q[:, :, :5], k, v, is_causal=True))
    assert "rapt.sdpa.default" in str(program.run_decompositions().graph)
