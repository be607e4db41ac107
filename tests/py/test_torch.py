# SPDX-License-Identifier: Apache-2.0
"""rapt.torch.sdpa against F.scaled_dot_product_attention (contract sections 6, 7 and 11)."""

import re

import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

sdpa = rapt.torch.sdpa
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.float64: "fp64"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def rand(*shape, dtype=FP32):
    return (torch.rand(shape) * 2 - 1).to(dtype)


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def numpy(tensor):
    return tensor.detach().to(torch.float64).numpy()


def both_within(q, k, v, ours, theirs, **oracle):
    """Ours is within the bound of the exact result, and within twice the bound of the host's (N13)."""
    dtype = NAMES[ours.dtype]
    o, _, bound, _ = oracle_np.attention(numpy(q), numpy(k), numpy(v), dtype=dtype, **oracle)
    oracle_np.check(numpy(ours), o, bound)
    oracle_np.check(numpy(ours), numpy(theirs), bound, times=2.0)


def own(report):
    return report.row.startswith("cpu.") or report.row == "ref"


# ---- Autocast ----

def test_promoted_q_k_beside_bf16_v_run_inside_autocast_a6_a9():
    q, k, v = rand(2, 4, 33, 64), rand(2, 4, 40, 64), rand(2, 4, 40, 64, dtype=BF16)
    cast = sdpa(q.to(BF16), k.to(BF16), v)
    with torch.autocast("cpu"):
        out = sdpa(q, k, v)
        report = rapt.last_report()
        host = F.scaled_dot_product_attention(q, k, v)
    assert out.dtype is BF16 and same_bits(out, cast)
    assert own(report)
    assert [(c["tensor"], c["from"], c["to"]) for c in report.json["casts"]] == [("q", "fp32", "bf16"), ("k", "fp32", "bf16")]
    both_within(q.to(BF16), k.to(BF16), v, out, host)


def test_outside_autocast_they_are_refused_in_the_hosts_words_a7():
    q, k, v = rand(1, 2, 3, 8), rand(1, 2, 3, 8), rand(1, 2, 3, 8, dtype=BF16)
    with pytest.raises(RuntimeError, match="Expected query") as host:
        F.scaled_dot_product_attention(q, k, v)
    with pytest.raises(rapt.ArgumentError) as caught:
        sdpa(q, k, v)
    text = str(caught.value)
    assert text.startswith("DTYPE_MIX: query, key and value") and "fp32" in text and "bf16" in text
    assert str(host.value).splitlines()[0].strip() in text
    assert caught.value.report.json["error"]["code"] == "DTYPE_MIX"


def test_toggling_autocast_changes_the_very_next_call_a1():
    q, k, v = rand(1, 2, 3, 8), rand(1, 2, 3, 8), rand(1, 2, 3, 8)
    seen = []
    for inside in (False, True, False, True, True, False):
        with torch.autocast("cpu", enabled=inside):
            seen.append((sdpa(q, k, v).dtype, rapt.last_report().json["casts"] != []))
    assert seen == [(BF16, True) if inside else (FP32, False) for inside in (False, True, False, True, True, False)]
    with torch.autocast("cpu"):
        with torch.autocast("cpu", enabled=False):
            assert sdpa(q, k, v).dtype is FP32
        with torch.autocast("cpu", dtype=FP16):
            assert sdpa(q, k, v).dtype is FP16
        assert sdpa(q, k, v).dtype is BF16
        assert sdpa(q, k, v, autocast="off").dtype is FP32


def test_fp64_is_not_eligible_a2_a3():
    q, k, v = (rand(1, 2, 3, 8, dtype=torch.float64) for _ in range(3))
    with torch.autocast("cpu"):
        out = sdpa(q, k, v)
        with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX"):
            sdpa(q, k.float(), v.float())
    assert out.dtype is torch.float64
    both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v))


def test_a_finite_bias_stays_finite_under_autocast_a8():
    q, k, v = rand(1, 1, 1, 8), rand(1, 1, 4, 8), rand(1, 1, 4, 8)
    lowest = torch.full((1, 4), torch.finfo(FP32).min)
    with torch.autocast("cpu"):
        ours = sdpa(q, k, v, attn_mask=lowest)
        host = F.scaled_dot_product_attention(q, k, v, attn_mask=lowest)
    mean = v.to(BF16).float().mean(-2, keepdim=True)
    assert torch.equal(ours, mean.to(BF16))                     # M10: arithmetic
    assert torch.equal(host, torch.zeros_like(host))            # the host's cast made it a mask


@pytest.mark.parametrize("wanted", [False, True], ids=["own", "host"])
@pytest.mark.parametrize("source,target", [(FP32, BF16), (FP32, FP16), (BF16, FP16), (FP16, BF16)])
def test_the_lowest_bias_of_one_dtype_is_a_number_in_every_other_a8(source, target, wanted):
    """The limit of fp16 is no number of bf16: clamped to it there, it would round to what becomes infinite."""
    q, k, v = rand(1, 1, 2, 8).requires_grad_(wanted), rand(1, 1, 4, 8), rand(1, 1, 4, 8)
    bias = torch.full((2, 4), torch.finfo(source).min, dtype=source)
    bias[1, 1:] = float("-inf")
    with torch.autocast("cpu", dtype=target):
        out = sdpa(q, k, v, attn_mask=bias)
    assert (rapt.last_report().row == "torch.sdpa") is wanted and out.dtype is target
    assert torch.allclose(out[..., 1, :], v[..., 0, :].to(target), atol=1e-2)        # -inf hides, the lowest does not
    assert out[..., 0, :].abs().max() > 0 and torch.isfinite(out).all()


def test_the_host_operator_runs_with_autocast_suspended_a13():
    q, k, v = rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8, dtype=BF16)
    q.requires_grad_()
    lowest = torch.full((5, 5), torch.finfo(FP32).min)
    with torch.autocast("cpu"):
        out = sdpa(q, k, v, attn_mask=lowest)
    assert rapt.last_report().row == "torch.sdpa"
    assert out.dtype is BF16 and out.abs().max() > 0            # a cast by the host would have given zeros
    out.float().sum().backward()
    assert q.grad is not None and q.grad.dtype is FP32
    with torch.autocast("cpu"):
        off = sdpa(q, k, k, autocast="off")                     # the call's word holds on the host's operator too
    assert rapt.last_report().row == "torch.sdpa" and off.dtype is FP32


# ---- The host's own operator ----

@pytest.mark.parametrize("which", ["query", "key", "value", "attn_mask"])
def test_a_call_with_gradients_runs_on_the_host_and_keeps_its_graph_d28_b8(which):
    tensors = {"query": rand(2, 4, 6, 8), "key": rand(2, 4, 7, 8), "value": rand(2, 4, 7, 8), "attn_mask": rand(6, 7)}
    tensors[which].requires_grad_()
    other = {name: t.detach().clone().requires_grad_(name == which) for name, t in tensors.items()}
    before = rapt.torch.context.entered()
    out = sdpa(**tensors)
    report = rapt.last_report()
    assert report.row == "torch.sdpa" and report.status == "OK"
    assert "GRAD" in report.codes("ref") or "GRAD_BIAS" in report.codes("ref")
    after = rapt.torch.context.entered()
    assert {row for row in after if after[row] != before[row]} == {"torch.sdpa"}        # R1
    want = F.scaled_dot_product_attention(**other)
    assert torch.equal(out, want) and out.requires_grad
    out.sum().backward()
    want.sum().backward()
    assert torch.equal(tensors[which].grad, other[which].grad)


def test_without_a_need_for_gradients_our_rows_run_d28():
    q = rand(1, 2, 3, 8).requires_grad_()
    with torch.no_grad():
        sdpa(q, q, q)
    assert own(rapt.last_report())
    with torch.inference_mode():
        sdpa(q, q, q)
    assert own(rapt.last_report())


def test_required_rows_refuse_what_they_cannot_d10():
    q = rand(1, 2, 3, 8).requires_grad_()
    before = rapt.torch.context.entered()
    with pytest.raises(rapt.RefusedError) as caught:
        sdpa(q, q, q, require="cpu,ref")
    assert "GRAD" in caught.value.report.codes("ref") and rapt.last_report() is caught.value.report
    assert rapt.torch.context.entered() == before


def test_dropout_runs_on_the_host_with_the_hosts_generator_x7_x8():
    q, k, v = rand(1, 2, 30, 8), rand(1, 2, 30, 8), rand(1, 2, 30, 8)
    torch.manual_seed(5)
    out = sdpa(q, k, v, dropout_p=0.3)
    assert rapt.last_report().row == "torch.sdpa"
    torch.manual_seed(5)
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, v, dropout_p=0.3))
    with pytest.raises(rapt.ArgumentError, match="seed"):
        sdpa(q, k, v, dropout_p=0.3, seed=1)
    state = torch.get_rng_state()
    sdpa(q, k, v, seed=1)                                       # X6: without effect at p = 0
    assert own(rapt.last_report()) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("row", ["torch.sdpa", "torch.math", "torch.flash_cpu"])
def test_members_of_the_host_by_name_d28(row):
    q, k, v = rand(2, 4, 6, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)
    mask = torch.rand(2, 1, 6, 6) < 0.8
    for keywords in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": rand(6, 6)}, {"scale": 0.3}):
        out = sdpa(q, k, v, require=row, **keywords)
        assert rapt.last_report().row == row
        ours = sdpa(q, k, v, **keywords)
        assert own(rapt.last_report())
        extra = {"causal": True} if "is_causal" in keywords else {}
        if "attn_mask" in keywords:
            extra["mask" if keywords["attn_mask"].dtype is torch.bool else "bias"] = keywords["attn_mask"].numpy()
        both_within(q, k, v, ours, out, scale=keywords.get("scale"), **extra)


# ---- Every argument of the host ----

def test_ranks_and_views_s3():
    for shape in ((6, 8), (4, 6, 8), (2, 4, 6, 8), (3, 2, 4, 6, 8)):
        q, k, v = rand(*shape), rand(*shape), rand(*shape)
        out, lse = sdpa(q, k, v, return_lse=True)
        host = F.scaled_dot_product_attention(q, k, v)
        assert out.shape == host.shape and lse.shape == host.shape[:-1] and own(rapt.last_report())
        heads = shape[-3] if len(shape) > 3 else -1
        both_within(*(t.reshape(-1 if len(shape) > 3 else 1, heads, *t.shape[-2:]) for t in (q, k, v, out, host)))
    with pytest.raises(rapt.ArgumentError, match="^RANK"):
        sdpa(rand(8), rand(8), rand(8))
    with pytest.raises(rapt.ArgumentError, match="^RANK"):
        sdpa(*(rand(1, 1, 1, 2, 3, 8) for _ in range(3)))


def test_rank_5_that_does_not_fold_is_refused_s3():
    q = rand(2, 3, 4, 6, 8)
    moved = rand(3, 2, 4, 6, 8).transpose(0, 1)
    with pytest.raises(rapt.ArgumentError, match="^RANK: key has 5"):
        sdpa(q, moved, q)
    one = q[:1, :1]
    assert torch.equal(sdpa(q, one, one), sdpa(q, one.expand_as(q).contiguous(), one.expand_as(q).contiguous()))
    mask = torch.rand(2, 3, 1, 6, 6) < 0.7
    out = sdpa(q, q, q, attn_mask=mask)
    both_within(*(t.flatten(0, 1) for t in (q, q, q, out, F.scaled_dot_product_attention(q, q, q, attn_mask=mask))),
                mask=mask.flatten(0, 1).numpy())
    with pytest.raises(rapt.ArgumentError, match="^RANK: attn_mask is of shape") as caught:
        sdpa(q, q, q, attn_mask=mask[0])                        # rank 4: its first axis is the second batch axis
    advice = re.search(r"\.expand(\(.*?\))\.contiguous\(\)", str(caught.value)).group(1)
    copy = mask[0].expand(tuple(map(int, advice.strip("()").split(",")))).contiguous()
    assert torch.equal(sdpa(q, q, q, attn_mask=copy), sdpa(q, q, q, attn_mask=mask[:1].expand(2, 3, 1, 6, 6).contiguous()))
    with pytest.raises(rapt.ArgumentError, match="^RANK: attn_mask has 4"):
        sdpa(q[0, 0], q[0, 0], q[0, 0], attn_mask=mask[0])


def test_strides_are_read_where_they_lie_s9_h2():
    packed = rand(2, 6, 3, 4, 8)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    out = sdpa(q, k, v)
    assert torch.equal(out, sdpa(q.contiguous(), k.contiguous(), v.contiguous()))
    assert out.transpose(1, 2).is_contiguous()                  # dense in query's axis order
    assert out.stride() == F.scaled_dot_product_attention(q, k, v).stride()
    last2 = rand(2, 4, 6, 16)[..., ::2]
    assert torch.equal(sdpa(last2, last2, last2), sdpa(*(last2.contiguous(),) * 3))
    before = packed.clone()
    sdpa(q, k, v)
    assert torch.equal(packed, before)


def test_a_negated_view_is_read_as_its_values(draw):
    neg = torch.complex(rand(1, 2, 4, 8), rand(1, 2, 4, 8)).conj().imag
    assert neg.is_neg()
    assert torch.equal(sdpa(neg, neg, neg), sdpa(*(neg.resolve_neg(),) * 3))


def test_is_causal_is_top_left_h4():
    for sq, skv in ((6, 6), (4, 9), (9, 4)):
        q, k, v = rand(2, 2, sq, 8), rand(2, 2, skv, 8), rand(2, 2, skv, 8)
        out = sdpa(q, k, v, is_causal=True)
        both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v, is_causal=True), causal=True)
        lower = sdpa(q, k, v, causal="br")
        o, _, bound, _ = oracle_np.attention(numpy(q), numpy(k), numpy(v), causal=True, off=skv - sq)
        oracle_np.check(numpy(lower), o, bound)
    with pytest.raises(rapt.ArgumentError, match="^ALIGNMENT"):
        sdpa(q, k, v, is_causal=True, causal="br")


def test_causal_bias_subclasses_name_their_corner_h4():
    q, k, v = rand(1, 2, 4, 8), rand(1, 2, 7, 8), rand(1, 2, 7, 8)
    assert torch.equal(sdpa(q, k, v, attn_mask=causal_upper_left(4, 7)), sdpa(q, k, v, causal="tl"))
    assert torch.equal(sdpa(q, k, v, attn_mask=causal_lower_right(4, 7)), sdpa(q, k, v, causal="br"))


def test_a_bool_mask_is_a_mask_and_a_float_is_a_bias_m8_m9():
    q, k, v = rand(2, 4, 5, 8), rand(2, 4, 6, 8), rand(2, 4, 6, 8)
    for shape in ((5, 6), (1, 6), (4, 5, 6), (2, 1, 1, 6), (2, 4, 5, 6), (1, 1, 5, 1)):
        mask = torch.rand(shape) < 0.7
        out = sdpa(q, k, v, attn_mask=mask)
        both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), mask=mask.numpy())
        bias = torch.where(torch.rand(shape) < 0.1, -torch.inf, rand(*shape))
        out = sdpa(q, k, v, bias)
        both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v, bias), bias=bias.numpy())
    with pytest.raises(rapt.ArgumentError, match="^MASK: attn_mask is int32"):
        sdpa(q, k, v, attn_mask=torch.ones(5, 6, dtype=torch.int32))
    with pytest.raises(rapt.ArgumentError, match="^BIAS: attn_mask is fp64"):
        sdpa(q, k, v, attn_mask=torch.ones(5, 6, dtype=torch.float64))
    with pytest.raises(rapt.ArgumentError, match="^SHAPE: attn_mask"):
        sdpa(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(rapt.ArgumentError, match="given twice"):
        sdpa(q, k, v, attn_mask=torch.ones(5, 6, dtype=torch.bool), mask=torch.ones(5, 6, dtype=torch.bool))


def test_a_fully_masked_row_is_zero_m16():
    q, k, v = rand(1, 2, 3, 8), rand(1, 2, 4, 8), rand(1, 2, 4, 8)
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    out, lse = sdpa(q, k, v, attn_mask=mask, return_lse=True)
    assert not out[:, :, 1].any() and torch.isneginf(lse[:, :, 1]).all()
    assert torch.equal(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, :, 1], out[:, :, 1])


def test_attn_mask_and_is_causal_both_apply_m11():
    q, k, v = rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8)
    mask = torch.rand(6, 6) < 0.7
    out = sdpa(q, k, v, attn_mask=mask, is_causal=True)
    assert own(rapt.last_report())
    joined = F.scaled_dot_product_attention(q, k, v, attn_mask=mask & torch.ones(6, 6, dtype=torch.bool).tril())
    both_within(q, k, v, out, joined, mask=mask.numpy(), causal=True)


def test_enable_gqa_h4():
    q, k, v = rand(1, 6, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8)
    out = sdpa(q, k, v, enable_gqa=True)
    both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    with pytest.raises(rapt.ArgumentError, match="enable_gqa is False") as caught:
        sdpa(q, k, v)
    assert caught.value.code == "HEADS" and "2 heads" in str(caught.value) and "6" in str(caught.value)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, v)
    one = sdpa(q, k[:, :1], v[:, :1])                           # one kv head needs no switch
    both_within(q, k[:, :1], v[:, :1], one, F.scaled_dot_product_attention(q, k[:, :1], v[:, :1]))


def test_broadcast_batches_and_heads_s4():
    q, k, v = rand(3, 4, 5, 8), rand(1, 1, 6, 8), rand(3, 4, 6, 8)
    out = sdpa(q, k, v)
    both_within(q, k.expand(3, 4, 6, 8), v, out, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("scale", [None, 0.5, 0.0, -0.25])
def test_scale_n3(scale):
    q, k, v = rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8)
    out = sdpa(q, k, v, scale=scale)
    both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v, scale=scale), scale=scale)


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32, torch.float64])
def test_dtypes_and_dv_other_than_d_n13(dtype):
    q, k, v = rand(1, 2, 9, 24, dtype=dtype), rand(1, 2, 11, 24, dtype=dtype), rand(1, 2, 11, 40, dtype=dtype)
    out = sdpa(q, k, v)
    assert out.dtype is dtype
    both_within(q, k, v, out, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("shapes", [
    ((2, 2, 0, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
    ((2, 2, 4, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
    ((2, 2, 4, 0), (2, 2, 5, 0), (2, 2, 5, 8)),
    ((0, 2, 4, 8), (0, 2, 5, 8), (0, 2, 5, 8)),
    ((2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 0)),
])
def test_an_operand_without_elements_gives_zeros_h4(shapes):
    q, k, v = (rand(*shape) for shape in shapes)
    for keywords in ({}, {"is_causal": True}, {"scale": 0.5}):
        out = sdpa(q, k, v, **keywords)
        host = F.scaled_dot_product_attention(q, k, v, **keywords)
        assert out.shape == host.shape and not out.any()
        assert q.shape[-1] == 0 or not host.any()               # with D = 0 this host gives the mean of value
    q.requires_grad_()
    out = sdpa(q, k, v)
    assert rapt.last_report().row == "torch.sdpa" and out.requires_grad and not out.any()


def test_keywords_beyond_the_hosts():
    q, k, v = rand(2, 2, 5, 8), rand(2, 2, 9, 8), rand(2, 2, 9, 8)
    lengths = torch.tensor([[4, 1], [9, 1]])[:, 0]              # not dense
    out, lse = sdpa(q, k, v, window=(2, 0), align="br", kv_len=lengths, return_lse=True)
    o, l, bound, bound_lse = oracle_np.attention(numpy(q), numpy(k), numpy(v), window=(2, 0), off=lengths.numpy() - 5, kv_len=lengths)
    oracle_np.check(numpy(out), o, bound)
    oracle_np.check(numpy(lse), l, bound_lse)
    with pytest.raises(rapt.ArgumentError, match="^UNKNOWN_FIELD: attn_bias is not accepted"):     # E6
        sdpa(q, k, v, attn_bias=None)
    for keywords, code in (({"sinks": rand(2, 1)}, "SINK"), ({"slopes": rand(1, 1, 2), "align": "tl"}, "ALIBI")):
        with pytest.raises(rapt.ArgumentError, match=f"^{code}"):
            sdpa(q, k, v, **keywords)
    with pytest.raises(rapt.RefusedError) as caught:
        sdpa(q, k, v, softcap=20.0)
    assert "SOFTCAP" in caught.value.report.codes("torch.sdpa")
    with pytest.raises(TypeError, match="key must be a torch.Tensor"):
        sdpa(q, numpy(k), v)
    with pytest.raises(rapt.ArgumentError, match="^DTYPE: value is complex64"):
        sdpa(q, k, v.to(torch.complex64))
    with pytest.raises(rapt.ArgumentError, match="^DTYPE: query is sparse_coo"):
        sdpa(q.to_sparse(), k, v)


def test_forward_mode_goes_to_the_host_d28():
    q = rand(1, 2, 3, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        try:
            out = sdpa(dual, q, q)
        except NotImplementedError:                             # the host's own limit
            return
        assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None


def test_explain_takes_meta_tensors_a12():
    q = torch.empty(1, 2, 3, 8, device="meta")
    with torch.autocast("cpu"):
        report = rapt.torch.explain(q, q, q)
    assert report.json["casts"] == [] and "DEVICE" in report.codes("cpu.scalar")
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fake = torch.empty(1, 2, 3, 8)
    real = rand(1, 2, 3, 8)
    assert str(rapt.torch.explain(fake, fake, fake)) == str(rapt.torch.explain(real, real, real))
    assert rapt.torch.explain(real, real, real).row == _row(real)


def _row(t):
    sdpa(t, t, t)
    return rapt.last_report().row


def test_scopes_reach_torch_calls_d21():
    q = rand(1, 2, 3, 8)
    with rapt.policy(require="ref"):
        assert _row(q) == "ref"
    with rapt.policy(require="class:host"):
        assert _row(q) == "torch.sdpa"


def test_numpy_calls_do_not_know_the_host_d28(draw):
    (q,) = draw((1, 2, 3, 8))
    report = rapt.explain(q, q, q)
    assert "AVAIL" in report.codes("torch.sdpa")
