# SPDX-License-Identifier: Apache-2.0
"""The report of a probe for flash attention that breaks Keras' graphs on PyTorch, as tests by its own cases.

Six argument shapes compiled as one graph, the six-layer model, and the 72 rows of kernels by dtype, mask, head width, flag
and mode. Each check is run again with its fault put back: stock Keras' function, a probe in front of ours, or a flag
read as stock Keras reads it. It must then fail."""

import os

import pytest

torch = pytest.importorskip("torch")
os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")

import rapt  # noqa: E402
import rapt.keras  # noqa: E402
from keras import layers  # noqa: E402
from rapt import _keras_hook  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

nn = keras.src.backend.nn
STOCK = nn.dot_product_attention
FAULT = pytest.mark.parametrize("fault", [False, True], ids=["", "fault"])
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path, probe_untraced):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    keras.utils.set_random_seed(23)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    keras.config.enable_flash_attention()
    assert nn.dot_product_attention is STOCK


@pytest.fixture
def installed():
    with rapt.keras.install():
        yield


def probing(*args, **keywords):
    """Our function, with the probe of stock Keras in front of it."""
    nn._can_use_flash_attention(*(t.transpose(1, 2) for t in args[:3]))
    return _keras_hook.dot_product_attention(*args, **keywords)


# ---- The six argument shapes ----

def mask():
    seen = torch.rand(2, 1, 7, 7) < 0.7
    seen[..., 0] = True                                         # a row without a key is another matter (test_keras.py)
    return seen


SHAPES = {
    "plain": lambda: {},
    "causal": lambda: {"is_causal": True},
    "masked": lambda: {"mask": mask()},
    "masked-and-causal": lambda: {"mask": mask(), "is_causal": True},
    "bias": lambda: {"bias": torch.randn(2, 4, 7, 7)},
    "custom scale": lambda: {"scale": 0.3},
}


def operands(dtype=torch.float32, d=8):
    return [torch.randn(2, 7, 4, d).to(dtype) for _ in range(3)]


def compiled(keywords, backend="inductor"):
    return torch.compile(lambda q, k, v: keras.ops.dot_product_attention(q, k, v, **keywords), fullgraph=True,
                         backend=backend)


@FAULT
@pytest.mark.parametrize("shape", SHAPES)
def test_six_argument_shapes_compile_as_one_graph_and_equal_eager(shape, fault):
    qkv, keywords = operands(), SHAPES[shape]()
    if fault:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(keywords)(*qkv)
        return
    with rapt.keras.install():
        eager = keras.ops.dot_product_attention(*qkv, **keywords)
        row = rapt.last_report().row
        graph = compiled(keywords)(*qkv)
        assert rapt.last_report().row == row and torch.equal(graph, eager)
        assert torch.allclose(graph, STOCK(*qkv, **keywords), atol=2e-6)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled_minus_eager_is_exactly_zero(installed, dtype, d):
    for shape in ("plain", "masked", "causal"):
        qkv, keywords = operands(dtype, d), SHAPES[shape]()
        eager = keras.ops.dot_product_attention(*qkv, **keywords)
        row = rapt.last_report().row
        graph = compiled(keywords, "aot_eager")(*qkv)
        assert (graph - eager).abs().max() == 0.0 and rapt.last_report().row == row


# ---- The six-layer model ----

def encoder(n=6, width=64, heads=8, length=8):
    given = x = keras.Input((length, width))
    for _ in range(n):
        a = layers.MultiHeadAttention(num_heads=heads, key_dim=width // heads)(x, x)
        x = layers.LayerNormalization()(x + a)
        f = layers.Dense(2 * width, activation="relu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(f))
    return keras.Model(given, x)


class SixAttentions(keras.Model):
    def __init__(self):
        super().__init__()
        self.attentions = [layers.MultiHeadAttention(num_heads=8, key_dim=8) for _ in range(6)]

    def call(self, x):
        for attention in self.attentions:
            x = attention(x, x)
        return x


def counts(model, x):
    """(graphs, breaks) of a forward."""
    model(x)                                                    # built before it is traced
    found = torch._dynamo.explain(lambda x: model(x, training=False))(x)
    return found.graph_count, found.graph_break_count


def with_flash(flash, make):
    """A model whose layers carry this flag. A layer makes None of its own False; the global switch reaches it."""
    if flash is False:
        keras.config.disable_flash_attention()
    model = make()
    if flash:
        for layer in model.layers:
            if isinstance(layer, layers.MultiHeadAttention):
                layer._flash_attention = True
    assert all(layer._flash_attention is flash for layer in model.layers if isinstance(layer, layers.MultiHeadAttention))
    return model


@pytest.mark.parametrize("flash", [None, True, False])
def test_the_six_layer_model_is_one_graph_without_a_break(installed, flash):
    model, x = with_flash(flash, encoder), torch.randn(2, 8, 64)
    assert counts(model, x) == (1, 0)
    assert rapt.last_report().json["policy"]["require"] == (["class:fused"] if flash else None)


def test_the_model_is_one_graph_under_autocast_too(installed):
    model, x = encoder(2), torch.randn(2, 8, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert counts(model, x) == (1, 0)
        assert "autocast=bf16" in rapt.last_report().json["problem"] or rapt.last_report().json["problem"][:4] == "bf16"


@pytest.mark.parametrize("make, pinned", [(encoder, (20, 19)), (SixAttentions, (14, 13))])
def test_stock_keras_breaks_at_every_attention(make, pinned):
    found = counts(make(), torch.randn(2, 8, 64))
    assert found[0] > 6 and found[1] >= 6
    if keras.__version__ == "3.15.1":
        assert found == pinned


@pytest.mark.parametrize("flash", [None, True, False])
def test_a_probe_put_back_in_front_breaks_the_graph_again(installed, monkeypatch, flash):
    model, x = with_flash(flash, lambda: encoder(1)), torch.randn(2, 8, 64)
    monkeypatch.setattr(nn, "dot_product_attention", probing)
    graphs, breaks = counts(model, x)
    assert graphs > 1 and breaks > 0
    monkeypatch.undo()


# ---- The 72 rows ----

HALF = (torch.float16, torch.bfloat16)
FACTS = "cuda cc=12.0"


def upstream(dtype, masked, flash):
    """What the report measured there: None and False leave the choice to the host, True pins flash or raises."""
    flashes = dtype in HALF and not masked
    if flash:
        return "flash" if flashes else "raises"
    return "flash" if flashes else "mem-efficient"


def ours(dtype, masked, flash):
    """D11: True is any fused kernel; False is none of class flash."""
    return "flash" if dtype in HALF and not masked and flash is not False else "mem-efficient"


# Where ours is meant to differ from what was measured, and how it reads there.
DIFFER = {(dtype, masked, flash): upstream(dtype, masked, flash)
          for dtype in (*HALF, torch.float32) for masked in (False, True) for flash in (None, True, False)
          if ours(dtype, masked, flash) != upstream(dtype, masked, flash)}


def kernel(report):
    if report.status != "OK":
        return "raises"
    classes = report.json["chosen"]["classes"]
    return "flash" if "flash" in classes else "mem-efficient" if "fused" in classes else "math"


class Attention(torch.nn.Module):
    def __init__(self, keywords):
        super().__init__()
        self.keywords = keywords

    def forward(self, q, mask):
        return nn.dot_product_attention(q, q, q, mask=mask, **self.keywords)


def compiled_decision(q, mask, flash, forgotten, monkeypatch):
    """Traced on CUDA tensors that have no memory; the decision is that of the one node which the graph has."""
    with FakeTensorMode(allow_non_fake_inputs=True), monkeypatch.context() as patch:
        same = lambda x: x                                      # noqa: E731  as where CUDA is Keras' own device
        patch.setattr(_keras_hook._Call.__init__, "__defaults__", (same,))
        q = torch.empty(q.shape, dtype=q.dtype, device="cuda")
        mask = None if mask is None else torch.ones(mask.shape, dtype=torch.bool, device="cuda")
        graph = torch.export.export(Attention({"flash_attention": flash}), (q, mask)).graph
    nodes = [n for n in graph.nodes if n.op == "call_function" and n.target.namespace == "rapt"]
    assert len(nodes) == 1 and nodes[0].target is torch.ops.rapt.keras.default
    args = _keras_hook._ops._arguments(*nodes[0].args)
    require, _, forbid, *_ = args[-1].split("\x01") if args[-1] else [""] * 3
    keywords = {"require": require or None, "forbid": None if forgotten else forbid or None}
    value = [None if a is None else a.meta["val"].to("meta") for a in (*args[:3], args[5])]
    return rapt.torch.explain(*value[:3], mask=value[3], device="cuda", facts=FACTS, **keywords)


def decision(dtype, masked, d, flash, mode, forgotten, monkeypatch):
    """forgotten: False forbids nothing, which is how stock Keras reads it."""
    q = torch.empty(2, 16, 8, d, dtype=dtype, device="meta")
    mask = torch.ones(2, 1, 16, 16, dtype=torch.bool, device="meta") if masked else None
    if mode == "compiled":
        return compiled_decision(q, mask, flash, forgotten, monkeypatch)
    if forgotten:
        return rapt.torch.explain(*[q.transpose(1, 2)] * 3, mask=mask, device="cuda", facts=FACTS)
    return rapt.keras.explain(q, q, q, mask=mask, flash_attention=flash, device="cuda", facts=FACTS)


MODES = pytest.mark.parametrize("mode", ["eager", "compiled"])
WIDTHS = pytest.mark.parametrize("d", [64, 128])


@MODES
@pytest.mark.parametrize("flash", [None, True, False])
@WIDTHS
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_72_rows(installed, monkeypatch, dtype, masked, d, flash, mode):
    found = decision(dtype, masked, d, flash, mode, False, monkeypatch)
    assert found.json["hypothetical"] and kernel(found) == ours(dtype, masked, flash)


@MODES
@WIDTHS
@pytest.mark.parametrize("dtype", HALF)
def test_a_false_that_forbids_nothing_is_seen(installed, monkeypatch, dtype, d, mode):
    found = decision(dtype, False, d, False, mode, True, monkeypatch)
    assert kernel(found) == upstream(dtype, False, False) == "flash" != ours(dtype, False, False)


def test_where_the_rows_differ_from_what_was_measured_there():
    assert {(str(dtype)[6:], "mask" if masked else "no mask", flash): (was, ours(dtype, masked, flash))
            for (dtype, masked, flash), was in DIFFER.items()} == {
        ("float16", "no mask", False): ("flash", "mem-efficient"),
        ("bfloat16", "no mask", False): ("flash", "mem-efficient"),
        ("float16", "mask", True): ("raises", "mem-efficient"),
        ("bfloat16", "mask", True): ("raises", "mem-efficient"),
        ("float32", "no mask", True): ("raises", "mem-efficient"),
        ("float32", "mask", True): ("raises", "mem-efficient")}


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_head_width_320_has_no_flash_kernel_whatever_the_flag(dtype):
    q = torch.empty(2, 16, 8, 320, dtype=dtype, device="meta")
    for flash in (None, True, False):
        report = rapt.keras.explain(q, q, q, flash_attention=flash, device="cuda", facts=FACTS)
        assert kernel(report) == "mem-efficient"
        assert "HEAD_DIM" in report.codes("torch.flash")
