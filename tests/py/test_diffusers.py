# SPDX-License-Identifier: Apache-2.0
"""rapt as an attention backend of diffusers (H5): the function that the dispatcher calls."""

import inspect

import diffusers_models as models
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import torch._dynamo.testing  # noqa: E402
from diffusers_calls import (  # noqa: E402, F401
    BF16, FP16, FP32, RAPT, attend, attention_backend, call, clean, own, qkv, rand, refused, registry, within,
)

# ---- Every mask that models send ----

def _bool(*shape):
    mask = torch.rand(shape) < 0.7
    mask[..., 0] = True
    return mask


def _bias(*shape):
    return torch.where(torch.rand(shape) < 0.2, float("-inf"), rand(*shape))


def _padding(b, skv):
    return torch.arange(skv) < torch.tensor([[skv - 2], [skv - 1]][:b])


def _empty_rows():
    """As HunyuanVideo-1.5 makes it: a pair counts where both are tokens, so a padded query sees nothing."""
    token = _padding(2, 7)
    return token[:, None, None, :] & token[:, None, :, None]


MASKS = {
    "(Skv) bool": (lambda: _bool(7), lambda m: m),
    "(B,Skv) bool": (lambda: _padding(2, 7), lambda m: m[:, None, None]),
    "(B,Skv) float": (lambda: _bias(2, 7), lambda m: m[:, None, None]),
    "(1,Skv) bool": (lambda: _bool(1, 7), lambda m: m),
    "(Sq,Skv) bool": (lambda: _bool(5, 7), lambda m: m),
    "(Sq,Skv) float": (lambda: _bias(5, 7), lambda m: m),
    "(1,Sq,Skv) bool": (lambda: _bool(1, 5, 7), lambda m: m),
    "(B,1,1,Skv) bool": (lambda: _bool(2, 1, 1, 7), lambda m: m),
    "(B,1,Sq,Skv) bool": (lambda: _bool(2, 1, 5, 7), lambda m: m),
    "(B,H,Sq,Skv) bool": (lambda: _bool(2, 4, 5, 7), lambda m: m),
    "(B,1,1,Skv) float": (lambda: _bias(2, 1, 1, 7), lambda m: m),
    "(B,1,Sq,Skv) float": (lambda: _bias(2, 1, 5, 7), lambda m: m),
    "(B,H,Sq,Skv) float": (lambda: _bias(2, 4, 5, 7), lambda m: m),
    "(1,1,Sq,Skv) float": (lambda: _bias(1, 1, 5, 7), lambda m: m),
    "(B,H,1,Skv) of -10000": (lambda: (1 - _padding(2, 7).float())[:, None, None].expand(2, 4, 1, 7) * -10000.0, lambda m: m),
    "0 and 1 as numbers": (lambda: _bool(2, 1, 5, 7).float(), lambda m: m),
    "padding in the middle": (lambda: torch.tensor([[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1]]).bool(),
                              lambda m: m[:, None, None]),
    "expanded": (lambda: _bool(2, 1, 1, 7).expand(2, 4, 5, 7), lambda m: m),
    "strided": (lambda: _bool(2, 1, 5, 14)[..., ::2], lambda m: m),
    "all of one value": (lambda: torch.full((2, 1, 1, 7), -10000.0), lambda m: m),      # finite: a mean, no empty row (M10)
}


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("kind", MASKS)
def test_masks_that_models_send_h5_h1(kind, dtype):
    make, full = MASKS[kind]
    q, k, v = qkv(dtype=dtype)
    mask = make()
    if mask.dtype.is_floating_point:
        mask = mask.to(dtype)
    name = "mask" if mask.dtype == torch.bool else "bias"
    within(call(q, k, v, attn_mask=mask), q, k, v, **{name: full(mask).to(torch.float64).numpy().astype(
        bool if name == "mask" else np.float64)})
    assert own()
    compiled = torch.compile(lambda *t: call(*t[:3], attn_mask=t[3]), backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(compiled(q, k, v, mask), call(q, k, v, attn_mask=mask))


def test_the_mask_tables_check_sees_a_mask_read_the_wrong_way_round():
    """The fault: padding read as its opposite, as npu and xla kernels take it."""
    q, k, v = qkv()
    mask = _padding(2, 7)
    with pytest.raises(AssertionError):
        within(call(q, k, v, attn_mask=~mask), q, k, v, mask=mask[:, None, None].numpy())


def test_a_query_row_that_sees_nothing_is_zero_m16():
    q, k, v = qkv(sq=7)
    mask = _empty_rows()
    out, lse = call(q, k, v, attn_mask=mask, attention_kwargs={"return_lse": True})
    within((out, lse), q, k, v, mask=mask.numpy())
    hidden = ~mask[:, 0].any(-1)
    assert hidden.any() and not out[hidden].any() and torch.isneginf(lse[hidden]).all()


def test_a_rank_2_mask_that_fits_twice_is_refused_and_rank_4_asked_h5():
    q, k, v = qkv(b=5, sq=5)
    mask = _bool(5, 7)
    text = refused("RANK", "attn_mask is of shape 5x7", q, k, v, attn_mask=mask)
    assert "4 axes" in text and "mask[:, None, None]" in text
    within(call(q, k, v, attn_mask=mask[:, None, None]), q, k, v, mask=mask[:, None, None].numpy())
    within(call(q, k, v, attn_mask=mask[None, None]), q, k, v, mask=mask.numpy())
    q, k, v = qkv(b=1, sq=1)
    mask = _bool(1, 7)
    within(call(q, k, v, attn_mask=mask), q, k, v, mask=mask.numpy())       # one row is one row
    refused("SHAPE", "attn_mask is of shape 3x7", *qkv(), attn_mask=_bool(3, 7))
    refused("SHAPE", "attn_mask is of shape 2x1", *qkv(), attn_mask=_bool(2, 1))


def test_masks_of_other_kinds_are_refused_by_name_h5():
    q, k, v = qkv()
    text = refused("RANK", "attn_mask is of shape 2x5x7", q, k, v, attn_mask=_bool(2, 5, 7))
    assert "mask[:, None]" in text
    refused("RANK", "attn_mask is of 5 axes", q, k, v, attn_mask=_bool(1, 1, 1, 5, 7))
    refused("RANK", "attn_mask is of 0 axes", q, k, v, attn_mask=torch.tensor(True))
    refused("MASK", "attn_mask is int64", q, k, v, attn_mask=torch.ones(2, 1, 1, 7, dtype=torch.int64))
    refused("MASK", "attn_mask is a list", q, k, v, attn_mask=[True] * 7)
    from torch.nn.attention.flex_attention import create_block_mask
    block = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cpu")
    assert "flex backend" in refused("MASK", "attn_mask is a BlockMask", q, k, v, attn_mask=block)
    refused("SHAPE", "attn_mask", q, k, v, attn_mask=_bool(2, 1, 5, 6))


# ---- Every keyword of the dispatcher ----

def test_there_is_a_test_for_every_keyword_of_the_dispatcher_and_of_its_backends():
    """A keyword that diffusers adds shows up here first."""
    known = {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"}
    assert set(inspect.signature(attend).parameters) == known | {"attention_kwargs", "backend", "parallel_config"}
    others = [m for m in registry._backends if m is not RAPT]
    # softcap and the like reach single kernels only: refused by name below
    assert known | {"return_lse", "_parallel_config"} <= set().union(*(registry._supported_arg_names[m] for m in others))
    assert set(registry._supported_arg_names[RAPT]) == known | {"return_lse", "window_size", "_parallel_config"}


def test_query_key_value_of_any_strides_and_widths_s9_h2():
    packed = rand(2, 6, 3, 4, 8)
    q, k, v = packed.unbind(2)
    out = call(q, k, v)
    assert torch.equal(out, call(q.contiguous(), k.contiguous(), v.contiguous())) and out.is_contiguous()
    within(out, q, k, v)
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv())       # (B,H,S,D) in memory
    out = call(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    within(out, q, k, v)
    q, k, v = qkv(dv=12)
    assert call(q, k, v).shape == (2, 5, 4, 12)
    within(call(q, k, v), q, k, v)
    refused("RANK", "query is of 3 axes", q[0], k, v)
    refused("RANK", "key is a list", q, [1], v)
    refused("SHAPE", "key and value|value", q, k, v[:, :3])


@pytest.mark.parametrize("causal", [True, False, None])
def test_is_causal_is_top_left_and_none_is_false_h5(causal):
    for sq, skv in ((5, 5), (4, 7), (7, 4)):
        q, k, v = qkv(sq=sq, skv=skv)
        within(call(q, k, v, is_causal=causal), q, k, v, causal=bool(causal))
        assert own()
    mask = _bool(7, 4)
    within(call(q, k, v, is_causal=causal, attn_mask=mask), q, k, v, causal=bool(causal), mask=mask.numpy())   # M11
    refused("UNKNOWN_FIELD", "is_causal is 'no'", q, k, v, is_causal="no")


@pytest.mark.parametrize("scale", [None, 0.5, 0.0, -0.25, 1])
def test_scale_n3(scale):
    q, k, v = qkv()
    within(call(q, k, v, scale=scale), q, k, v, scale=scale)


def test_enable_gqa_and_heads_that_say_so():
    q, k, v = qkv(kv=2)
    flagged = call(q, k, v, enable_gqa=True)
    within(flagged, q, k, v)
    assert own() and torch.equal(call(q, k, v), flagged)        # fewer heads of key and value have one meaning
    q, k, v = qkv(kv=1)
    within(call(q, k, v), q, k, v)
    refused("HEADS", "key", *qkv(kv=3))
    refused("UNKNOWN_FIELD", "enable_gqa is 1", q, k, v, enable_gqa=1)


def test_dropout_p_runs_on_the_host_with_its_generator_x7():
    q, k, v = qkv(sq=20, skv=20)
    torch.manual_seed(9)
    out = call(q, k, v, dropout_p=0.3)
    assert rapt.last_report().row == "torch.sdpa"
    torch.manual_seed(9)
    assert torch.equal(out, attend(q, k, v, dropout_p=0.3, backend="native"))
    call(q, k, v, dropout_p=0)
    assert own()


def test_return_lse_is_natural_fp32_b_s_h_h5_h2():
    for dtype in (FP32, BF16, FP16):
        q, k, v = qkv(kv=2, dtype=dtype)
        out = call(q, k, v, attention_kwargs={"return_lse": True})
        assert out[0].dtype is dtype and out[1].dtype is FP32 and out[1].shape == (2, 5, 4) and out[1].is_contiguous()
        within(out, q, k, v)
    run = torch.compile(lambda q, k, v: call(q, k, v, attention_kwargs={"return_lse": True}), backend="eager", fullgraph=True)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(run(q, k, v), out))
    with pytest.raises(rapt.ArgumentError, match="^GRAD"):
        call(q.requires_grad_(), k, v, attention_kwargs={"return_lse": True})
    assert isinstance(call(q, k, v, attention_kwargs={"return_lse": False}), torch.Tensor)
    with pytest.raises(rapt.RefusedError) as caught, torch.no_grad():
        call(q, k, v, dropout_p=0.5, attention_kwargs={"return_lse": True})
    assert "LSE" in caught.value.report.codes("torch.sdpa")


@pytest.mark.parametrize("window", [(-1, -1), (1, 0), (0, 2), (-1, 1), (2, -1), (None, None)])
def test_window_size_is_inclusive_from_the_top_left_h5_m6(window):
    q, k, v = qkv()
    sides = tuple(-1 if side is None else side for side in window)
    for causal in (False, True):
        out = call(q, k, v, is_causal=causal, attention_kwargs={"window_size": window})
        within(out, q, k, v, window=sides, causal=causal)
        assert own()
    mask = _bool(5, 7)
    within(call(q, k, v, attn_mask=mask, attention_kwargs={"window_size": window}), q, k, v, window=sides, mask=mask.numpy())


def test_a_wrong_window_size_is_refused_by_name():
    for window in (3, (1, 2, 3), (-2, 0), (1.5, 0), "ab"):
        refused("WINDOW", "window", *qkv(), attention_kwargs={"window_size": window})


@pytest.mark.parametrize("name", ["softcap", "deterministic", "alibi_slopes", "cu_seqlens_q", "return_attn_probs", "q_scale",
                                  "attn_bias", "block_mask", "pv_accum_dtype", "sinks"])
def test_what_other_backends_drop_in_silence_is_refused_by_name_h1_e6(name):
    q, k, v = qkv()
    for value in (None, 1.0):
        refused("UNKNOWN_FIELD", f"{name} is not accepted", q, k, v, attention_kwargs={name: value})
    attend(q, k, v, attention_kwargs={name: 1.0}, backend="native")         # as diffusers does it


def test_unknown_names_are_refused_in_compiled_code_too():
    q, k, v = qkv()
    run = torch.compile(lambda t: call(t, k, v, attention_kwargs={"softcap": 5.0}), backend="eager")
    with pytest.raises(rapt.ArgumentError, match="softcap is not accepted"):
        run(q)


def test_a_parallel_config_without_context_parallelism_is_an_ordinary_call():
    from diffusers.models._modeling_parallel import ParallelConfig
    q, k, v = qkv()
    assert torch.equal(call(q, k, v, parallel_config=ParallelConfig()), call(q, k, v))


def test_dtypes_a6_a7_a9_a13():
    for dtype in (FP16, BF16, FP32, torch.float64):
        q, k, v = qkv(dtype=dtype)
        within(call(q, k, v), q, k, v)
    q, k, v = qkv()
    half = v.to(BF16)
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX") as caught:
        call(q, k, half)
    assert "fp32" in str(caught.value) and "bf16" in str(caught.value) and "Expected query, key, and value" in str(caught.value)
    bias = _bias(2, 1, 5, 7)
    bias[0, 0, 0, 1] = torch.finfo(FP32).min                    # stays a number (A8)
    with torch.autocast("cpu"):
        out = call(q, k, half, attn_mask=bias)
    assert own() and out.dtype is BF16
    low = torch.where(bias.isinf(), bias, bias.clamp(-torch.finfo(BF16).max, torch.finfo(BF16).max)).to(BF16)
    assert torch.equal(out, call(q.to(BF16), k.to(BF16), half, attn_mask=low))
    with torch.autocast("cpu"), torch.autocast("cpu", enabled=False):
        assert call(q, k, v).dtype is FP32


def test_gradients_are_the_hosts_a14_d28():
    grads = []
    for backend in ("rapt", "native"):
        torch.manual_seed(1)
        q, k, v = (t.requires_grad_() for t in qkv())
        with torch.autocast("cpu"):
            out = attend(q, k, v.to(BF16), backend=backend)
        assert out.dtype is BF16
        out.float().square().sum().backward()
        grads.append([t.grad for t in (q, k, v)])
    assert all(torch.equal(a, b) and a.dtype is FP32 for a, b in zip(*grads))


@pytest.mark.parametrize("autocast", [False, True])
def test_on_meta_a_call_gives_the_shapes_of_the_real_one_a12_h2(autocast):
    q, k, v = qkv(dv=12, kv=2, dtype=BF16)
    packed = rand(2, 6, 3, 4, 8, dtype=BF16).unbind(2)
    bhsd = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv(dtype=BF16))
    for operands in ((q, k, v), packed, bhsd):
        with torch.autocast("cpu", enabled=autocast):
            for kw in ({}, {"attention_kwargs": {"return_lse": True, "window_size": (1, 1)}}):
                want = call(*operands, **kw)
                got = call(*(t.to("meta") for t in operands), **kw)
                for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want))):
                    assert a.is_meta and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    m = tuple(t.to("meta") for t in (q, k, v))
    refused("DTYPE_MIX", "query, key and value", m[0].float(), *m[1:])
    refused("SHAPE", "attn_mask", *m, attn_mask=torch.ones(2, 1, 5, 6, dtype=torch.bool, device="meta"))
    refused("UNKNOWN_FIELD", "softcap", *m, attention_kwargs={"softcap": 1.0})
    model, inputs = models.make("Flux")
    with attention_backend("rapt"):
        out = model.to("meta")(**{name: t.to("meta") for name, t in inputs.items()}).sample
    assert out.is_meta and out.shape == (1, 12, 4)


def test_preferences_reach_the_calls_of_a_model_d9_d21():
    q, k, v = qkv()
    with rapt.policy(require="ref"):
        call(q, k, v)
        assert rapt.last_report().row == "ref"
    with rapt.policy(require="fa2"), pytest.raises(rapt.RefusedError) as caught:
        call(q, k, v)
    assert caught.value.report.codes("fa2")


@pytest.mark.parametrize("kw", [{}, {"is_causal": True}, {"attention_kwargs": {"window_size": (1, 1), "return_lse": True}}])
@pytest.mark.parametrize("mask", [None, lambda skv: _bool(2, 1, 1, skv), lambda skv: _bool(2, skv)])
def test_one_graph_serves_every_length(kw, mask):
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    run = torch.compile(lambda q, k, v, m: call(q, k, v, attn_mask=m, **kw), backend=counter, fullgraph=True, dynamic=True)
    for sq in (5, 6, 9, 17):
        q, k, v = qkv(sq=sq, skv=sq + 1)
        given = None if mask is None else mask(sq + 1)
        got, want = run(q, k, v, given), call(q, k, v, attn_mask=given, **kw)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want))):
            assert torch.equal(a, b) and a.stride() == b.stride()
    assert counter.frame_count == 1
