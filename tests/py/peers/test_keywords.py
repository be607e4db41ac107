# SPDX-License-Identifier: Apache-2.0
"""Every keyword that F.scaled_dot_product_attention or rapt.torch.sdpa can send, each honoured or refused by name,
eager and compiled (contract D12, E6). A keyword without a line here fails."""

import inspect

import pytest
import torch
from peers_common import outcome, own, rand
from torch.nn import functional as F

import rapt
import rapt.torch

sdpa = rapt.torch.sdpa
Q, K, V = rand(2, 4, 5, 8), rand(2, 4, 7, 8), rand(2, 4, 7, 8)
MASK, BIAS = torch.arange(35).reshape(5, 7) % 4 > 0, torch.arange(35.0).reshape(5, 7) / 20
LENGTHS = torch.tensor([[4], [7]])
DISTANCE = torch.arange(7) - torch.arange(5)[:, None]           # of a key from a query row, corner at the top left


def by_hand(seen=None, bias=None, scale=8 ** -0.5, k=K, v=V):
    """(out, lse) in fp64."""
    scores = Q.double() @ k.double().repeat_interleave(4 // k.shape[1], 1).mT * scale
    scores = scores if bias is None else scores + bias
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, -1) @ v.double().repeat_interleave(4 // v.shape[1], 1), scores.logsumexp(-1)


# name: (the keywords of a call, what by_hand() is told). Without the keyword the result would be another.
VALUES = {
    "attn_mask": ({"attn_mask": MASK}, {"seen": MASK}),
    "mask": ({"mask": MASK}, {"seen": MASK}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "is_causal": ({"is_causal": True}, {"seen": DISTANCE <= 0}),
    "causal": ({"causal": "br"}, {"seen": DISTANCE <= 2}),
    "align": ({"window": (1, 0), "align": "br"}, {"seen": (DISTANCE >= 1) & (DISTANCE <= 2)}),
    "window": ({"window": (1, 2), "align": "tl"}, {"seen": (DISTANCE >= -1) & (DISTANCE <= 2)}),
    "q_offset": ({"causal": True, "q_offset": 1}, {"seen": DISTANCE <= 1}),
    "kv_len": ({"kv_len": LENGTHS[:, 0]}, {"seen": torch.arange(7) < LENGTHS[:, :, None, None]}),
    "scale": ({"scale": -0.3}, {"scale": -0.3}),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_keyword_that_changes_values_is_honoured(name):
    keywords, told = VALUES[name]
    want, _ = by_hand(**told)
    for function in (sdpa, torch.compile(sdpa, fullgraph=True, backend="aot_eager")):
        out = function(Q, K, V, **keywords)
        assert own(rapt.last_report().row)
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(by_hand()[0], want, atol=1e-3)    # the fault, a keyword that is dropped, would be told
    if name in inspect.signature(sdpa).parameters and name in ("attn_mask", "is_causal", "scale"):
        with rapt.torch.install():
            out = F.scaled_dot_product_attention(Q, K, V, **keywords)
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)


def test_grouped_heads_and_mixed_dtypes_are_honoured():
    k, v = K[:, :2], V[:, :2]
    want = by_hand(k=k, v=v)[0]
    for function in (sdpa, F.scaled_dot_product_attention):
        with rapt.torch.install():
            torch.testing.assert_close(function(Q, k, v, enable_gqa=True).double(), want, atol=1e-5, rtol=1e-5)
    with pytest.raises(rapt.ArgumentError, match="^HEADS: .*enable_gqa is False"):
        sdpa(Q, k, v)
    half = K.bfloat16(), V.bfloat16()                           # exact: 1/128 steps
    torch.testing.assert_close(sdpa(Q, *half, mixed_kv=True).double(), by_hand()[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX"):
        sdpa(Q, *half)


def test_lse_and_query_lengths_are_honoured():
    out, lse = sdpa(Q, K, V, mask=MASK, return_lse=True)
    torch.testing.assert_close(lse.double(), by_hand(MASK)[1], atol=1e-5, rtol=1e-5)
    out = sdpa(Q, K, V, q_len=torch.tensor([3, 5]))
    want = by_hand()[0]
    torch.testing.assert_close(out[0, :, :3].double(), want[0, :, :3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[1].double(), want[1], atol=1e-5, rtol=1e-5)
    assert not out[0, :, 3:].any()                              # rows past the length


@pytest.mark.parametrize("name", ["dropout_p", "dropout"])
def test_dropout_is_the_hosts(name):
    torch.manual_seed(2)
    want = F.scaled_dot_product_attention(Q, K, V, dropout_p=0.4)
    torch.manual_seed(2)
    assert torch.equal(sdpa(Q, K, V, **{name: 0.4}), want) and rapt.last_report().row == "torch.sdpa"
    torch.manual_seed(2)
    with rapt.torch.install():
        assert torch.equal(F.scaled_dot_product_attention(Q, K, V, dropout_p=0.4), want)


# name: (keywords, what the report then is: a predicate)
POLICIES = {
    "require": ({"require": "ref"}, lambda r: r.row == "ref"), "prefer": ({"prefer": "ref"}, lambda r: r.row == "ref"),
    "forbid": ({"forbid": "cpu"}, lambda r: not r.row.startswith("cpu.")),
    "memory_limit": ({"memory_limit": 3}, lambda r: r.json["policy"]["memory_limit"] == 3),
    "strict": ({"strict": True}, lambda r: "strict" in r.json["problem"]),
    "determinism": ({"determinism": "batch"}, lambda r: "batch" in r.json["problem"]),
    "autocast": ({"autocast": "bf16"}, lambda r: {cast["to"] for cast in r.json["casts"]} == {"bf16"}),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_keyword_that_changes_the_choice_is_honoured(name):
    keywords, holds = POLICIES[name]
    assert not holds(rapt.torch.explain(Q, K, V)) and holds(rapt.torch.explain(Q, K, V, **keywords))
    for function in (sdpa, torch.compile(sdpa, fullgraph=True, backend="aot_eager")):
        out, error = outcome(function, Q, K, V, **keywords)
        assert holds(rapt.last_report())
        assert error is None or "MEMORY" in str(error) and rapt.last_report().status == "REFUSED"
        assert error is not None or out.dtype is (torch.bfloat16 if name == "autocast" else torch.float32)


# name: (keywords, kind of exception, its words)
REFUSED = {
    "softcap": ({"softcap": 5.0}, rapt.RefusedError, "SOFTCAP"),
    "sinks": ({"sinks": rand(4)}, rapt.RefusedError, "SINK"),
    "slopes": ({"slopes": rand(4).abs(), "align": "tl"}, rapt.RefusedError, "ALIBI"),
    "verify": ({"verify": 2}, rapt.ArgumentError, "verify"),
    "cu_q": ({"cu_q": torch.tensor([0, 5])}, (rapt.ArgumentError, rapt.RefusedError), "cu_|PACKED"),
    "cu_k": ({"cu_k": torch.tensor([0, 7])}, (rapt.ArgumentError, rapt.RefusedError), "cu_|PACKED"),
    "seed": ({"seed": 3, "dropout_p": 0.5}, rapt.ArgumentError, "seed"),
    "offset": ({"offset": 3, "dropout_p": 0.5}, rapt.ArgumentError, "offset"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_keyword_that_is_not_served_is_refused_by_name_d12(name):
    keywords, kind, words = REFUSED[name]
    for function in (sdpa, torch.compile(sdpa, backend="aot_eager")):
        with pytest.raises(kind, match=words):
            function(Q, K, V, **keywords)


def test_questions_take_a_device_and_facts_d20():
    assert "DEVICE" in rapt.torch.explain(Q, K, V, device="cuda").codes("cpu.scalar")
    assert rapt.torch.explain(Q, K, V, facts="cuda cc=9.0").json["hypothetical"] is True
    for name in ("device", "facts"):
        with pytest.raises(rapt.ArgumentError, match=f"^UNKNOWN_FIELD: {name} is not accepted"):
            sdpa(Q, K, V, **{name: None})
    for name in ("address", "attn_bias", "is_casual"):
        for function in (sdpa, torch.compile(sdpa, backend="aot_eager")):
            with pytest.raises(rapt.ArgumentError, match=f"^UNKNOWN_FIELD: {name} is not accepted"):
                function(Q, K, V, **{name: None})


def test_no_keyword_is_without_a_line_e6():
    operands = {"query", "key", "value"}
    ours = set(inspect.signature(sdpa).parameters) - operands
    tested = {*VALUES, *POLICIES, *REFUSED, "enable_gqa", "mixed_kv", "return_lse", "q_len", "dropout", "dropout_p"}
    assert ours == tested
    assert set(inspect.signature(rapt.torch.explain).parameters) - operands == tested | {"device", "facts"}
    hosts = {a.name for a in torch.ops.aten.scaled_dot_product_attention.default._schema.arguments}
    assert hosts == {*operands, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"} <= tested | operands
    with pytest.raises(rapt.ArgumentError, match="^UNKNOWN_FIELD: is_casual is not accepted; did you mean is_causal"):
        sdpa(Q, K, V, is_casual=True)
    with pytest.raises(TypeError):
        F.scaled_dot_product_attention(Q, K, V, is_casual=True)


WRONG = [{"is_causal": 1}, {"enable_gqa": "no"}, {"strict": "no"}, {"return_lse": 1}, {"mixed_kv": 0.0},
         {"scale": "0.5"}, {"scale": True}, {"window": (1.0, 2), "align": "tl"}, {"window": 3, "align": "tl"},
         {"window": (1, 2, 3), "align": "tl"},
         {"causal": 3}, {"causal": "off:x"}, {"causal": "zz"}, {"align": 1}, {"q_offset": 1.5, "causal": True},
         {"determinism": "never"}, {"autocast": "int8"}, {"memory_limit": "all"}, {"memory_limit": -1},
         {"dropout_p": "x"},
         {"dropout_p": True}, {"prefer": 3}, {"is_causal": True, "causal": "br"}, {"attn_mask": MASK, "mask": MASK}]


@pytest.mark.parametrize("keywords", WRONG, ids=str)
def test_a_wrong_value_is_refused_compiled_as_it_is_eager_e6(keywords):
    (_, eager), (_, graph) = (outcome(f, Q, K, V, **keywords) for f in (sdpa, torch.compile(sdpa, backend="aot_eager")))
    assert isinstance(eager, rapt.ArgumentError) and type(graph) is type(eager) and str(graph) == str(eager)
