# SPDX-License-Identifier: Apache-2.0
"""Every package times every convention, one line a fact (docs/backends.md; H9 to H13).

Fakes of the packages (tests/py/fakes) follow their own conventions and write down what they get; the results are compared
with the contract's formula in fp64, which knows nothing of them."""

import math
from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _providers  # noqa: E402

# ---- Where each row is tried ----

Place = namedtuple("Place", "kind where facts hub", defaults=({}, None))
HUB = {"fa2": "flash-attn2", "fa3": "flash-attn3", "fa4": "flash-attn4", "sage": "sage-attention",
       "aiter": "aiter-flash-attn-ck"}
PLACES = {
    "fa2": Place("cuda", "9.0"), "fa2.varlen": Place("cuda", "9.0"), "fa3": Place("cuda", "9.0"),
    "fa3.varlen": Place("cuda", "9.0"), "fa4": Place("cuda", "9.0"), "sage.auto": Place("cuda", "9.0"),
    "sage.fp16_cuda": Place("cuda", "8.0"), "sage.triton": Place("cuda", "8.6"), "sage.fp8_cuda": Place("cuda", "8.9"),
    "sage.fp8_sm90": Place("cuda", "9.0"), "sage.varlen": Place("cuda", "9.0"),
    "sage3": Place("cuda", "12.0", {"python": "3.13.0"}), "mslk.auto": Place("cuda", "8.0"),
    "mslk.fa2": Place("cuda", "8.0"), "mslk.fa3": Place("cuda", "9.0"), "mslk.cutlass": Place("cuda", "8.0"),
    "mslk.splitk": Place("cuda", "9.0"), "mslk.blackwell": Place("cuda", "10.0"), "aiter.ck": Place("hip", "gfx942"),
    "npu": Place("npu", None), "xla": Place("xla", None), "hub.fa2.cuda": Place("cuda", "9.0", {}, "fa2"),
    "hub.fa2.varlen": Place("cuda", "9.0", {}, "fa2"), "hub.fa2.xpu": Place("xpu", None, {}, "fa2"),
    "hub.fa2.cpu": Place(None, None, {}, "fa2"), "hub.fa3": Place("cuda", "9.0", {}, "fa3"),
    "hub.fa3.varlen": Place("cuda", "9.0", {}, "fa3"), "hub.fa4": Place("cuda", "9.0", {}, "fa4"),
    "hub.sage": Place("cuda", "9.0", {}, "sage"), "hub.aiter_ck": Place("hip", "gfx942", {}, "aiter"),
    "flex": Place(None, None),
}


def stand(monkeypatch, row):
    place = PLACES[row]
    if place.kind is None:
        fakes = fake_device.at_home(monkeypatch)
        fakes.on_device = True          # the hub's CPU build is told apart by nothing but its name
    else:
        fakes = fake_device.pretend(monkeypatch, place.kind, place.where, **place.facts)
    if place.hub:
        import kernels
        rapt.torch.use_kernel(row, kernels.get_kernel("kernels-community/" + HUB[place.hub], version=1))
    return fakes


# ---- The contract's formula ----

def formula(q, k, v, *, off=0, causal=False, window=(-1, -1), mask=None, bias=None, scale=None, softcap=0.0, slopes=None,
            sinks=None):
    """(o, lse) of [B,H,S,D] in fp64 (N1, M13, M16, M19 to M21)."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    x = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    p, j = torch.arange(q.shape[2])[:, None] + off, torch.arange(k.shape[2])
    if bias is not None:
        x = x + bias.double()
    if slopes is not None:
        x = x - slopes.double().expand(*q.shape[:2])[..., None, None] * (p - j).abs()
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen = seen & (j <= p)
    if window[0] >= 0:
        seen = seen & (j >= p - window[0])
    if window[1] >= 0:
        seen = seen & (j <= p + window[1])
    if mask is not None:
        seen = seen & mask
    x = torch.where(seen, x, -math.inf)
    lse = x.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
    dead = (x == -math.inf).all(-1)
    weights = torch.exp(x - torch.where(dead, 0.0, lse)[..., None])
    return torch.where(dead[..., None], 0.0, weights @ v), lse


# ---- One line a fact: row, what it shows, shape, options of the call, what the package must have received ----

B, H, G, SQ, SKV, D = 2, 4, 2, 9, 13, 64
Shape = namedtuple("Shape", "b hq hkv sq skv d")
PLAIN, SQUARE = Shape(B, H, H, SQ, SKV, D), Shape(B, H, H, SQ, SQ, D)
GROUPS, TALL = Shape(B, H, G, SQ, SKV, D), Shape(B, H, H, SKV, SQ, D)
EIGHTS = Shape(B, H, H, 16, 16, D)      # a bias whose rows are multiples of 16 bytes
BF16 = ("hub.aiter_ck",)


def mask_of(shape, rows_without_keys=True):
    mask = torch.rand(shape.b, shape.hq, shape.sq, shape.skv, generator=torch.Generator().manual_seed(5)) > 0.3
    if rows_without_keys:
        mask[:, :, 2] = False
    return mask


def bias_of(shape, dtype=torch.float16, last=2):
    full = (shape.b, shape.hq, shape.sq, shape.skv) if last == 4 else (shape.sq, shape.skv)
    return torch.randn(*full, generator=torch.Generator().manual_seed(6)).to(dtype)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINKS = torch.tensor([0.3, -0.2, 1.0, 0.0])
Line = namedtuple("Line", "row what shape options received lse", defaults=({}, None, True))
FLASH = ("fa2", "fa3", "fa4", "hub.fa2.cuda", "hub.fa3")
LINES = [Line(row, *rest) for row in FLASH for rest in (
    ("layout bshd, lse (B,H,S)", PLAIN),
    ("fewer kv heads", GROUPS),
    ("corner bottom right", PLAIN, {"causal": "br"}),
    ("rows without keys: 0 and -inf", TALL, {"causal": "br"}),
    ("one query row", PLAIN._replace(sq=1), {"causal": "br"}),
    ("window of both ends", PLAIN, {"window": (3, 2), "align": "br"}),
    ("window of the left end", PLAIN, {"window": (3, -1), "align": "br"}),
    ("window of the right end", PLAIN, {"window": (-1, 2), "align": "br"}),
    ("causal as a window", PLAIN, {"window": (-1, 0), "align": "br"}),
    ("causal with a window", PLAIN, {"causal": "br", "window": (3, -1)}),
    ("causal with a wide window", PLAIN, {"causal": "br", "window": (3, 4)}),
    ("a window of one key", PLAIN, {"window": (0, 0), "align": "br"}),
    ("scale", PLAIN, {"scale": 0.3}),
    ("soft cap", PLAIN, {"softcap": 3.0}),
)]
LINES += [Line("hub.fa4", "layout bshd", PLAIN), Line("hub.fa4", "corner bottom right", PLAIN, {"causal": "br"})]
LINES += [Line(row, *rest) for row in ("fa2", "hub.fa2.cuda") for rest in (
    ("alibi from the bottom right", PLAIN, {"slopes": SLOPES, "align": "br"}),
    ("alibi of each batch entry", PLAIN, {"slopes": torch.stack([SLOPES, SLOPES * 2]), "align": "br"}),
    ("dropout stays exactly 0 where lse is asked for", PLAIN, {"softcap": 3.0}, lambda got: got["dropout_p"] == 0.0),
    ("scale of the width given", PLAIN._replace(d=60), {}, lambda got: got["softmax_scale"] == 60 ** -0.5),
)]
LINES += [
    Line("fa4", "sinks", PLAIN, {"sinks": SINKS}),
    Line("fa4", "sinks and rows without keys", TALL, {"sinks": SINKS, "causal": "br"}),
    Line("fa4", "open sides are None", PLAIN, {"window": (3, -1), "align": "br"},
         lambda got: got["window_size"] == (3, None)),
    Line("hub.fa2.xpu", "window", PLAIN, {"window": (3, 2), "align": "br"}),
    *(Line(row, *rest) for row in ("sage.auto", "sage.fp16_cuda", "sage.triton", "sage.fp8_cuda", "sage.fp8_sm90",
                                   "hub.sage") for rest in (
        ("layout hnd, lse natural", PLAIN, {}, lambda got: got["tensor_layout"] == "HND" and not got["swallowed"]),
        ("fewer kv heads", GROUPS),
        ("causal where the corners agree", SQUARE, {"causal": True}, lambda got: got["is_causal"]),
        ("causal as a window goes as causal", SQUARE, {"window": (-1, 0)}, lambda got: got["is_causal"]),
        ("scale", PLAIN, {"scale": 0.3}, lambda got: got["sm_scale"] == 0.3))),
    Line("sage.triton", "a mask in full, rows without keys are 0 and -inf", PLAIN, {"mask": mask_of(PLAIN)}),
    Line("sage3", "layout hnd, the fixed scale", SQUARE, {}, lambda got: not got["swallowed"], False),
    *(Line(row, *rest) for row in ("mslk.auto", "mslk.cutlass", "mslk.fa2") for rest in (
        ("layout bmhk, lse cut to the rows", PLAIN),
        ("groups as a fifth axis", GROUPS, {}, lambda got: got["query"].dim() == 5),
        ("corner bottom right", PLAIN, {"causal": "br"},
         lambda got: type(got["attn_bias"]).__name__ == "LowerTriangularFromBottomRightMask"),
        ("rows without keys", TALL, {"causal": "br"}),
        ("a causal window counts its keys", PLAIN, {"causal": "br", "window": (3, -1)},
         lambda got: got["attn_bias"]._window_size == 4),
        ("a window of both ends", PLAIN, {"window": (3, 2), "align": "br"},
         lambda got: (got["attn_bias"].window_left, got["attn_bias"].window_right) == (3, 2)),
        ("a window of the right end", PLAIN, {"window": (-1, 2), "align": "br"}),
        ("scale", GROUPS, {"scale": 0.3}))),
    *(Line(row, *rest) for row in ("mslk.auto", "mslk.cutlass") for rest in (
        ("corner top left", PLAIN, {"causal": "tl"},
         lambda got: type(got["attn_bias"]).__name__ == "LowerTriangularMask"),
        ("bias in full", EIGHTS, {"bias": bias_of(EIGHTS, last=4)}),
        ("bias of groups", EIGHTS._replace(hkv=G), {"bias": bias_of(EIGHTS, last=4)}),
        ("bias with causal", EIGHTS, {"bias": bias_of(EIGHTS, last=4), "causal": True}))),
    Line("mslk.auto", "fp32 is kept", PLAIN, {}, lambda got: got["query"].dtype == torch.float16),
    *(Line("mslk." + name, "the member is named", PLAIN, {},
           lambda got, op=op: got["op"] is not None and (got["op"][0] if isinstance(got["op"], tuple) else
                                                         got["op"]).NAME == op)
      for name, op in (("cutlass", "cutlassF"), ("fa2", "fa2F"), ("fa3", "fa3F"), ("splitk", "triton_splitKF"),
                       ("blackwell", "cutlass-blackwellF"))),
    Line("aiter.ck", "layout bshd", PLAIN, {}, lambda got: got["window_size"] == (-1, -1, 0)),
    Line("aiter.ck", "fewer kv heads", GROUPS),
    Line("aiter.ck", "corner bottom right, rows without keys", TALL, {"causal": "br"}),
    Line("aiter.ck", "window", PLAIN, {"window": (3, 2), "align": "br"}, lambda got: got["window_size"] == (3, 2, 0)),
    Line("aiter.ck", "causal as a window goes as causal", PLAIN, {"window": (-1, 0), "align": "br"},
         lambda got: got["causal"] and got["window_size"] == (-1, -1, 0)),
    Line("hub.aiter_ck", "causal as a window goes as causal", PLAIN, {"window": (-1, 0), "align": "br"}),
    Line("aiter.ck", "a bias of two axes", PLAIN, {"bias": bias_of(PLAIN)},
         lambda got: tuple(got["bias"].shape) == (SQ, SKV)),
    Line("aiter.ck", "alibi", PLAIN, {"slopes": SLOPES, "align": "br"}),
    Line("aiter.ck", "sinks", PLAIN, {"sinks": SINKS}, lambda got: got["sink_ptr"] is not None),
    Line("hub.aiter_ck", "corner, sinks, no unknown keyword", PLAIN, {"causal": "br", "sinks": SINKS},
         lambda got: not got["swallowed"]),
    Line("npu", "scale is always passed", SQUARE, {}, lambda got: got["scale"] == D ** -0.5, False),
    Line("npu", "True of the mask is dropped there", SQUARE, {"mask": mask_of(SQUARE, False)}, None, False),
    Line("npu", "causal is not dropped", SQUARE, {"causal": True}, lambda got: got["sparse_mode"] == 2, False),
    Line("npu", "causal as a window", SQUARE, {"window": (-1, 0)}, None, False),
    Line("npu", "window as a band", SQUARE, {"window": (3, 2)}, lambda got: got["sparse_mode"] == 4, False),
    Line("npu", "an open side has no small bound", SQUARE, {"window": (3, -1)},
         lambda got: got["next_tockens"] == 2147483647, False),
    Line("npu", "fewer kv heads", Shape(B, H, G, SQ, SQ, D), {}, None, False),
]
_FLEX_LINES = (
    ("corner top left", PLAIN, {"causal": "tl"}),
    ("corner bottom right, rows without keys", TALL, {"causal": "br"}),
    ("an offset", PLAIN, {"causal": "off:3"}),
    ("window", PLAIN, {"window": (3, 2), "align": "br"}),
    ("soft cap, lse to base e", GROUPS, {"softcap": 2.0, "causal": "br"}),
    ("alibi", PLAIN, {"slopes": SLOPES, "align": "br"}),
    ("mask", PLAIN, {"mask": mask_of(PLAIN)}),
    ("bias with -inf", PLAIN, {"bias": bias_of(PLAIN).masked_fill(mask_of(PLAIN)[0, 0], -math.inf)}),
    ("bias of a broadcast shape, mask and soft cap", GROUPS,
     {"bias": bias_of(GROUPS), "mask": mask_of(GROUPS), "softcap": 2.0}),
    ("scale below 0", PLAIN, {"scale": -0.3}),
    ("scale 0", PLAIN, {"scale": 0.0}),
)
LINES += [Line("flex", *rest) for rest in _FLEX_LINES]


def names_of(lines):
    return [f"{line.row}: {line.what}" for line in lines]


def tensors(shape, dtype=torch.float16, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape.b, heads, length, shape.d, generator=draw).to(dtype)
            for heads, length in ((shape.hq, shape.sq), (shape.hkv, shape.skv), (shape.hkv, shape.skv))]


def expected(line, q, k, v):
    options = dict(line.options)
    corner = options.pop("align", None)
    causal = options.pop("causal", None)
    corner = causal if isinstance(causal, str) else corner
    off = int(corner[4:]) if corner and corner.startswith("off") else k.shape[2] - q.shape[2] if corner == "br" else 0
    return formula(q, k, v, off=off, causal=bool(causal), **options)


def compare(line, fakes):
    dtype = torch.bfloat16 if line.row in BF16 else torch.float16
    q, k, v = tensors(line.shape, dtype)
    before = [t.clone() for t in (q, k, v)]
    result = rapt.torch.sdpa(q, k, v, enable_gqa=True, require=line.row, return_lse=line.lse, **line.options)
    out, lse = result if line.lse else (result, None)
    want, want_lse = expected(line, q, k, v)
    assert out.dtype is dtype and out.shape == want.shape
    bound = 4e-3 if dtype is torch.float16 else 3e-2
    torch.testing.assert_close(out.double(), want, atol=bound, rtol=bound)
    if line.lse:
        assert lse.dtype is torch.float32
        torch.testing.assert_close(lse.double(), want_lse, atol=1e-4, rtol=1e-5)
    for tensor, old in zip((q, k, v), before):
        assert torch.equal(tensor, old), "an operand was changed in place"
    report = rapt.last_report()
    assert report.row == line.row and report.json["chosen"]["row"] == line.row
    assert rapt.torch.context.entered()[line.row] == 1          # R1
    if line.row != "flex":
        assert len(fakes.calls) == 1, "the package was not reached, or more than once"
    if line.received is not None:
        assert line.received(fakes.calls[0][1]), fakes.calls[0][1]


@pytest.mark.parametrize("line", LINES, ids=names_of(LINES))
def test_a_package_computes_the_contract_h9_to_h13(monkeypatch, line):
    compare(line, stand(monkeypatch, line.row))
