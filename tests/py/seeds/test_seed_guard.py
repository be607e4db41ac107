# SPDX-License-Identifier: Apache-2.0
"""The four tests of the report that AutocastAttentionGuard goes back to, by their names: inputs of an attention module
that autocast has left in two dtypes. `guarded` runs each a second time without the guard, where it must fail."""

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
from rapt._guard import AutocastAttentionGuard  # noqa: E402
from test_guard import BF16, FP16, Spy, check_one_dtype, guarded, must_fail, run, seed  # noqa: E402, F401


def test_dtypes_consistent_after_cast(guarded):
    spy, guard = Spy(), AutocastAttentionGuard(FP16)
    run(guarded, guard, spy, torch.randn(2, 4, 8), torch.randn(2, 4, 8, dtype=FP16), torch.zeros(4, 4))
    if guarded:
        assert guard.validate(**spy.seen) is FP16 and guard.validate(*spy.seen.values()) == (True, {FP16})
    else:
        assert guard.validate(*spy.seen.values()) == (False, {FP16, torch.float32})
        with pytest.raises(rapt.ArgumentError, match="DTYPE_MIX"):
            guard.validate(**spy.seen)
    must_fail(guarded, lambda: check_one_dtype(spy, FP16))


@pytest.mark.parametrize("guard", [AutocastAttentionGuard(), AutocastAttentionGuard(FP16)])
def test_mixed_dtype_detected(guard, guarded):
    def attention(q, k, v):
        if guarded:
            guard.validate(q=q, k=k, v=v)
        entered.append({q.dtype, k.dtype, v.dtype})

    def check():
        assert not any(len(dtypes) > 1 for dtypes in entered)

    entered, half, single = [], torch.randn(2, 4, 8, dtype=FP16), torch.randn(2, 4, 8)
    error = None
    try:
        attention(half, single, half)
    except rapt.ArgumentError as caught:
        error = caught
    must_fail(guarded, check)
    if not guarded:
        return
    assert (error.code, error.want) == ("DTYPE_MIX", "float16")
    assert "q is float16, k is float32, v is float16" in str(error) and "pass k.to(torch.float16)." in str(error)
    assert guard.validate(half, single, half) == (False, {FP16, torch.float32})         # asked, not demanded
    assert guard.validate(q=half, k=single.to(FP16), v=half) is FP16        # with the fault taken away


def test_run_casts_to_target(guarded):
    spy = Spy()
    run(guarded, AutocastAttentionGuard(target_dtype=BF16), spy, torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    must_fail(guarded, lambda: check_one_dtype(spy, BF16))
    assert set(spy.seen) == {"hidden_states", "encoder_hidden_states"}      # what is not given is not passed on


def test_autocast_disabled_around_attn(guarded):
    def check():
        assert spy.autocast is False

    spy = Spy()
    with torch.autocast("cpu", dtype=BF16):
        run(guarded, AutocastAttentionGuard(disable_outer_autocast=True, device="cpu"), spy, torch.randn(2, 4, 8))
        assert torch.is_autocast_enabled("cpu")
    must_fail(guarded, check)
