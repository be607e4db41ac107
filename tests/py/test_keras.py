# SPDX-License-Identifier: Apache-2.0
"""rapt.keras: Keras' dot_product_attention through rapt, against an evaluation of its own (H1, H7, D11)."""

import inspect
import itertools
import os
import pickle
import re

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")
os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")

import rapt  # noqa: E402
import rapt.keras  # noqa: E402
from keras import layers  # noqa: E402

nn = keras.src.backend.nn
STOCK = nn.dot_product_attention


@pytest.fixture(autouse=True)
def seed(probe_untraced):
    keras.utils.set_random_seed(5)
    rapt._report.set_last(None)
    yield
    assert nn.dot_product_attention is STOCK, "a test left rapt installed"


@pytest.fixture
def installed():
    with rapt.keras.install() as handle:
        yield handle


def tensors(q=(2, 5, 4, 8), kv=None, dtype=torch.float32):
    kv = kv or q
    return [torch.randn(*shape).to(dtype) for shape in (q, kv, kv)]


def expected(q, k, v, *, bias=None, mask=None, scale=None, is_causal=False, dtype="fp32"):
    """(result, bound) as [B,T,N,H]."""
    q, k, v = (t.detach().float().numpy().swapaxes(1, 2) for t in (q, k, v))
    bias = None if bias is None else bias.detach().float().numpy()
    mask = None if mask is None else mask.numpy()
    o, _, bound, _ = oracle_np.attention(q, k, v, dtype=dtype, bias=bias, scale=scale, mask=mask, causal=is_causal)
    return o.swapaxes(1, 2), bound.swapaxes(1, 2)


def check(out, *args, **keywords):
    want, bound = expected(*args, **keywords)
    oracle_np.check(out.detach().float().numpy(), want, bound)


def ran():
    report = rapt.last_report()
    return report is not None and report.row


# ---- Numbers (H1) ----

@pytest.mark.parametrize("flash", [None, True, False])
@pytest.mark.parametrize("with_mask, is_causal", itertools.product([False, True], [False, True]))
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_combination_of_arguments_is_honoured_h1(installed, with_bias, scale, with_mask, is_causal, flash):
    q, k, v = tensors((2, 3, 4, 8))
    bias = torch.randn(2, 4, 3, 3) if with_bias else None
    mask = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=torch.bool).expand(2, 4, 3, 3) if with_mask else None
    out = keras.ops.dot_product_attention(q, k, v, bias=bias, mask=mask, scale=scale, is_causal=is_causal,
                                          flash_attention=flash)
    check(out, q, k, v, bias=bias, mask=mask, scale=scale, is_causal=is_causal)
    assert ran()


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 16])
def test_grouped_heads_stay_grouped(installed, kv_heads):
    q, k, v = tensors((2, 6, 16, 32), (2, 7, kv_heads, 32))
    check(keras.ops.dot_product_attention(q, k, v), q, k, v)
    assert f"h16{f'/{kv_heads}' if kv_heads != 16 else ''} " in rapt.last_report().json["problem"]


@pytest.mark.parametrize("shape", [(1, 1, 1, 7), (2, 1, 5, 7), (2, 4, 1, 1), (5, 7), (7,)])
def test_masks_and_biases_broadcast_from_the_right_m12(installed, shape):
    q, k, v = tensors((2, 5, 4, 8), (2, 7, 4, 8))
    mask, bias = torch.rand(shape) < 0.7, torch.randn(shape)
    for given in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        check(keras.ops.dot_product_attention(q, k, v, **given), q, k, v, **given)


def test_causal_means_the_top_left_corner(installed):
    q, k, v = tensors((1, 3, 2, 8), (1, 6, 2, 8))
    check(keras.ops.dot_product_attention(q, k, v, is_causal=True), q, k, v, is_causal=True)


@pytest.mark.parametrize("dtype, name", [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_half_types(installed, dtype, name):
    q, k, v = tensors((2, 9, 2, 16), dtype=dtype)
    out = keras.ops.dot_product_attention(q, k, v)
    assert out.dtype == dtype
    check(out, q, k, v, dtype=name)


def test_arrays_lists_and_variables_are_taken_as_keras_takes_them(installed):
    q, k, v = (t.numpy().astype(np.float32) for t in tensors())
    out = keras.ops.dot_product_attention(q, k.tolist(), keras.Variable(v), mask=np.ones((5, 5), bool))
    check(out, *map(torch.from_numpy, (q, k, v)))


def test_nothing_is_copied_and_the_result_is_dense_as_keras_has_it_h2(installed, monkeypatch):
    from rapt import _keras_hook
    seen, sdpa = [], _keras_hook.binding.sdpa
    monkeypatch.setattr(_keras_hook.binding, "sdpa", lambda *a, **k: seen.append(a) or sdpa(*a, **k))
    q, k, v = tensors((2, 5, 8, 8), (2, 5, 2, 8))
    mask = torch.ones(5, 5, dtype=torch.bool)
    out = keras.ops.dot_product_attention(q, k, v, mask=mask)
    assert [t.data_ptr() for t in seen[0][:4]] == [t.data_ptr() for t in (q, k, v, mask)]
    assert out.is_contiguous() and out.shape == q.shape
    assert not rapt.last_report().json["copies"]


# ---- Dtypes (H7) ----

def test_operands_are_promoted_to_the_common_dtype_first_h7(installed):
    q, k, v = tensors()
    out = keras.ops.dot_product_attention(q, k.bfloat16(), v)
    assert out.dtype == torch.float32
    check(out, q, k.bfloat16(), v)
    out = keras.ops.dot_product_attention(q.half(), k.bfloat16(), v.half())
    assert out.dtype == torch.float32                           # Keras' rule for the two half types
    assert keras.ops.dot_product_attention(q.double(), k, v).dtype == torch.float32     # and for fp64


def test_then_autocast_applies_h7(installed):
    q, k, v = tensors((2, 9, 2, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        out = keras.ops.dot_product_attention(q, k.bfloat16(), v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, keras.ops.dot_product_attention(*(t.bfloat16() for t in (q, k, v))))


def test_a_bias_stays_finite_whatever_its_dtype_m10(installed):
    q, k, v = tensors((1, 2, 1, 8), dtype=torch.float16)
    low = np.full((2, 2), np.finfo(np.float64).min)
    for bias in (low, np.full((2, 2), np.finfo(np.float32).min, np.float32)):
        out = keras.ops.dot_product_attention(q, k, v, bias=bias)
        mean = v.float().mean(1, keepdim=True).expand_as(v)
        assert torch.allclose(out.float(), mean, atol=2e-3)     # lowest everywhere: the mean, not a masked row


@pytest.mark.parametrize("policy, dtype", [("mixed_bfloat16", torch.bfloat16), ("mixed_float16", torch.float16),
                                           ("float16", torch.float16), ("float32", torch.float32)])
def test_dtype_policies(installed, policy, dtype):
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=8, dtype=policy)
    x = torch.randn(2, 5, 16)
    layer.build(x.shape, x.shape)
    with torch.no_grad():
        out = layer(x, x)
    assert out.dtype == dtype and rapt.last_report().json["problem"].startswith({2: "fp16", 4: "fp32"}.get(
        dtype.itemsize if dtype != torch.bfloat16 else 0, "bf16"))


# ---- Refused by name (H7, D12) ----

Q3 = torch.zeros(2, 5, 8)
REFUSED = {
    "float mask": ({"mask": torch.zeros(5, 5)}, "DTYPE", "mask", "bias"),
    "int mask": ({"mask": np.ones((5, 5), np.int32)}, "DTYPE", "mask", "bool"),
    "bool bias": ({"bias": torch.ones(5, 5, dtype=torch.bool)}, "DTYPE", "bias", "mask"),
    "int bias": ({"bias": torch.ones(5, 5, dtype=torch.int32)}, "DTYPE", "bias", "floating"),
    "mask shape": ({"mask": torch.ones(3, 5, dtype=torch.bool)}, "SHAPE", "mask", "5"),
    "bias shape": ({"bias": torch.zeros(5, 6)}, "SHAPE", "bias", "5"),
    "flash": ({"flash_attention": "yes"}, "UNKNOWN_FIELD", "flash_attention", "None"),
    "causal": ({"is_causal": 1}, "UNKNOWN_FIELD", "is_causal", "True or False"),
    "scale": ({"scale": "1"}, "UNKNOWN_FIELD", "scale", "number"),
    "scale nan": ({"scale": float("nan")}, "SCALE", "scale", ""),
    "cap": ({"attn_logits_soft_cap": -1.0}, "SOFTCAP", "attn_logits_soft_cap", "finite"),
    "cap inf": ({"attn_logits_soft_cap": float("inf")}, "SOFTCAP", "attn_logits_soft_cap", "finite"),
    "rank": ({"query": Q3}, "RANK", "query", "(B, T, N, H)"),
    "rank of key": ({"key": Q3}, "RANK", "key", "(B, T, N, H)"),
    "heads": ({"key": torch.zeros(2, 5, 3, 8), "value": torch.zeros(2, 5, 3, 8)}, "HEADS", "", "4"),
    "head width": ({"key": torch.zeros(2, 5, 4, 6)}, "SHAPE", "key", "8"),
    "keys": ({"value": torch.zeros(2, 4, 4, 8)}, "SHAPE", "value", "5"),
    "integers": ({n: torch.zeros(2, 5, 4, 8, dtype=torch.int32) for n in ("query", "key", "value")}, "DTYPE", "query", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_by_name(installed, case):
    given, code, field, words = REFUSED[case]
    arguments = {**dict(zip(("query", "key", "value"), tensors())), **given}
    with pytest.raises(rapt.ArgumentError) as error:
        nn.dot_product_attention(**arguments)
    assert error.value.code == code and field in error.value.field and words in str(error.value), str(error.value)
    check(nn.dot_product_attention(*(t := tensors())), *t)      # Keras is as usable as before


def test_the_hook_has_the_signature_of_what_it_replaces(installed):
    assert inspect.signature(nn.dot_product_attention) == inspect.signature(STOCK)
    with pytest.raises(TypeError, match="dropout"):
        nn.dot_product_attention(*tensors(), dropout=0.5)


# ---- Rows without a key (M16): the documented difference ----

def test_a_fully_masked_row_is_zero_where_keras_gives_the_mean_m16(installed):
    q, k, v = tensors()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    out, stock = keras.ops.dot_product_attention(q, k, v, mask=mask), STOCK(q, k, v, mask=mask)
    assert torch.equal(out[:, 2], torch.zeros_like(out[:, 2]))
    assert torch.allclose(stock[:, 2], v.mean(1), atol=1e-5)
    assert torch.allclose(out[:, [0, 1, 3, 4]], stock[:, [0, 1, 3, 4]], atol=1e-5)


# ---- flash_attention (D11) ----

SENTENCE = "Flash attention is not supported with the provided inputs"


def test_true_requires_a_fused_row_d11(installed):
    keras.ops.dot_product_attention(*tensors(), flash_attention=True)
    report = rapt.last_report()
    assert "fused" in report.json["chosen"]["classes"] and report.json["policy"]["require"] == ["class:fused"]


def test_true_is_refused_in_the_words_of_keras_and_with_every_reason_d10(installed):
    with rapt.policy(forbid="cpu,torch"), pytest.raises(RuntimeError, match=SENTENCE) as error:
        keras.ops.dot_product_attention(*tensors(), bias=torch.zeros(5, 5), flash_attention=True)
    assert isinstance(error.value, rapt.keras.FlashUnavailable) and isinstance(error.value, rapt.RefusedError)
    assert error.value.report.status == "REFUSED" and "FORBIDDEN" in str(error.value)
    assert error.value.report is rapt.last_report() and "attn_mask" not in error.value.report.text
    copy = pickle.loads(pickle.dumps(error.value))
    assert str(copy) == str(error.value)


def test_without_true_a_refusal_is_rapts_own(installed):
    for flash in (None, False):
        with rapt.policy(forbid="cpu,ref,torch"), pytest.raises(rapt.RefusedError) as error:
            keras.ops.dot_product_attention(*tensors(), flash_attention=flash)
        assert SENTENCE not in str(error.value)


def test_false_forbids_class_flash_for_this_call_only_d11(installed):
    keras.ops.dot_product_attention(*tensors(), flash_attention=False)
    assert rapt.last_report().json["policy"]["forbid"] == ["class:flash"]
    keras.ops.dot_product_attention(*tensors())
    assert not rapt.last_report().json["policy"]["forbid"]


@pytest.mark.parametrize("flash", [True, False])
def test_a_switch_without_effect_is_reported_as_such_d11(installed, flash):
    for _ in range(2):                                          # the second call is one known from before
        keras.ops.dot_product_attention(*tensors(), flash_attention=flash)
        assert rapt.last_report().notes == (f"flash_attention={flash} has no effect on the choice",)
    keras.ops.dot_product_attention(*tensors())
    assert rapt.last_report().notes == ()


def test_a_switch_with_effect_says_what_was_chosen_without_it_d11(installed):
    half = [t.half() for t in tensors((2, 16, 8, 64))]
    report = rapt.keras.explain(*half, flash_attention=False, device="cuda", facts="cuda cc=12.0")
    assert report.row == "torch.efficient"
    assert report.notes == ("flash_attention=False changes the choice, which is torch.sdpa without it",)


@pytest.fixture
def flash_config():
    yield
    keras.config.enable_flash_attention()


def test_the_global_switches(installed, flash_config):
    x = torch.randn(2, 5, 16)

    def policy(**given):
        layer = layers.MultiHeadAttention(num_heads=2, key_dim=8, **given)
        with torch.no_grad():
            layer(x, x)
        return rapt.last_report().json["policy"]

    keras.config.disable_flash_attention()
    assert policy()["forbid"] == ["class:flash"]
    assert policy(flash_attention=True)["require"] == ["class:fused"]
    keras.config.enable_flash_attention()
    assert not policy()["forbid"] and not policy()["require"]
    assert not policy(flash_attention=False)["forbid"]          # the layer itself makes None of it, above this


# ---- The soft cap (M20) ----

@pytest.mark.parametrize("flash", [None, False])
def test_the_soft_cap_is_honoured_m20(installed, flash):
    q, k, v = tensors((2, 5, 4, 16))
    bias, cap = torch.randn(5, 5), 0.7
    out = nn.dot_product_attention(q, k, v, bias=bias, flash_attention=flash, attn_logits_soft_cap=cap)
    logits = np.einsum("bqhd,bkhd->bhqk", q.double().numpy(), k.double().numpy()) / np.sqrt(16)
    logits = cap * np.tanh(logits / cap) + bias.double().numpy()
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("bhqk,bkhd->bqhd", weights, v.double().numpy())
    assert np.abs(out.numpy() - want).max() < 5e-6
    assert ran() == "flex"


def test_a_soft_cap_of_zero_is_none_m20(installed):
    q, k, v = tensors()
    check(nn.dot_product_attention(q, k, v, attn_logits_soft_cap=0.0), q, k, v)
    assert ran() != "flex"


def test_the_soft_cap_with_true_is_refused_with_the_code(installed):
    with pytest.raises(rapt.keras.FlashUnavailable, match="SOFTCAP"):
        nn.dot_product_attention(*tensors(), flash_attention=True, attn_logits_soft_cap=5.0)


def test_the_soft_cap_of_a_narrow_head_is_refused_with_the_reason(installed):
    with pytest.raises(rapt.RefusedError, match="HEAD_DIM: D is 8, flex takes at least 16"):
        nn.dot_product_attention(*tensors(), bias=torch.zeros(5, 5), attn_logits_soft_cap=5.0)


def test_keras_own_functional_call_refuses_a_soft_cap_above_the_hook(installed):
    with pytest.raises(ValueError, match="attn_logits_soft_cap"):
        keras.ops.dot_product_attention(*tensors(), attn_logits_soft_cap=5.0)


# ---- Layers ----

def both(layer, *args, **keywords):
    """(stock, with rapt) of one layer, without gradients."""
    with torch.no_grad():
        stock = layer(*args, **keywords)
        rapt._report.set_last(None)
        with rapt.keras.install():
            return stock, layer(*args, **keywords)


LAYERS = {
    "multi-head": lambda **k: layers.MultiHeadAttention(num_heads=4, key_dim=8, **k),
    "multi-head, wide values": lambda **k: layers.MultiHeadAttention(num_heads=4, key_dim=8, value_dim=12, **k),
    "grouped": lambda **k: layers.GroupQueryAttention(head_dim=8, num_query_heads=4, num_key_value_heads=2, **k),
    "multi-query": lambda **k: layers.GroupQueryAttention(head_dim=8, num_query_heads=4, num_key_value_heads=1, **k),
}


@pytest.mark.parametrize("masking", ["none", "causal", "attention_mask", "both"])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_give_what_they_gave(kind, masking):
    x = torch.randn(2, 6, 16)
    keywords = {"use_causal_mask": masking in ("causal", "both")}
    if masking in ("attention_mask", "both"):
        keywords["attention_mask"] = torch.rand(2, 6, 6) < 0.8
        keywords["attention_mask"][..., 0] = True
    stock, mine = both(LAYERS[kind](), x, x, **keywords)
    assert torch.allclose(stock, mine, atol=2e-5) and ran()


def test_masks_that_layers_carry_along(installed):
    tokens = torch.tensor([[3, 4, 5, 0, 0], [1, 2, 3, 4, 5]])
    embedding, layer = layers.Embedding(8, 16, mask_zero=True), layers.MultiHeadAttention(num_heads=2, key_dim=8)
    with torch.no_grad():
        x = embedding(tokens)
        out = layer(x, x)
        assert "mask=bool" in rapt.last_report().json["problem"]
        shorter = embedding(tokens[:1, :3])
        assert torch.allclose(out[:1, :3], layer(shorter, shorter), atol=1e-5)


@pytest.mark.parametrize("given, keywords", [
    ({"dropout": 0.1}, {}), ({"dropout": 0.1}, {"training": True}), ({}, {"return_attention_scores": True})])
def test_what_never_reaches_the_hook_works_as_before(given, keywords):
    layer, x = LAYERS["multi-head"](**given), torch.randn(2, 6, 16)
    with torch.no_grad():
        layer(x, x)
    first, second = ([], [])
    rapt._report.set_last(None)
    for into, context in ((first, None), (second, rapt.keras.install())):
        keras.utils.set_random_seed(3)
        if given:
            layer._dropout_layer.seed_generator.state.assign([1, 2])
        with torch.no_grad():
            result = layer(x, x, **keywords)
        into.extend(result if isinstance(result, tuple) else [result])
        if context is not None:
            context.remove()
    assert all(torch.equal(a, b) for a, b in zip(first, second)) and not ran()


def test_inputs_of_more_axes_never_reach_the_hook():
    x = torch.randn(2, 3, 4, 16)
    stock, mine = both(layers.MultiHeadAttention(num_heads=2, key_dim=8, attention_axes=(1, 2)), x, x)
    assert torch.equal(stock, mine) and not ran()


def test_gradients_are_those_of_stock_keras():
    layer, x = LAYERS["grouped"](), torch.randn(2, 6, 16)
    layer(x, x)
    grads = []
    for context in (None, rapt.keras.install()):
        for weight in layer.trainable_weights:
            weight.value.grad = None
        layer(x, x, use_causal_mask=True).square().sum().backward()
        grads.append([weight.value.grad.clone() for weight in layer.trainable_weights])
        if context is not None:
            context.remove()
    assert ran() == "torch.sdpa" and all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads))


def test_fit_and_predict(installed):
    given = keras.Input((6, 16))
    model = keras.Model(given, layers.Dense(1)(LAYERS["multi-head"]()(given, given)))
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.random.rand(8, 6, 16).astype("float32"), np.zeros((8, 6, 1), "float32")
    before = model.predict(x, verbose=0)
    losses = model.fit(x, y, epochs=3, batch_size=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and before.shape == (8, 6, 1)


# ---- Shapes only (A12, D19) ----

def test_symbolic_tensors(installed):
    q, k = keras.Input((5, 4, 8)), keras.Input((7, 4, 8))
    out = keras.ops.dot_product_attention(q, k, k)
    assert out.shape == (None, 5, 4, 8) and not ran()
    model = keras.Model([q, k], out)
    a, b = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 4, 8)
    check(model([a, b]), a, b, b)


def test_a_symbolic_width_of_value_that_keras_would_get_wrong_is_refused(installed):
    q, v = keras.Input((5, 4, 8)), keras.Input((5, 4, 12))
    with pytest.raises(rapt.ArgumentError, match="VALUE_DIM: value"):
        keras.ops.dot_product_attention(q, q, v)
    a, b = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 4, 12)
    check(keras.ops.dot_product_attention(a, a, b), a, a, b)    # with data its shape is what it is


def test_that_symbolic_shape_is_wrong_without_rapt():
    q, v = keras.Input((5, 4, 8)), keras.Input((5, 4, 12))
    assert keras.ops.dot_product_attention(q, q, v).shape[-1] == 8


@pytest.mark.parametrize("flash", [None, True, False])
def test_on_meta_the_shape_is_predicted_and_nothing_is_decided_a12(installed, flash):
    spec = keras.src.backend.compute_output_spec(
        lambda q, v: nn.dot_product_attention(q, q, v, flash_attention=flash), keras.KerasTensor((2, 5, 4, 8)),
        keras.KerasTensor((2, 5, 4, 12)))
    assert spec.shape == (2, 5, 4, 12) and not ran()
    q = torch.empty(2, 5, 4, 8, device="meta", dtype=torch.bfloat16)
    with keras.src.backend.torch.core.device_scope("meta"):
        out = nn.dot_product_attention(q, q, q)
    assert (out.device.type, out.dtype, out.shape, out.is_contiguous()) == ("meta", torch.bfloat16, q.shape, True)


def test_explain_takes_shapes_only():
    q = torch.empty(2, 16, 8, 64, dtype=torch.float16, device="meta")
    report = rapt.keras.explain(q, q, q, is_causal=True, flash_attention=True, device="cuda", facts="cuda cc=12.0")
    assert report.row == "torch.sdpa" and report.notes == ("flash_attention=True has no effect on the choice",)


# ---- install and remove ----

def rule():
    return keras.src.ops.nn.DotProductAttention.compute_output_spec


def test_remove_restores_exactly():
    symbolic = rule()
    handle = rapt.keras.install()
    assert nn.dot_product_attention is not STOCK and rule() is not symbolic and rapt.keras.installed()
    handle.remove()
    assert nn.dot_product_attention is STOCK and rule() is symbolic and not rapt.keras.installed()
    handle.remove()
    rapt.keras.remove()                                         # nothing is installed, nothing happens
    assert nn.dot_product_attention is STOCK


def test_a_second_install_changes_nothing_and_takes_nothing_out():
    with rapt.keras.install():
        hook = nn.dot_product_attention
        with rapt.keras.install():
            assert nn.dot_product_attention is hook
        assert nn.dot_product_attention is hook and rapt.keras.installed()


def test_a_handle_takes_out_what_it_has_put_in_and_nothing_later():
    old = rapt.keras.install()
    rapt.keras.remove()
    with rapt.keras.install():
        old.remove()
        assert rapt.keras.installed()
    assert nn.dot_product_attention is STOCK


def test_an_error_in_the_block_still_removes():
    with pytest.raises(ZeroDivisionError), rapt.keras.install():
        1 / 0
    assert nn.dot_product_attention is STOCK


def other_library(*args, **keywords):
    return STOCK(*args, **keywords)


def test_another_library_that_came_first_is_not_replaced(monkeypatch):
    monkeypatch.setattr(nn, "dot_product_attention", other_library)
    with pytest.raises(RuntimeError, match="held by .*other_library"):
        rapt.keras.install()
    assert nn.dot_product_attention is other_library and not rapt.keras.installed()
    monkeypatch.undo()


def test_another_library_that_came_later_is_not_taken_out():
    handle = rapt.keras.install()
    hook, symbolic = nn.dot_product_attention, rule()
    nn.dot_product_attention = other_library
    with pytest.raises(RuntimeError, match="now held by .*other_library"):
        handle.remove()
    assert nn.dot_product_attention is other_library and rule() is symbolic and rapt.keras.installed()
    nn.dot_product_attention = hook
    handle.remove()                                             # and then it works
    assert not rapt.keras.installed()


@pytest.mark.parametrize("holder, name, path", [
    (nn, "dot_product_attention", "keras.src.backend.nn.dot_product_attention"),
    (keras.src.backend, "result_type", "keras.src.backend.result_type"),
    (keras.src.ops.nn, "DotProductAttention", "keras.src.ops.nn.DotProductAttention.compute_output_spec")])
def test_a_missing_attribute_is_one_clear_error(monkeypatch, holder, name, path):
    monkeypatch.delattr(holder, name)
    said = re.escape(f"rapt.keras needs {path}, which Keras {keras.__version__} does not have")
    with pytest.raises(ImportError, match=said):
        rapt.keras.install()
    assert not rapt.keras.installed()
    monkeypatch.undo()


def test_another_signature_is_one_clear_error(monkeypatch):
    def dot_product_attention(query, key, value, dropout=0.0):
        return query
    dot_product_attention.__module__ = "keras.src.backend.torch.nn"
    monkeypatch.setattr(nn, "dot_product_attention", dot_product_attention)
    with pytest.raises(ImportError, match=rf"Keras {re.escape(keras.__version__)} has \(query, key, value, dropout\)"):
        rapt.keras.install()
    monkeypatch.undo()
