# SPDX-License-Identifier: Apache-2.0
"""guard(): one dtype for every backend of diffusers under autocast (contract section 6), nothing dropped (D12). Where a
test takes `guarded`, it runs a second time without the guard, where what it claims must be seen to fail."""

import contextlib
import inspect
import os
import subprocess
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import rapt  # noqa: E402
from dispatch_spy import (  # noqa: E402, F401
    BF16, EVERY, FP16, FP32, FP64, OWN_CODE, Backend, attend, autocast, clean, dispatch, guarded, half_only, must_fail,
    parallel, put, put_half_only, qkv, registry, spy_on)
from rapt import _diffusers_guard  # noqa: E402
from rapt._diffusers_guard import guard  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

INF = float("inf")


# ---- One dtype (A1-A10, A13) ----

@pytest.mark.parametrize("backend", EVERY, ids=lambda member: member.value)
def test_every_backend_gets_one_dtype_under_autocast_a3(backend, guarded, monkeypatch):
    spy = spy_on(monkeypatch, backend)
    with autocast(), contextlib.suppress(rapt.ArgumentError):
        attend(*qkv(FP32, FP16, BF16), backend=backend)
    must_fail(guarded, lambda: check_one_dtype(spy, BF16))


def check_one_dtype(spy, dtype):
    assert spy.dtypes() == {dtype}


@pytest.mark.parametrize("target", [BF16, FP16])
@pytest.mark.parametrize("given", [(FP32, FP32, BF16), (FP16, FP32, BF16), (FP32, FP32, FP32), (FP16, FP16, FP16)])
def test_each_tensor_is_cast_by_itself_a3_a9(given, target, guarded, monkeypatch):
    spy, operands = spy_on(monkeypatch, Backend.NATIVE), qkv(*given)
    with autocast(target):
        attend(*operands, backend="native")
    if set(given) != {target}:
        must_fail(guarded, lambda: check_one_dtype(spy, target))
    if guarded:
        for name, tensor in zip(("query", "key", "value"), operands):
            assert torch.equal(spy.calls[-1][name], tensor.to(target))
            assert tensor.dtype is not target or spy.calls[-1][name] is tensor          # A10


def test_float64_stays_and_a_mix_with_it_is_refused_a7(monkeypatch):
    spy, q, (k, v) = spy_on(monkeypatch, Backend.NATIVE), qkv(FP64)[0], qkv(FP32)[1:]
    wide = qkv(FP64)
    with guard(), autocast():
        attend(*wide, backend="native")
        assert all(spy.calls[-1][name] is tensor for name, tensor in zip(("query", "key", "value"), wide))
        with pytest.raises(rapt.ArgumentError, match="query is float64 -> float64, key is float32 -> bfloat16") as caught:
            attend(q, k, v, backend="native")
        assert torch.is_autocast_enabled("cpu")
    assert caught.value.code == "DTYPE_MIX" and len(spy.calls) == 1
    assert "Expected query, key, and value to have the same dtype" in str(caught.value)


def test_finite_mask_values_stay_finite_a8(guarded, monkeypatch):
    spy = spy_on(monkeypatch, Backend.NATIVE)
    mask = torch.tensor([torch.finfo(FP32).min, -INF, -10000.0, 0.0])
    with autocast(FP16):
        attend(*qkv(), attn_mask=mask, backend="native")

    def check():
        got = spy.calls[-1]["attn_mask"]
        assert got.dtype is FP16 and got.tolist() == [-65504.0, -INF, -10000.0, 0.0]
    must_fail(guarded, check)


@pytest.mark.parametrize("mask", [torch.ones(4, 4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.int64),
                                  torch.zeros(4, 4, dtype=FP64), "block mask", None], ids=str)
def test_other_masks_are_passed_as_they_are_a3_a4(mask, monkeypatch):
    spy = spy_on(monkeypatch, Backend.NATIVE)
    with guard(), autocast():
        attend(*qkv(), attn_mask=mask, backend="native")
    assert spy.calls[-1]["attn_mask"] is mask


def test_a_causal_bias_is_passed_as_it_is(monkeypatch):
    from torch.nn.attention.bias import causal_lower_right
    spy, mask = spy_on(monkeypatch, Backend.NATIVE), causal_lower_right(4, 4)
    with guard(), autocast():
        attend(*qkv(), attn_mask=mask, backend="native")
    assert spy.calls[-1]["attn_mask"] is mask


def test_tensors_of_another_device_stay_a2(monkeypatch):
    spy, (q, k, v) = spy_on(monkeypatch, Backend.NATIVE), qkv(BF16)
    mask = torch.zeros(4, 4, device="meta")
    with guard(), autocast():
        attend(q, k, v, attn_mask=mask, backend="native")
    assert spy.calls[-1]["attn_mask"] is mask


def test_meta_tensors_have_no_autocast_a12():
    operands = [t.to("meta") for t in qkv(BF16)]
    for on in (False, True):
        with guard(), torch.autocast("cpu", enabled=on):
            out = attend(*operands, backend="native")
        assert out.device.type == "meta" and out.shape == (1, 4, 2, 8) and out.dtype is BF16


def test_an_autocast_dtype_that_no_kernel_has_is_refused_a10():
    with guard():
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.float8_e5m2)
        try:
            with pytest.raises(rapt.ArgumentError, match="AUTOCAST_DTYPE: autocast is float8_e5m2"):
                attend(*qkv(), backend="native")
        finally:
            torch.set_autocast_enabled("cpu", False)
            torch.set_autocast_dtype("cpu", BF16)


def test_autocast_is_off_while_the_backend_runs_and_back_on_every_exit_a13(guarded, monkeypatch):
    def fails(**given):
        raise KeyError("within")

    spy = spy_on(monkeypatch, Backend.NATIVE)
    with autocast(FP16):
        attend(*qkv(), backend="native")
        monkeypatch.setitem(registry._backends, Backend.FLEX, fails)
        with pytest.raises(KeyError):
            attend(*qkv(), backend="flex")
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is FP16
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP16

    def check():
        assert spy.autocast == [False]
    must_fail(guarded, check)


def test_autocast_off_inside_an_autocast_region_means_float32_a11(monkeypatch):
    spy, operands = spy_on(monkeypatch, Backend.NATIVE), qkv()
    with guard(), autocast(), torch.autocast("cpu", enabled=False):
        attend(*operands, backend="native")
    assert spy.calls[-1]["query"] is operands[0]


def test_a_gradient_comes_back_in_the_dtype_of_the_leaf_a14():
    leaves = [t.requires_grad_() for t in qkv(FP32, FP32, BF16)]
    with guard(), autocast():
        out = attend(*leaves, backend="native")
    assert out.dtype is BF16
    out.float().sum().backward()
    assert [leaf.grad.dtype for leaf in leaves] == [FP32, FP32, BF16]


# ---- Calls outside autocast ----

@pytest.mark.parametrize("backend", EVERY, ids=lambda member: member.value)
def test_outside_autocast_the_very_same_objects_reach_the_backend(backend, monkeypatch):
    spy, (q, k, v) = spy_on(monkeypatch, backend), qkv(FP32, FP16, BF16)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    mask = mask[:, 0, 0] if backend is Backend.XFORMERS else mask               # it misreads a bool mask of 4 axes
    names = registry._supported_arg_names[backend]
    keywords = {"scale": 0.25} if "scale" in names else {}
    attend(q, k, v, mask, backend=backend, **keywords)
    with guard():
        attend(q, k, v, mask, backend=backend, **keywords)
    plain, under = spy.calls
    assert list(plain) == list(under) and all(plain[name] is under[name] for name in plain)


def test_outside_autocast_results_have_the_same_bits():
    operands, mask = qkv(), torch.randn(1, 2, 4, 4)
    plain = attend(*operands, attn_mask=mask, backend="native")
    with guard():
        assert torch.equal(attend(*operands, attn_mask=mask, backend="native"), plain)


# ---- Before everything else of the dispatcher ----

@pytest.mark.parametrize("backend", [Backend.NATIVE, Backend._NATIVE_CUDNN, Backend._NATIVE_FLASH, Backend._NATIVE_NPU,
                                     Backend.FLASH, Backend.SAGE], ids=lambda member: member.value)
def test_the_cast_precedes_the_context_parallel_branch(backend, guarded, monkeypatch):
    seen = []
    monkeypatch.setattr(dispatch, "_templated_context_parallel_attention",
                        lambda q, k, v, *rest, **keywords: seen.append({q.dtype, k.dtype, v.dtype}) or q)
    with autocast():
        attend(*qkv(FP32, FP32, BF16), backend=backend, parallel_config=parallel(ulysses=2))

    def check():
        assert seen == [{BF16}]
    must_fail(guarded, check)


@pytest.mark.parametrize("backend", [Backend.NATIVE, Backend.FLASH], ids=lambda member: member.value)
def test_the_hosts_own_checks_see_the_cast_tensors(backend, guarded, monkeypatch):
    monkeypatch.setattr(registry, "_checks_enabled", True)
    spy_on(monkeypatch, backend)
    with autocast(), contextlib.nullcontext() if guarded else pytest.raises(ValueError, match="same dtype"):
        attend(*qkv(FP32, FP32, BF16), backend=backend)


def test_checks_switched_on_by_the_environment_do_not_raise(tmp_path):
    script = tmp_path / "checks.py"
    script.write_text("""
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry, dispatch_attention_fn
from rapt._diffusers_guard import guard
q, k, v = torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16)
assert _AttentionBackendRegistry._checks_enabled
with torch.autocast("cpu"):
    try:
        dispatch_attention_fn(q, k, v)
    except ValueError as error:
        print(error)
    with guard():
        print(dispatch_attention_fn(q, k, v).dtype)
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True,
                          env={**os.environ, "DIFFUSERS_ATTN_CHECKS": "1"})
    assert done.stdout.splitlines() == ["Query, key, and value must have the same dtype.", "torch.bfloat16"], done.stderr


def test_attention_kwargs_that_stand_in_for_arguments_are_cast_too(guarded, monkeypatch):
    spy, (q, k, v) = spy_on(monkeypatch, Backend.NATIVE), qkv(BF16)
    instead = {"key": k.float(), "attn_mask": torch.zeros(4, 4)}
    with autocast():
        attend(q, k, v, attention_kwargs=instead, backend="native")

    def check():
        assert spy.dtypes("query", "key", "value", "attn_mask") == {BF16}
    must_fail(guarded, check)
    assert instead["key"].dtype is FP32                         # the caller's dict is the caller's


def test_the_active_backend_is_the_one_that_counts(guarded, monkeypatch):
    spy = spy_on(monkeypatch, Backend._NATIVE_MATH)
    with autocast(), dispatch.attention_backend("_native_math"):
        attend(*qkv(FP32, FP32, BF16))
    must_fail(guarded, lambda: check_one_dtype(spy, BF16))


@pytest.mark.parametrize("model", ["transformer_flux", "transformer_wan", "transformer_qwenimage", "transformer_ltx"])
def test_models_that_hold_the_dispatcher_by_name_are_reached(model, guarded, monkeypatch):
    module = pytest.importorskip(f"diffusers.models.transformers.{model}")
    spy = spy_on(monkeypatch, Backend.NATIVE)
    with autocast():
        module.dispatch_attention_fn(*qkv(FP32, FP32, BF16), backend=Backend.NATIVE)
    must_fail(guarded, lambda: check_one_dtype(spy, BF16))


def test_backends_registered_after_the_guard_are_guarded(guarded, monkeypatch):
    put_half_only(monkeypatch)
    with autocast(), contextlib.nullcontext() if guarded else pytest.raises(RuntimeError, match="only support"):
        assert attend(*qkv(FP32, FP32, BF16), backend=Backend.FLASH).dtype is BF16


def test_rapt_and_a_replaced_native_are_guarded_too(guarded, monkeypatch):
    import rapt.diffusers
    operands, mask = qkv(FP32, FP32, BF16), torch.full((4, 4), torch.finfo(FP32).min).triu(1)
    with rapt.diffusers.replace_native():                       # after the guard
        with autocast():
            out = attend(*operands, attn_mask=mask)
            assert torch.equal(out, attend(*operands, attn_mask=mask, backend="rapt"))      # rapt sees to itself
        spy = spy_on(monkeypatch, Backend.NATIVE)
        with autocast():
            attend(*operands, attn_mask=mask)
        monkeypatch.undo()
    assert out.dtype is BF16 and rapt.diffusers.guard is guard
    must_fail(guarded, lambda: check_one_dtype(spy, BF16))
    with autocast(), pytest.raises(rapt.ArgumentError, match="no_such_argument"):
        attend(*operands, attention_kwargs={"no_such_argument": 1}, backend="rapt")         # and needs no filter


# ---- Putting in and taking out ----

def test_calls_nest_and_the_last_one_out_restores():
    first = guard()
    with guard() as second:
        assert attend.__code__ is not OWN_CODE
        first.remove()
        first.remove()                                          # a second time counts for nothing
        assert attend.__code__ is not OWN_CODE
    assert attend.__code__ is OWN_CODE
    second.remove()
    with pytest.raises(KeyError), guard():
        raise KeyError
    assert attend.__code__ is OWN_CODE


def test_the_function_looks_as_it_did():
    signature, code = inspect.signature(attend), attend.__code__
    with guard():
        assert inspect.signature(attend) == signature and attend.__module__ == dispatch.__name__
        assert dispatch.dispatch_attention_fn is attend and attend.__code__ is not code


def test_errors_of_the_dispatcher_stay_its_own(monkeypatch):
    monkeypatch.delitem(registry._backends, Backend.FLEX)
    monkeypatch.delitem(registry._supported_arg_names, Backend.FLEX)
    calls = [dict(backend="no such backend"), dict(backend=Backend.FLEX), dict(attention_kwargs=3), dict(key=None)]
    for keywords in calls:
        said = []
        for context in (contextlib.nullcontext, guard):
            with context(), pytest.raises(Exception) as caught:
                attend(**{**dict(zip(("query", "key", "value"), qkv())), "backend": "native", **keywords})
            said.append((caught.type, str(caught.value)))
        assert said[0] == said[1]
    with pytest.raises(TypeError, match="missing 2 required positional arguments"), guard():
        attend(torch.zeros(1))


def fault(name):
    """Puts something in diffusers that guard() does not know."""
    def wrapped(*arguments, **keywords):
        return attend(*arguments, **keywords)

    def other(query, key, value):
        return query

    return {"dispatch_attention_fn": (dispatch, wrapped), "signature": (dispatch, types.FunctionType(
                other.__code__, vars(dispatch))), "_backends": (registry, None), "_supported_arg_names": (registry, []),
            "_supports_context_parallel": (registry, None), "get_active_backend": (registry, None),
            "AttentionBackendName": (dispatch, None)}[name]


@pytest.mark.parametrize("name", ["dispatch_attention_fn", "signature", "_backends", "_supported_arg_names",
                                  "_supports_context_parallel", "get_active_backend", "AttentionBackendName"])
def test_another_diffusers_is_one_clear_error_and_nothing_is_changed(name, monkeypatch):
    from diffusers import __version__
    owner, value = fault(name)
    name = "dispatch_attention_fn" if name == "signature" else name
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        with pytest.raises(RuntimeError, match=f"diffusers {__version__}: .*{name}.*Nothing was changed"):
            guard()
    assert attend.__code__ is OWN_CODE and _diffusers_guard._holders == 0
    with guard():
        pass


def test_a_change_by_somebody_else_is_not_undone():
    def other(*arguments, **keywords):
        return None

    handle = guard()
    ours = attend.__code__
    attend.__code__ = other.__code__
    try:
        with pytest.raises(RuntimeError, match="changed after guard"):
            handle.remove()
        assert attend.__code__ is other.__code__
    finally:
        attend.__code__ = ours
    handle.remove()
    assert attend.__code__ is OWN_CODE


def test_threads_that_put_in_and_take_out():
    def work():
        try:
            for _ in range(50):
                with guard():
                    attend(*operands, backend="native")
                attend(*operands, backend="native")
        except BaseException as error:                          # noqa: BLE001  it is the test's finding
            errors.append(error)

    errors, operands = [], qkv()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and attend.__code__ is OWN_CODE


# ---- Compiled ----

@pytest.fixture
def compiler():
    torch._dynamo.reset()
    counters.clear()
    yield lambda function, **options: torch.compile(function, backend="aot_eager", fullgraph=True, **options)
    assert not counters["graph_break"]
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("mask", [None, torch.full((4, 4), torch.finfo(FP32).min).triu(1), torch.ones(4, 4) > 0],
                         ids=["none", "float", "bool"])
def test_compiled_in_one_graph_autocast_toggled_d19(mask, dynamic, compiler, monkeypatch):
    backend = put_half_only(monkeypatch)

    def block(q, k, v):
        return attend(q * 1, k, v, attn_mask=mask, backend=backend)

    compiled, operands = compiler(block, dynamic=dynamic), qkv(FP32, FP32, BF16)
    with guard():
        for dtype in (BF16, FP16, BF16):
            with autocast(dtype):
                assert compiled(*operands).dtype is dtype and torch.equal(compiled(*operands), block(*operands))
                assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is dtype
            plain = [t.half() for t in operands]
            if mask is None or mask.dtype is torch.bool:
                assert compiled(*plain).dtype is FP16 and torch.equal(compiled(*plain), block(*plain))


def test_guard_toggled_between_two_calls_of_one_compiled_function(compiler, monkeypatch):
    """Ten times, so that neither state is compiled anew at every change."""
    def records(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        return query * (2 if query.dtype is BF16 else 1)

    put(monkeypatch, Backend.FLASH, records, ("query", "key", "value"))
    compiled = compiler(lambda q, k, v: attend(q, k, v, backend="flash"))
    operands = qkv(FP32, FP32, BF16)
    with autocast():
        for _ in range(10):
            with guard():
                assert torch.equal(compiled(*operands), operands[0].bfloat16() * 2)
            assert torch.equal(compiled(*operands), operands[0])


def test_the_dispatcher_itself_compiled(compiler, monkeypatch):
    put_half_only(monkeypatch)
    compiled, operands = compiler(attend), qkv(FP32, FP32, BF16)
    with guard(), autocast():
        assert torch.equal(compiled(*operands, backend=Backend.FLASH), attend(*operands, backend=Backend.FLASH))


def test_checks_of_a_known_backend_trace(compiler, monkeypatch):
    def fake(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        return half_only(query, key, value, attn_mask)

    fake.__module__, keep = dispatch.__name__, torch.ones(1, 1, 4, 4) > 0
    for name, mask in (("xformers", keep.float()), ("flex", keep), ("_native_npu", keep), ("_native_cudnn", keep)):
        put(monkeypatch, Backend(name), fake, ("query", "key", "value", "attn_mask"))
        compiled = compiler(lambda q, k, v, name=name, mask=mask: attend(q, k, v, attn_mask=mask, backend=name))
        operands = qkv(FP32, FP32, BF16)
        with guard(), autocast():
            assert compiled(*operands).dtype is BF16


def test_a_refusal_stays_a_refusal_under_a_compiler_d19():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, dropout_p=0.5, backend="flex"), backend="eager")
    with guard(), pytest.raises(rapt.ArgumentError, match="DROPOUT: dropout_p is 0.5"):
        compiled(*qkv())
    torch._dynamo.reset()
