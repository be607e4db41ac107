# SPDX-License-Identifier: Apache-2.0
"""rapt.keras under torch.compile and torch.export: one operator a call, decided when it runs (D19), refusals as in eager.
The seed's own shapes and models are in seeds/test_seed_keras.py."""

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
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh(probe_untraced):
    keras.utils.set_random_seed(29)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert nn.dot_product_attention is STOCK


@pytest.fixture
def installed():
    with rapt.keras.install():
        yield


def tensors(q=(2, 5, 4, 8), kv=None, grad=False):
    return [torch.randn(*shape, requires_grad=grad) for shape in (q, kv or q, kv or q)]


def graph_of(keywords, fullgraph=True, **options):
    return torch.compile(lambda q, k, v: nn.dot_product_attention(q, k, v, **keywords), backend="aot_eager",
                         fullgraph=fullgraph, **options)


ARGUMENTS = {
    "plain": lambda: {},
    "everything": lambda: {"mask": torch.rand(2, 1, 5, 5) < 0.8, "bias": torch.randn(4, 5, 5), "is_causal": True,
                           "scale": 0.4},
    "mask and causal": lambda: {"mask": torch.rand(5, 5) < 0.8, "is_causal": True},
}


@pytest.mark.parametrize("flash", [None, True, False])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_compiled_equals_eager_bit_for_bit_d19(installed, arguments, flash):
    qkv, keywords = tensors(), {**ARGUMENTS[arguments](), "flash_attention": flash}
    eager = nn.dot_product_attention(*qkv, **keywords)
    row = rapt.last_report().row
    assert torch.equal(graph_of(keywords)(*qkv), eager) and rapt.last_report().row == row


@pytest.mark.parametrize("flash", [None, True, False])
def test_gradients_in_one_graph_are_those_of_stock_keras(installed, flash):
    keywords = {"is_causal": True, "mask": torch.rand(5, 5) < 0.8}
    keywords["mask"][:, 0] = True
    grads = []
    for function in (graph_of({**keywords, "flash_attention": flash}), lambda *qkv: STOCK(*qkv, **keywords)):
        torch.manual_seed(1)
        qkv = tensors(grad=True)
        function(*qkv).square().sum().backward()
        grads.append([t.grad for t in qkv])
    assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(*grads))


def test_grouped_heads_and_a_wider_value(installed):
    q, k, v = tensors((2, 5, 8, 8), (2, 6, 2, 8))
    v = torch.randn(2, 6, 2, 12)
    for flash in (None, True):
        eager = nn.dot_product_attention(q, k, v, flash_attention=flash)
        assert torch.equal(graph_of({"flash_attention": flash})(q, k, v), eager)


@pytest.mark.parametrize("flash", [None, True])
def test_dynamic_shapes_stay_one_graph(installed, flash):
    graph = graph_of({"flash_attention": flash}, dynamic=True)
    for s in (5, 9, 14):
        qkv = tensors((2, s, 4, 8))
        assert torch.equal(graph(*qkv), nn.dot_product_attention(*qkv))


@pytest.mark.parametrize("flash", [None, True])
def test_autocast_around_a_compiled_call_h7(installed, flash):
    q, k, v = tensors((2, 5, 4, 16))
    graph = graph_of({"flash_attention": flash})
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype), torch.no_grad():
            out = graph(q, k.bfloat16(), v)
            assert out.dtype == dtype and torch.equal(out, nn.dot_product_attention(q, k.bfloat16(), v))
    assert graph(q, k, v).dtype == torch.float32


def message(function, *args):
    with pytest.raises(rapt.keras.FlashUnavailable) as error:
        function(*args)
    return str(error.value)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_true_is_refused_alike_in_eager_and_compiled_d10(installed, fullgraph, grad):
    qkv, keywords = tensors(grad=grad), {"flash_attention": True, "bias": torch.zeros(5, 5)}
    graph = graph_of(keywords, fullgraph)
    graph(*qkv)                                                 # runs; the refusal is of the later calls
    with rapt.policy(forbid="cpu,torch"):
        said = message(graph, *qkv)
        assert said == message(lambda *qkv: nn.dot_product_attention(*qkv, **keywords), *qkv)
    assert said.startswith("Flash attention is not supported with the provided inputs. REFUSED: ")
    assert torch.equal(graph(*qkv), nn.dot_product_attention(*qkv, **keywords))


def test_a_call_that_is_refused_where_it_is_traced_raises_the_same_error(installed):
    with rapt.policy(forbid="cpu,torch"):
        assert "FORBIDDEN" in message(graph_of({"flash_attention": True}, False), *tensors())


def test_a_wrong_argument_raises_its_own_error_when_compiled(installed):
    with pytest.raises(rapt.ArgumentError, match="DTYPE: mask is float32"):
        graph_of({"mask": torch.zeros(5, 5)}, False)(*tensors())


def test_a_soft_cap_leaves_the_graph_and_is_honoured_m20(installed):
    qkv, keywords = tensors((2, 5, 4, 16)), {"attn_logits_soft_cap": 2.0}
    assert torch.equal(graph_of(keywords, False)(*qkv), nn.dot_product_attention(*qkv, **keywords))
    assert rapt.last_report().row == "flex"


def test_install_and_remove_change_the_next_call_of_a_compiled_function():
    qkv = tensors()
    graph = torch.compile(lambda *qkv: keras.ops.dot_product_attention(*qkv), backend="aot_eager")
    rapt._report.set_last(None)
    graph(*qkv)
    assert rapt.last_report() is None
    with rapt.keras.install():
        graph(*qkv)
        assert rapt.last_report() is not None
    rapt._report.set_last(None)
    graph(*qkv)
    assert rapt.last_report() is None


def test_a_layer_exports_as_one_operator(installed):
    layer, x = layers.GroupQueryAttention(head_dim=8, num_query_heads=4, num_key_value_heads=2), torch.randn(2, 5, 16)
    layer(x, x)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x)

    with torch.no_grad():
        program = torch.export.export(Model(), (x,))
        names = [str(n.target) for n in program.graph.nodes if n.op == "call_function" and "rapt" in str(n.target)]
        assert len(names) == 1
        assert torch.allclose(program.module()(x), layer(x, x), atol=1e-6)


# ---- Other devices: traced as one operator that asks the front when it runs ----

def on_cuda(monkeypatch, keywords):
    """The operators of rapt in a graph of CUDA tensors without memory."""
    class Model(torch.nn.Module):
        def forward(self, q):
            return nn.dot_product_attention(q, q, q, **keywords)

    with FakeTensorMode(allow_non_fake_inputs=True):
        monkeypatch.setattr(_keras_hook._Call.__init__, "__defaults__", (lambda x: x,))     # CUDA is Keras' own device
        q = torch.empty(2, 5, 4, 64, dtype=torch.float16, device="cuda")
        graph = torch.export.export(Model(), (q,)).graph
    return [n for n in graph.nodes if n.op == "call_function" and n.target.namespace == "rapt"]


@pytest.mark.parametrize("flash", [None, True, False])
def test_on_cuda_a_call_is_one_node(installed, monkeypatch, flash):
    node, = on_cuda(monkeypatch, {"flash_attention": flash, "is_causal": True})
    assert node.target is torch.ops.rapt.keras.default
    assert node.meta["val"].device.type == "cuda" and node.meta["val"].dtype == torch.float16


@pytest.mark.parametrize("policy", ["", "class:fused\x01\x01\x01\x01", "\x01\x01class:flash\x01\x01"])
def test_that_operator_asks_the_front(monkeypatch, policy):
    """Its kernel for devices, run on CPU tensors: the same arguments, the same result."""
    q, k, v = (t.transpose(1, 2) for t in tensors((2, 5, 4, 8), (2, 5, 2, 8)))
    mask, bias = torch.rand(5, 5) < 0.8, torch.randn(4, 5, 5)
    args = _keras_hook._ops._arguments(q, k, v, scale=0.3, causal=True, mask=mask, bias=bias, align=1, policy=policy)
    out = _keras_hook._elsewhere(*args)
    want = rapt.torch.sdpa(q, k, v, is_causal=True, scale=0.3, enable_gqa=True, mask=mask, bias=bias)
    assert torch.equal(out, want)
    given = rapt.last_report().json["policy"] if policy else None
    assert given is None or not (given["require"] or given["forbid"])       # of the call without a policy
    with rapt.policy(forbid="cpu,ref,torch"), pytest.raises(rapt.RefusedError) as error:
        _keras_hook._elsewhere(*args)
    assert isinstance(error.value, rapt.keras.FlashUnavailable) == ("fused" in policy)
    cast = _keras_hook._elsewhere(*args[:16], _keras_hook._ops._CODES[torch.bfloat16], policy)
    assert cast.dtype == torch.bfloat16


def test_gradients_on_other_devices_are_one_more_operator():
    """By meta tensors: this machine cannot run a backward of CUDA tensors without memory."""
    ops = _keras_hook._ops
    q, k, v = (torch.empty(2, 4, 5, 8, dtype=torch.float16, device="meta", requires_grad=i != 1) for i in range(3))
    bias = torch.empty(4, 5, 5, device="meta", requires_grad=True)
    flags = ops.GRAD_Q | ops.GRAD_V | ops.GRAD_BIAS
    torch.ops.rapt.keras(*ops._arguments(q, k, v, bias=bias, flags=flags)).sum().backward()
    assert k.grad is None and all(t.grad.shape == t.shape and t.grad.dtype == t.dtype for t in (q, v, bias))


def test_that_backward_is_the_one_of_the_front():
    """Its kernel for devices, run on CPU tensors."""
    ops = _keras_hook._ops
    q, k, v = (t.transpose(1, 2) for t in tensors((2, 5, 4, 8), (2, 5, 2, 8)))
    mask, bias, dout = torch.rand(5, 5) < 0.8, torch.randn(4, 5, 5), torch.randn(2, 4, 5, 8)
    mask[:, 0] = True
    args = ops._arguments(q, k, v, scale=0.3, causal=True, mask=mask, bias=bias, align=1,
                          flags=ops.GRAD_Q | ops.GRAD_K | ops.GRAD_BIAS)
    found = _keras_hook._elsewhere_backward(dout, *args)
    leaves = [t.detach().requires_grad_() for t in (q, k, bias)]
    out = rapt.torch.sdpa(leaves[0], leaves[1], v, is_causal=True, scale=0.3, enable_gqa=True, mask=mask, bias=leaves[2])
    want = torch.autograd.grad(out, leaves, dout)
    assert all(torch.equal(a, b) for a, b in zip((found[0], found[1], found[3]), want)) and found[2].numel() == 0
    assert torch.equal(_keras_hook._elsewhere(*args), out) and "grad=" in rapt.last_report().json["problem"]
