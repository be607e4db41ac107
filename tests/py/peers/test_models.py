# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch and small models of transformers with rapt installed: the numbers of before, and the routes that
are documented (contract section 11)."""

import pytest
import torch
import transformers
from peers_common import counted, rand

import rapt.torch


def close(got, want, tolerance=1e-5):
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.dtype is b.dtype
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)


# ---- Layers of PyTorch ----

PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
CAUSAL = torch.ones(5, 5).triu(1).bool()


def multihead(**keywords):
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    return layer, lambda x: layer(x, x, x, **keywords)[0]


def encoder(layers=1, norm_first=False, **keywords):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=norm_first)
    stack = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return stack, lambda x: stack(x, **keywords)


def decoder():
    layer = torch.nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True)
    return layer, lambda x: layer(x, x.flip(1), tgt_mask=CAUSAL, tgt_is_causal=True)


# (how it is made, attention calls of one pass, how many of them inference makes beside its fast path)
LAYERS = {
    "attention": (lambda: multihead(need_weights=False), 1, 0),
    "attention, padded": (lambda: multihead(need_weights=False, key_padding_mask=PADDED), 1, 0),
    "attention, causal": (lambda: multihead(need_weights=False, attn_mask=CAUSAL, is_causal=True), 1, 0),
    "attention with weights": (lambda: multihead(need_weights=True), 0, 0),
    "encoder": (encoder, 1, 0), "encoder, norm first": (lambda: encoder(norm_first=True), 1, 0),
    "encoder of two, padded": (lambda: encoder(2, src_key_padding_mask=PADDED), 2, 0),
    "decoder": (decoder, 2, 1),
}


def passed(make, train, fast=True):
    """(outputs, gradients of the weights), runs of our rows, runs of the host's, of one pass of a fresh layer."""
    torch.manual_seed(3)
    module, call = make()
    module.train(train)
    x = rand(2, 5, 16)

    def once():
        with torch.set_grad_enabled(train):
            out = call(x)
        if not train:
            return [out]
        out.square().sum().backward()
        return [out.detach(), *(p.grad for p in module.parameters())]

    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        return counted(once)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_the_same_numbers_by_the_documented_route_d28(name):
    make, calls, beside = LAYERS[name]
    for train, fast in ((True, True), (False, True), (False, False)):
        want = passed(make, train, fast)[0]
        with rapt.torch.install():
            got, ours, hosts = passed(make, train, fast)
        close(got, want)
        expected = (0, calls) if train else (beside, 0) if fast else (calls, 0)
        assert (ours, hosts) == expected, (train, fast)


# ---- Models of transformers ----

def tiny(kind):
    torch.manual_seed(7)
    common = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "vocab_size": 61, "max_position_embeddings": 32, "attn_implementation": "sdpa"}
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **common))
    return transformers.BertForMaskedLM(transformers.BertConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **common))


def inputs(padded):
    ids = torch.arange(18).reshape(2, 9) * 7 % 61
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :4] = 0                                         # left padding
    return {"input_ids": ids, "attention_mask": mask}


def logits(model, given):
    with torch.no_grad():
        return model(**given).logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_small_models_give_the_logits_of_before(kind, padded):
    model, given = tiny(kind).eval(), inputs(padded)
    rows = given["attention_mask"].bool()                       # what padding gives is nobody's
    want = logits(model, given)
    with rapt.torch.install():
        got, ours, hosts = counted(logits, model, given)
        assert (ours, hosts) == (2, 0)
        close([got[rows]], [want[rows]])
        with torch.autocast("cpu"):
            half, ours, hosts = counted(logits, model, given)
        assert (ours, hosts) == (2, 0)
    with torch.autocast("cpu"):
        close([half[rows]], [logits(model, given)[rows]], 3e-2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_small_models_compiled_give_the_logits_of_before(kind):
    model, given = tiny(kind).eval(), inputs(kind == "bert")
    rows = given["attention_mask"].bool()
    want = logits(model, given)
    with rapt.torch.install():
        got, ours, hosts = counted(logits, torch.compile(model, fullgraph=True, backend="aot_eager"), given)
    assert (ours, hosts) == (2, 0)
    close([got[rows]], [want[rows]])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_small_models_train_as_before_b8(kind):
    def step():
        model = tiny(kind).train()
        given = inputs(False)
        model(**given, labels=given["input_ids"]).loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    want = step()
    with rapt.torch.install():
        got, ours, hosts = counted(step)
    assert (ours, hosts) == (0, 2) and len(got) > 10
    assert all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.filterwarnings("ignore")
def test_a_small_llama_writes_the_same_tokens():
    model, given = tiny("llama").eval(), inputs(True)
    want = model.generate(**given, max_new_tokens=6, do_sample=False, pad_token_id=0)
    with rapt.torch.install():
        got, ours, hosts = counted(model.generate, **given, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(got, want) and ours == 12 and hosts == 0


@pytest.mark.filterwarnings("ignore")
def test_the_comparison_of_models_tells_a_lost_mask():
    """The fault put back: padding that is not masked."""
    model, given = tiny("llama").eval(), inputs(True)
    rows = given["attention_mask"].bool()
    want = logits(model, given)
    with pytest.raises(AssertionError):
        close([logits(model, {"input_ids": given["input_ids"]})[rows]], [want[rows]])
