# SPDX-License-Identifier: Apache-2.0
"""FlexAttention as a row on the CPU: the one that serves soft cap, ALiBi and such there, in eager mode."""

import math
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call  # noqa: E402
from test_provider_conventions import formula  # noqa: E402


@pytest.fixture(autouse=True)
def context(monkeypatch):
    monkeypatch.setattr(rapt.torch, "context", _call.Context(rapt.torch._register))
    return rapt.torch.context


def qkv(dtype=torch.float32, b=2, h=4, hkv=2, sq=9, skv=13, d=16):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(b, n, s, d, generator=draw).to(dtype) for n, s in ((h, sq), (hkv, skv), (hkv, skv))]


def flex(q, k, v, **options):
    return rapt.torch.sdpa(q, k, v, enable_gqa=True, prefer="flex", **options)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_soft_cap_is_served_where_no_other_row_has_it_m20(dtype, bound):
    q, k, v = qkv(dtype)
    with pytest.raises(rapt.RefusedError):
        rapt.torch.sdpa(q, k, v, enable_gqa=True, softcap=2.0, causal="br")
    out, lse = flex(q, k, v, softcap=2.0, causal="br", return_lse=True)
    want, want_lse = formula(q, k, v, off=4, causal=True, softcap=2.0)
    torch.testing.assert_close(out.double(), want, atol=bound, rtol=bound)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-5, rtol=1e-5)
    assert out.dtype is dtype and lse.dtype is torch.float32 and rapt.last_report().row == "flex"


def test_what_nobody_sees_changes_no_bit_m14():
    q, k, v = qkv()
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[:, 5], mask[4] = False, False
    out = flex(q, k, v, softcap=2.0, mask=mask)
    for value in (math.nan, math.inf, -math.inf):
        k2, v2 = k.clone(), v.clone()
        k2[:, :, 5], v2[:, :, 5] = value, value
        assert torch.equal(out, flex(q, k2, v2, softcap=2.0, mask=mask))
    v2 = v.clone()
    v2[0, 1, 3, 7] = math.nan                                   # seen: element 7 of every row but the hidden one (N10)
    got = flex(q, k, v2, softcap=2.0, mask=mask)
    bad = torch.zeros_like(got, dtype=torch.bool)
    bad[0, 2:, :, 7] = True
    bad[:, :, 4] = False
    assert torch.equal(got.isnan(), bad)
    torch.testing.assert_close(got[~bad], out[~bad])


def test_isolation_is_not_the_operators_own(monkeypatch):
    """The second pass is what keeps the promise: without it the test above fails."""
    from rapt._providers import _flex
    monkeypatch.setattr(_flex, "on_cpu", lambda call: _flex._plain(call, call.v))
    q, k, v = qkv()
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[:, 5] = False
    v[:, :, 5] = math.nan
    assert flex(q, k, v, softcap=2.0, mask=mask).isnan().any()


def test_its_scores_count_as_memory_d17():
    q, k, v = qkv(b=1, h=8, hkv=8, sq=1100, skv=1100)
    with pytest.raises(rapt.RefusedError) as caught:
        flex(q, k, v, softcap=2.0)
    reason = next(r for verdict in caught.value.report.rows if verdict.row == "flex" for r in verdict.reasons)
    assert (reason.code, reason.got) == ("MEMORY", str(32 * 8 * 1100 * 1100))
    report = rapt.torch.explain(q, k, v, softcap=2.0, prefer="flex", memory_limit=1 << 30)
    assert report.row == "flex"
    q, k, v = qkv()
    with pytest.raises(rapt.RefusedError):
        flex(q, k, v, softcap=2.0, memory_limit=0)
    with pytest.raises(rapt.RefusedError):
        rapt.torch.sdpa(q, k, v, enable_gqa=True, softcap=2.0, require="class:fused")


def test_no_gradient_goes_through_it():
    q, k, v = (t.requires_grad_() for t in qkv())
    with pytest.raises(rapt.RefusedError) as caught:
        flex(q, k, v, softcap=2.0)
    assert "GRAD" in caught.value.report.codes("flex")
    with torch.no_grad():
        assert not flex(q, k, v, softcap=2.0).requires_grad
    flex(q, k, v)                                               # without a cap the host's operator has one
    assert rapt.last_report().row.startswith("torch.")


def test_calls_from_several_threads_keep_their_own_options():
    q, k, v = qkv()
    want = {cap: flex(q, k, v, softcap=cap) for cap in (1.0, 2.0, 3.0)}
    wrong = []

    def work(cap):
        for _ in range(20):
            if not torch.equal(flex(q, k, v, softcap=cap), want[cap]):
                wrong.append(cap)

    threads = [threading.Thread(target=work, args=(cap,)) for cap in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_like_one_before_takes_the_short_way_and_counts(context):
    q, k, v = qkv()
    first = flex(q, k, v, softcap=2.0)
    again = flex(q + 1, k, v, softcap=2.0)
    assert context.entered()["flex"] == 2 and rapt.last_report().row == "flex"
    assert not torch.equal(first, again)
    torch.testing.assert_close(again.double(), formula(q + 1, k, v, softcap=2.0)[0], atol=1e-5, rtol=1e-5)


def test_inside_a_compiled_function_it_runs_outside_the_graph():
    q, k, v = qkv()
    compiled = torch.compile(lambda q, k, v: flex(q, k, v, softcap=2.0) * 2, backend="eager")
    torch.testing.assert_close(compiled(q, k, v), flex(q, k, v, softcap=2.0) * 2)


def test_the_compiled_form_gets_the_same_call(monkeypatch):
    """What CUDA tensors take, on the CPU and with a compiler that compiles nothing."""
    from torch.nn.attention import flex_attention as module
    from rapt._providers import _flex
    monkeypatch.setattr(_flex, "_compiled", torch.compile(module.flex_attention, fullgraph=True, backend="eager"))
    q, k, v = qkv()
    bias = torch.randn(9, 13)
    options = dict(causal="br", softcap=2.0, bias=bias, return_lse=True)
    plain, lse = flex(q, k, v, **options)
    monkeypatch.setattr(_flex, "on_cpu", _flex._on_device)
    other, other_lse = flex(q.clone(), k, v, **options)
    torch.testing.assert_close(other, plain)
    torch.testing.assert_close(other_lse, lse)


def test_strides_and_shapes_of_the_caller():
    q, k, v = qkv()
    want = flex(q, k, v, softcap=2.0)
    other = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    torch.testing.assert_close(flex(*other, softcap=2.0), want)
    wide = [torch.stack([t, t], -1)[..., 0] for t in (q, k, v)]                 # last stride 2
    torch.testing.assert_close(flex(*wide, softcap=2.0), want)
    torch.testing.assert_close(rapt.torch.sdpa(q[0], k[0], v[0], enable_gqa=True, prefer="flex", softcap=2.0), want[0])
    torch.testing.assert_close(flex(q, k[:1], v[:1], softcap=2.0), flex(q, k[:1].expand_as(k), v[:1].expand_as(v), softcap=2.0))


def test_a_missing_private_name_of_the_host_is_one_clear_error(monkeypatch):
    from torch.nn.attention import flex_attention as module
    monkeypatch.delattr(module, "flex_attention_hop")
    with pytest.raises(rapt.BackendError, match="flex_attention_hop.*PyTorch " + torch.__version__.split("+")[0]):
        flex(*qkv(), softcap=2.0)


def test_the_compiler_is_not_imported_for_calls_that_do_not_run_it():
    code = ("import sys, torch, rapt.torch\nq = torch.rand(1, 2, 8, 16)\nrapt.torch.sdpa(q, q, q)\n"
            "assert 'torch.nn.attention.flex_attention' not in sys.modules and 'torch._dynamo' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
