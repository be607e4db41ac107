# SPDX-License-Identifier: Apache-2.0
"""guard(): what a backend of diffusers would have dropped or misread is refused by name (D12, D6). Where a test takes
`guarded`, it runs a second time without the guard, where the call reaches the backend without what was asked."""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import rapt  # noqa: E402
from dispatch_spy import (  # noqa: E402, F401
    BF16, EVERY, Backend, attend, clean, dispatch, guarded, parallel, put, qkv, registry, spy_on)
from rapt._diffusers_guard import guard  # noqa: E402


# ---- Arguments that the dispatcher would drop (D12, D6) ----

DROPPED = {"dropout_p": (0.5, "DROPOUT"), "is_causal": (True, "ALIGNMENT"), "scale": (0.5, "SCALE"),
           "window_size": ((2, 0), "WINDOW"), "softcap": (1.0, "SOFTCAP"), "return_lse": (True, "LSE"),
           "deterministic": (True, "DETERMINISM"), "return_attn_probs": (True, "UNKNOWN_FIELD"),
           "no_such_argument": (1, "UNKNOWN_FIELD"), "attention_mask": (torch.zeros(4, 4), "UNKNOWN_FIELD")}
DIRECT = ("dropout_p", "is_causal", "scale", "enable_gqa")      # those that the dispatcher has itself


def call_with(backend, argument, value, operands=None):
    keywords = {argument: value} if argument in DIRECT else {"attention_kwargs": {argument: value}}
    return attend(*(operands or qkv(BF16)), backend=backend, **keywords)


def lacking():
    return [(backend, argument) for backend in EVERY for argument in DROPPED
            if type(registry._supported_arg_names[backend]) is set and argument not in registry._supported_arg_names[backend]]


@pytest.mark.parametrize("backend, argument", lacking(), ids=lambda x: getattr(x, "value", x))
def test_an_argument_that_would_be_dropped_is_refused_by_name_d12(backend, argument, guarded, monkeypatch):
    spy, (value, code) = spy_on(monkeypatch, backend), DROPPED[argument]
    refusal = pytest.raises(rapt.ArgumentError, match=f"{code}: {argument} is ") if guarded else contextlib.nullcontext()
    for on in (False, True):
        with torch.autocast("cpu", enabled=on), refusal as caught:
            call_with(backend, argument, value)
        if guarded:
            assert (caught.value.code, caught.value.field) == (code, argument) and backend.value in str(caught.value)
    if guarded:
        assert not spy.calls
    else:
        assert argument not in spy.calls[-1]                    # dropped without a word


def test_a_refusal_says_who_would_take_it():
    with guard(), pytest.raises(rapt.ArgumentError) as caught:
        attend(*qkv(), dropout_p=0.5, backend="flex")
    assert "native" in str(caught.value) and "xformers" in str(caught.value) and "_flash_3," not in str(caught.value)
    assert caught.value.got == "0.5"
    with guard(), pytest.raises(rapt.ArgumentError, match="no backend has it"):
        call_with("native", "no_such_argument", 1)


WITHOUT_EFFECT = [("dropout_p", 0.0), ("dropout_p", 0), ("is_causal", False), ("is_causal", None), ("scale", None),
                  ("scale", 8 ** -0.5), ("window_size", (-1, -1)), ("window_size", (None, None)), ("softcap", 0.0),
                  ("return_lse", False), ("deterministic", False), ("no_such_argument", None), ("enable_gqa", True)]


@pytest.mark.parametrize("argument, value", WITHOUT_EFFECT)
def test_what_has_no_effect_may_be_dropped_d6(argument, value, monkeypatch):
    for backend in EVERY:
        spy = spy_on(monkeypatch, backend)
        if type(registry._supported_arg_names[backend]) is set:
            with guard():
                call_with(backend, argument, value)
            assert len(spy.calls) == 1


def test_fewer_heads_of_key_and_value_without_the_switch(monkeypatch):
    """Most kernels see them in the shapes; where nothing is known of the kernel, the switch is not dropped."""
    few, refused = qkv(BF16, kv_heads=1), []
    for backend in EVERY:
        spy = spy_on(monkeypatch, backend)
        if "enable_gqa" in registry._supported_arg_names[backend]:
            continue
        with guard():
            try:
                call_with(backend, "enable_gqa", True, few)
                assert len(spy.calls) == 1
            except rapt.ArgumentError as error:
                assert error.code == "HEADS" and not spy.calls
                refused.append(backend.value)
    assert refused == ["_native_xla", "sage_blackwell_hub"]


def test_a_backend_that_would_see_a_part_of_the_keys_is_refused(guarded, monkeypatch):
    for backend in (Backend.FLEX, Backend.XFORMERS, Backend._FLASH_3, Backend._NATIVE_MATH):
        spy = spy_on(monkeypatch, backend)
        with pytest.raises(rapt.ArgumentError, match="parallel_config") if guarded else contextlib.nullcontext():
            attend(*qkv(), backend=backend, parallel_config=parallel(ulysses=2))
        assert len(spy.calls) == (0 if guarded else 1)
        if guarded:
            attend(*qkv(), backend=backend, parallel_config=types.SimpleNamespace(context_parallel_config=None))
    put(monkeypatch, Backend.FLASH, lambda query, key, value: query, ("query", "key", "value"))
    with pytest.raises(rapt.ArgumentError, match="parallel_config") if guarded else contextlib.nullcontext():
        attend(*qkv(), backend=Backend.FLASH, parallel_config=parallel(ulysses=2))


# ---- Masks that a backend ignores or misreads (docs/backends.md section 1) ----

def padding(*rows):
    return torch.tensor(rows, dtype=torch.bool)


INF = float("inf")
BOOL, HEADS = torch.ones(1, 1, 4, 4, dtype=torch.bool), torch.ones(1, 2, 4, 4, dtype=torch.bool)
ROWS = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
GAP, TAIL, FRONT = padding([1, 0, 1, 1]), padding([1, 1, 1, 0]), padding([0, 1, 1, 1])
MISREAD = [
    ("flex", dict(is_causal=True), "ALIGNMENT", "is_causal"),
    ("flex", dict(is_causal=True, attn_mask=BOOL), "MASK", "is_causal"),
    ("flex", dict(attn_mask=TAIL), "MASK", "attn_mask"),
    ("flex", dict(attn_mask=HEADS), "MASK", "attn_mask"),
    ("xformers", dict(is_causal=True, attn_mask=BOOL), "MASK", "is_causal"),
    ("xformers", dict(attn_mask=BOOL), "MASK", "attn_mask"),
    ("_native_npu", dict(attn_mask=BOOL.float()), "MASK", "attn_mask"),
    ("_native_cudnn", dict(attn_mask=BOOL, parallel_config=parallel(ulysses=2)), "MASK", "attn_mask"),
    ("_native_cudnn", dict(attn_mask=BOOL.float(), parallel_config=parallel(ring=2)), "MASK", "attn_mask"),
] + [(name, dict(attn_mask=mask), "MASK", "attn_mask") for name in ("flash_varlen", "_flash_varlen_3", "sage_varlen")
     for mask in (GAP, FRONT, GAP[:, None, None], GAP[0], ROWS, ROWS[0])] + [
    (name, dict(attn_mask=ROWS), "MASK", "attn_mask") for name in ("flash_varlen_hub", "_flash_3_varlen_hub")]


@pytest.mark.parametrize("name, keywords, code, field", MISREAD)
def test_what_a_backend_would_misread_is_refused_by_name_d12(name, keywords, code, field, guarded, monkeypatch):
    spy = spy_on(monkeypatch, Backend(name))
    with pytest.raises(rapt.ArgumentError) if guarded else contextlib.nullcontext() as caught:
        attend(*qkv(BF16), backend=name, **keywords)
    assert len(spy.calls) == (0 if guarded else 1)              # without the guard it is on its way to the kernel
    if guarded:
        assert (caught.value.code, caught.value.field) == (code, field) and name in str(caught.value)


UNDERSTOOD = [
    ("flex", dict(attn_mask=BOOL)), ("flex", dict(attn_mask=HEADS.float())), ("flex", dict(attn_mask="block mask")),
    ("flex", dict(attn_mask=BOOL.expand(1, 2, 4, 4))), ("flex", dict(attn_mask=BOOL.expand(1, 1, 4, 4)[0])),
    ("xformers", dict(is_causal=True)), ("xformers", dict(attn_mask=BOOL.float())), ("xformers", dict(attn_mask=TAIL)),
    ("_native_npu", dict(attn_mask=BOOL)), ("_native_cudnn", dict(attn_mask=BOOL)),
    ("_native_cudnn", dict(attn_mask=BOOL.float(), parallel_config=parallel(ulysses=2))),
    ("native", dict(attn_mask=GAP)), ("native", dict(attn_mask=ROWS)),
    ("flash_varlen", dict(attn_mask=TAIL)), ("flash_varlen", dict(attn_mask=TAIL[:, None, None])),
    ("flash_varlen", dict(attn_mask=TAIL[:, None, None].expand(1, 2, 4, 4))), ("flash_varlen", dict(attn_mask=TAIL[0])),
    ("flash_varlen", dict(attn_mask=TAIL[:, None, None].repeat(1, 2, 4, 1))), ("sage_varlen", dict(attn_mask=None)),
    ("flash_varlen", dict(attn_mask=TAIL.float())),             # the backend refuses it itself
    ("flash_varlen_hub", dict(attn_mask=GAP)), ("_flash_3_varlen_hub", dict(attn_mask=FRONT[:, None, None])),
]


@pytest.mark.parametrize("name, keywords", UNDERSTOOD)
def test_what_a_backend_understands_reaches_it(name, keywords, monkeypatch):
    spy = spy_on(monkeypatch, Backend(name))
    with guard():
        attend(*qkv(BF16), backend=name, **keywords)
    assert spy.calls[-1]["attn_mask"] is keywords.get("attn_mask")


def test_another_function_under_a_known_name_is_not_suspected(monkeypatch):
    spy = spy_on(monkeypatch, Backend.XFORMERS)
    spy.__module__ = "somebody.else"
    with guard():
        attend(*qkv(), attn_mask=BOOL, backend="xformers")
    assert len(spy.calls) == 1


# ---- The faults themselves, in diffusers' own functions with recorders for kernels ----

def plain(q, k, v, mask=None):
    return attend(q, k, v, attn_mask=mask, backend="native")


def test_flex_ignores_and_misreads_as_the_guard_says():
    operands = q, k, v = qkv()
    keep, rows = torch.rand(1, 1, 4, 4) > 0.4, torch.tensor([[True, True, True, False]])
    keep[..., 0] = True
    causal = plain(q, k, v, torch.ones(4, 4, dtype=torch.bool).tril())
    assert torch.allclose(attend(*operands, is_causal=True, backend="flex"), plain(*operands), atol=1e-6)      # ignored
    out = attend(*operands, attn_mask=keep, is_causal=True, backend="flex")
    assert torch.allclose(out, causal, atol=1e-6) and not torch.allclose(out, plain(*operands, keep), atol=1e-3)
    out = attend(*operands, attn_mask=rows, backend="flex")
    assert torch.allclose(out[:, :3], plain(*operands)[:, :3], atol=1e-6) and out[:, 3].abs().max() == 0    # hides queries


def test_npu_turns_an_additive_mask_around():
    added = torch.tensor([0.0, 0.0, 0.0, -INF]).expand(1, 1, 4, 4)
    dropped = dispatch._maybe_modify_attn_mask_npu(*qkv()[:2], added)
    assert dropped[0, 0, 0].tolist() == [True, True, True, False]


def test_xformers_replaces_and_misreads_as_the_guard_says(monkeypatch):
    class Causal:
        pass

    seen = []
    monkeypatch.setattr(dispatch, "xops", types.SimpleNamespace(
        LowerTriangularMask=Causal, memory_efficient_attention=lambda q, k, v, mask, *rest: seen.append(mask) or q))
    attend(*qkv(), attn_mask=ROWS, backend="xformers")
    attend(*qkv(), attn_mask=ROWS.float(), is_causal=True, backend="xformers")
    assert seen[0].dtype is not torch.bool and seen[0].unique().tolist() == [0.0, 1.0] and isinstance(seen[1], Causal)


@pytest.mark.parametrize("mask, kept", [(GAP, [0, 1, 2]), (FRONT, [0, 1, 2]), (TAIL, [0, 1, 2]), (ROWS, [0, 1, 2, 3])])
def test_packing_backends_take_the_first_keys_of_any_mask(mask, kept, monkeypatch):
    seen, (q, k, v) = [], qkv(BF16)
    monkeypatch.setattr(dispatch, "flash_attn_varlen_func", lambda **given: seen.append(given["k"]) or given["q"])
    attend(q, k, v, attn_mask=mask, backend="flash_varlen")
    assert torch.equal(seen[0], k[0, kept])


def test_cudnn_hands_a_bool_mask_over_as_an_additive_one(monkeypatch):
    seen = []
    monkeypatch.setattr(dispatch, "_templated_context_parallel_attention",
                        lambda q, k, v, mask, *rest, forward_op, **keywords: forward_op(None, q, k, v, mask, *rest))
    monkeypatch.setattr(dispatch.torch.ops.aten, "_scaled_dot_product_cudnn_attention",
                        lambda **given: seen.append(given["attn_bias"]) or (given["query"],) + (None,) * 8, raising=False)
    with contextlib.suppress(Exception):
        attend(*qkv(BF16), attn_mask=BOOL, backend="_native_cudnn", parallel_config=parallel(ulysses=2))
    assert seen[0] is BOOL
