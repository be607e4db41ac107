# SPDX-License-Identifier: Apache-2.0
"""rapt.attention and rapt.explain on NumPy arrays. Rule ids are those of docs/contract.md."""

import json
import threading
import time

import ml_dtypes
import numpy as np
import oracle_np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rapt

DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}


def memory(array, order, gap, reverse):
    """The same values over memory of another axis order, with gaps, last logical axis reversed on request (S9)."""
    inverse = np.argsort(order)
    moved = array.transpose(order)
    store = np.zeros([2 * n if gap else n for n in moved.shape], array.dtype)
    view = store[tuple(slice(None, None, 2 if gap else 1) for _ in moved.shape)]
    view[...] = moved
    view = view.transpose(inverse)
    if reverse:
        view = view[..., ::-1].copy()[..., ::-1] if not gap else view
    return view


@st.composite
def calls(draw_):
    rng = np.random.default_rng(draw_(st.integers(0, 2**32 - 1)))
    b, hkv, group = draw_(st.integers(1, 3)), draw_(st.integers(1, 2)), draw_(st.integers(1, 3))
    sq, skv = draw_(st.integers(1, 20)), draw_(st.integers(1, 40))
    d, dv = draw_(st.integers(1, 70)), draw_(st.integers(1, 40))
    name = draw_(st.sampled_from(sorted(DTYPES)))
    order = draw_(st.permutations(range(4)))
    gap, reverse = draw_(st.booleans()), draw_(st.booleans())
    shapes = ((b, hkv * group, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv))
    arrays = [memory(rng.uniform(-2, 2, s).astype(DTYPES[name]), order, gap, reverse) for s in shapes]
    keywords, visibility, oracle = {}, {}, {}
    corner = draw_(st.sampled_from([None, "tl", "br", "off", "offs"]))
    if corner:
        off = {"tl": 0, "br": skv - sq, "off": 5, "offs": rng.integers(-3, skv, b)}[corner]
        keywords["align"] = corner if corner in ("tl", "br") else None
        if corner.startswith("off"):
            keywords["q_offset"] = off
        visibility["off"] = off
        if draw_(st.booleans()):
            keywords["causal"] = visibility["causal"] = True
        if draw_(st.booleans()):
            keywords["window"] = visibility["window"] = (draw_(st.integers(-1, 9)), draw_(st.integers(-1, 9)))
    score = (b, hkv * group, sq, skv)
    some = tuple(n if keep else 1 for n, keep in zip(score, draw_(st.lists(st.booleans(), min_size=4, max_size=4))))
    if draw_(st.booleans()):
        keywords["mask"] = visibility["mask"] = rng.uniform(size=some) < 0.7
    if draw_(st.booleans()):
        kind = np.float64 if name == "fp64" else DTYPES[draw_(st.sampled_from(["fp16", "bf16", "fp32"]))]
        keywords["bias"] = oracle["bias"] = np.where(rng.uniform(size=some) < 0.1, -np.inf, rng.uniform(-3, 3, some)).astype(kind)
    if draw_(st.booleans()):
        keywords["kv_len"] = visibility["kv_len"] = rng.integers(0, skv + 1, b)
        if corner == "br":
            visibility["off"] = keywords["kv_len"] - sq
    if draw_(st.booleans()):
        keywords["scale"] = oracle["scale"] = draw_(st.sampled_from([0.0, -0.5, 0.3]))
    return name, arrays, keywords, visibility, oracle


@settings(max_examples=150, deadline=None)
@given(calls())
def test_any_call_is_within_the_bound_n13_s9_m13(case):
    name, (q, k, v), keywords, visibility, oracle = case
    out, lse = rapt.attention(q, k, v, return_lse=True, **keywords)
    o, l, bound, bound_lse = oracle_np.attention(q, k, v, dtype=name, **oracle, **visibility)
    assert out.dtype == q.dtype and lse.dtype == (np.float64 if name == "fp64" else np.float32)
    oracle_np.check(out, o, bound)
    oracle_np.check(lse, l, bound_lse)
    assert rapt.last_report().status == "OK"


def test_layouts_are_views_and_out_follows_q_s1_h2(draw):
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    plain = rapt.attention(q, k, v)
    for layout, order in (("bshd", (0, 2, 1, 3)), ("sbhd", (2, 0, 1, 3))):
        moved = rapt.attention(*(np.ascontiguousarray(a.transpose(order)) for a in (q, k, v)), layout=layout)
        assert moved.flags.c_contiguous
        assert np.array_equal(moved, plain.transpose(order))
    seen = rapt.attention(*(a.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for a in (q, k, v)))
    assert seen.transpose(0, 2, 1, 3).flags.c_contiguous       # dense in q's axis order
    assert np.array_equal(seen, plain)


def test_rank_3_has_no_batch_axis_s3(draw):
    q, k, v = draw((4, 5, 8), (2, 7, 8), (2, 7, 8))
    out, lse = rapt.attention(q, k, v, return_lse=True)
    full = rapt.attention(q[None], k[None], v[None])
    assert out.shape == (4, 5, 8) and lse.shape == (4, 5) and np.array_equal(out, full[0])
    moved = rapt.attention(*(a.transpose(1, 0, 2) for a in (q, k, v)), layout="shd")
    assert np.array_equal(moved.transpose(1, 0, 2), out)


def test_a_batch_of_one_is_broadcast_without_a_copy_s4(draw):
    q, k, v = draw((3, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    want = rapt.attention(q, np.repeat(k, 3, 0), np.repeat(v, 3, 0))
    assert np.array_equal(rapt.attention(q, k, v), want)


def test_read_only_inputs_and_untouched_ones_s13(draw):
    q, k, v = draw((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    before = [a.copy() for a in (q, k, v)]
    for array in (q, k, v):
        array.flags.writeable = False
    rapt.attention(q, k, v)
    assert all(np.array_equal(a, b) for a, b in zip((q, k, v), before))


def test_strides_that_are_no_whole_elements_are_refused_s12(draw):
    q, k, v = draw((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    raw = np.zeros(1 * 1 * 3 * 18, np.uint8)
    odd = np.ndarray((1, 1, 3, 4), np.float32, raw, 0, (54, 54, 18, 4))
    with pytest.raises(rapt.ArgumentError, match="k is aligned to 2 bytes, 4 are needed") as caught:
        rapt.attention(q, odd, v)
    assert caught.value.code == "MEM_ALIGN" and caught.value.field == "k"


@pytest.mark.parametrize("dtype", [">f4", np.complex64, np.int32, object])
def test_dtypes_that_are_no_attention_dtype_s2(draw, dtype):
    q, k, v = draw((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    with pytest.raises(rapt.ArgumentError, match="^DTYPE: v is ") as caught:
        rapt.attention(q, k, v.astype(dtype))
    assert caught.value.code == "DTYPE"


def test_faults_name_the_argument_e3_e8(draw):
    q, k, v = draw((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    cases = [
        ("RANK", (q[0, 0], k[0, 0], v[0, 0]), {}),
        ("SHAPE", (q, k[..., :4], v), {}),
        ("SHAPE", (q, k, v[:, :, :3]), {}),
        ("HEADS", (q[:, :3], k, v), {}),
        ("ALIGNMENT_UNSET", (q, k, v), {"causal": True}),
        ("ALIGNMENT", (q, k, v), {"causal": "tl", "align": "br"}),
        ("ALIGNMENT", (q, k, v), {"causal": "middle"}),
        ("WINDOW", (q, k, v), {"window": (-2, 0), "align": "tl"}),
        ("WINDOW", (q, k, v), {"window": 3, "align": "tl"}),
        ("MASK", (q, k, v), {"mask": np.ones((3, 5), np.int32)}),
        ("SHAPE", (q, k, v), {"mask": np.ones((3, 4), bool)}),
        ("BIAS", (q, k, v), {"bias": np.zeros((3, 5))}),
        ("SCALE", (q, k, v), {"scale": float("nan")}),
        ("LENGTHS", (q, k, v), {"kv_len": np.array([6])}),
        ("SHAPE", (q, k, v), {"kv_len": np.array([5, 5])}),
        ("DTYPE", (q, k, v), {"kv_len": np.array([5.0])}),
        ("AUTOCAST_DTYPE", (q, k, v), {"autocast": "fp64"}),
        ("UNKNOWN_NAME", (q, k, v), {"require": "nobody"}),
        ("UNKNOWN_FIELD", (q, k, v), {"determinism": "always"}),
        ("UNKNOWN_FIELD", (q, k, v), {"layout": "dshb"}),
        ("UNKNOWN_FIELD", (q, k, v), {"verify": 2}),
        ("UNKNOWN_FIELD", (q, k, v), {"dropout_p": 0.5}),
    ]
    for code, arrays, keywords in cases:
        with pytest.raises(rapt.ArgumentError) as caught:
            rapt.attention(*arrays, **keywords)
        assert caught.value.code == code, (code, str(caught.value))
        assert str(caught.value).startswith(code + ": ")
    assert "dropout_p is not accepted" in str(caught.value)


def test_a_fault_of_the_core_carries_its_report_e8(draw):
    q, k, v = draw((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(rapt.ArgumentError) as caught:
        rapt.attention(q, k, v, causal=True)
    assert caught.value.report.status == "ARG"
    assert caught.value.report.json["error"]["code"] == "ALIGNMENT_UNSET"
    assert rapt.last_report() is caught.value.report


def test_only_arrays(draw):
    (q,) = draw((1, 1, 3, 4))
    with pytest.raises(TypeError, match="NumPy arrays"):
        rapt.attention(q, q.tolist(), q)
    with pytest.raises(TypeError, match="mask must be a NumPy array"):
        rapt.attention(q, q, q, mask=[[True]])


def test_arrays_that_would_be_misread_are_refused_by_name_d12(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    masked, mask = np.ma.array(k, mask=k > 0), np.ma.array(np.ones((3, 5), bool))
    for arrays, keywords, name in (((q, masked, v), {}, "k"), ((q, k, v), {"mask": mask}, "mask"),
                                   ((q, k, v), {"kv_len": np.ma.array([5])}, "kv_len")):
        with pytest.raises(rapt.ArgumentError, match=f"{name} is a numpy.ma.MaskedArray; a plain array") as caught:
            rapt.attention(*arrays, **keywords)
        assert caught.value.field == name
    swapped = q.astype(q.dtype.newbyteorder())
    with pytest.raises(rapt.ArgumentError, match="^DTYPE: q is float32 in the byte order of another machine"):
        rapt.attention(swapped, k, v)
    rapt.attention(swapped.astype(swapped.dtype.newbyteorder("=")), k, v)           # as the message advises


@pytest.mark.parametrize("name, value, want", [
    ("causal", 1, "True, False"), ("causal", "top-left", '"off:N"'), ("align", True, '"off:N"'),
    ("align", "off:99999999999999999999", "64 bits"), ("q_offset", 1.5, "an integer"), ("q_offset", 2**70, "an integer"),
    ("window", (1.5, 3), "two integers"), ("window", (1, 2, 3), "two integers"), ("window", 3, "two integers"),
    ("window", (2**70, 0), "two integers"), ("scale", "0.5", "a number"), ("scale", True, "a number"),
    ("strict", "no", "True or False"), ("return_lse", 1, "True or False"), ("mixed_kv", "yes", "True or False"),
    ("memory_limit", 1e9, "a whole number of bytes"), ("memory_limit", -1, "a whole number of bytes"),
    ("memory_limit", 2**64, "a whole number of bytes"), ("verify", 1.5, "a number of rows"), ("verify", -1, "a number"),
    ("autocast", np.array([1, 2]), '"bf16"'), ("determinism", ["run"], "threads"), ("layout", ["b"], "bhsd"),
])
def test_a_wrong_argument_is_named_with_its_value_e3(draw, name, value, want):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    with pytest.raises(rapt.ArgumentError) as caught:
        rapt.attention(q, k, v, **{name: value})
    assert name in caught.value.field and want in caught.value.want and name in str(caught.value)
    assert "bit" not in str(caught.value).replace("64 bits", "")                    # no words of the C interface


def test_switches_of_numpy_are_switches(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    assert np.array_equal(rapt.attention(q, k, v, causal=np.True_), rapt.attention(q, k, v, causal=True))
    assert np.array_equal(rapt.attention(q, k, v, causal=np.False_), rapt.attention(q, k, v))
    assert len(rapt.attention(q, k, v, return_lse=np.True_, strict=np.False_)) == 2


def test_two_positions_are_named_with_their_values_m2(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(rapt.ArgumentError, match="^ALIGNMENT: causal='tl' and align='br' is more than one position"):
        rapt.attention(q, k, v, causal="tl", align="br")
    same = rapt.attention(q, k, v, causal="off:2", align="off:2", q_offset=2)
    assert np.array_equal(same, rapt.attention(q, k, v, causal="br"))


@pytest.mark.parametrize("given, meant", [
    ("casual", "causal"), ("windows", "window"), ("attn_mask", "mask"), ("kv_lens", "kv_len"), ("dropout_p", "dropout"),
])
def test_unknown_keywords_are_answered_with_the_likely_one_e6(draw, given, meant):
    (q,) = draw((1, 2, 3, 8))
    for call in (rapt.attention, rapt.explain):
        with pytest.raises(rapt.ArgumentError, match=f"{given} is not accepted; did you mean .*{meant}"):
            call(q, q, q, **{given: 1})


def test_mixed_dtypes_are_refused_with_all_three_a7(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    half = v.astype(ml_dtypes.bfloat16)
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX") as caught:
        rapt.attention(q, k, half)
    assert caught.value.got.count("fp32") >= 2 and "bf16" in caught.value.got
    out = rapt.attention(q, k, half, autocast="bf16")
    cast = [a.astype(ml_dtypes.bfloat16) for a in (q, k)]
    assert out.dtype == ml_dtypes.bfloat16
    assert np.array_equal(out.view(np.uint16), rapt.attention(*cast, half).view(np.uint16))        # A9


def test_mixed_kv_s2(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    halves = [a.astype(np.float16) for a in (k, v)]
    out = rapt.attention(q, *halves, mixed_kv=True)
    o, _, bound, _ = oracle_np.attention(q, *halves)
    assert out.dtype == np.float32
    oracle_np.check(out, o, bound)


@pytest.mark.parametrize("keywords, code", [
    ({"softcap": 30.0}, "SOFTCAP"),
    ({"dropout": 0.5}, "DROPOUT"),
    ({"sinks": np.zeros(4, np.float32)}, "SINK"),
    ({"slopes": np.ones(4, np.float32), "align": "tl"}, "ALIBI"),
])
def test_what_no_row_serves_is_refused_with_a_reason_d12_e8(draw, keywords, code):
    q, k, v = draw((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(rapt.RefusedError) as caught:
        rapt.attention(q, k, v, **keywords)
    assert code in caught.value.report.codes("ref")
    assert str(caught.value) == str(caught.value.report)
    assert rapt.last_report() is caught.value.report


def test_packed_is_refused_with_a_reason_m17(draw):
    q, k, v = draw((5, 2, 8), (5, 2, 8), (5, 2, 8))
    cu = np.array([0, 2, 5], np.int32)
    with pytest.raises(rapt.RefusedError) as caught:
        rapt.attention(q, k, v, layout="shd", cu_q=cu, cu_k=cu)
    assert caught.value.report.codes("ref") == ["PACKED"]


def test_values_without_effect_disqualify_nothing_d6(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    plain = rapt.attention(q, k, v)
    same = rapt.attention(q, k, v, softcap=0, dropout=0, seed=3, offset=1, window=(-1, -1), mask=None, verify=0)
    assert np.array_equal(plain, same)


def test_explain_runs_nothing_and_says_the_same_d1_d5(draw):
    from rapt import _numpy

    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    rapt.attention(q, k, v, causal="br")
    ran = rapt.last_report()
    before = _numpy.context.entered()
    told = rapt.explain(q, k, v, causal="br")
    assert _numpy.context.entered() == before
    assert rapt.last_report() is ran
    assert (told.row, told.kernel, told.status) == (ran.row, ran.kernel, "OK")
    rapt.attention(q, k, v, causal="br")
    after = _numpy.context.entered()
    assert after[ran.row] == before[ran.row] + 1                # R1


def test_reports_are_text_and_json_r2_r6(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    one, two = rapt.explain(q, k, v), rapt.explain(q, k, v)
    assert one.json_text == two.json_text and str(one) == str(two)
    assert json.loads(one.json_text) == one.json and one.json["schema"] == "rapt.decision/1"
    assert one.row in str(one)
    chosen = [row for row in one.rows if row.row == one.row]
    assert len(chosen) == 1 and not chosen[0].reasons
    assert "DEVICE" in one.codes("fa2")
    refused = rapt.explain(q, k, v, require="fa2")
    assert (refused.status, refused.row, refused.kernel) == ("REFUSED", None, None)
    assert "AVAIL" in refused.codes("fa2")


def test_require_ref_names_ref_d8(draw):
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    out = rapt.attention(q, k, v, require=["ref"])
    o, _, bound, _ = oracle_np.attention(q, k, v)
    assert rapt.last_report().row == "ref"
    oracle_np.check(out, o, bound)


def test_empty_arrays_s6_s7(draw):
    q, k, v = draw((2, 2, 3, 8), (2, 2, 0, 8), (2, 2, 0, 8))
    out, lse = rapt.attention(q, k, v, return_lse=True)
    assert not out.any() and np.isneginf(lse).all()             # M16
    assert rapt.attention(q[:0], k[:0], v[:0]).shape == (0, 2, 3, 8)
    with pytest.raises(rapt.ArgumentError, match="^SCALE"):
        rapt.attention(q[..., :0], k[..., :0], v)


def test_other_threads_run_while_a_call_does_d22(rng):
    q, k, v = (rng.uniform(-1, 1, (1, 4, 700, 64)).astype(np.float32) for _ in range(3))
    done, ticks = threading.Event(), 0

    def call():
        rapt.attention(q, k, v, require="ref")
        done.set()

    thread = threading.Thread(target=call)
    start = time.monotonic()
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    taken = time.monotonic() - start
    assert ticks > 3, f"{ticks} ticks in {taken} s"


def test_the_line_of_a_site_r4():
    line = rapt.report_line("fp32 b1 h8 q128 k128 d64 require=cpu", dtypes="fp16,bf16,fp32", devices="cpu")
    assert line == "cpu"
    with pytest.raises(rapt.ArgumentError, match="^SYNTAX"):
        rapt.report_line("fp32 b1 h8 q4 k4 d8 window=1")
