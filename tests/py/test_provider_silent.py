# SPDX-License-Identifier: Apache-2.0
"""What packages accept and silently get wrong (docs/backends.md, marks X and no): each is refused with its code before the
package is called, or said in the way that works. One line a fact. Packed calls are here too."""

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from test_provider_conventions import (D, EIGHTS, GROUPS, PLAIN, SINKS, SLOPES, SQUARE, Shape, bias_of, formula,  # noqa: E402
                                       mask_of, stand, tensors)

Refused = namedtuple("Refused", "row what shape options codes dtype grad", defaults=(torch.float16, False))
MASK, BIAS = {"mask": mask_of(SQUARE)}, {"bias": bias_of(SQUARE, last=4)}
_NO_MASK = ("fa2", "fa3", "fa4", "sage.auto", "sage.fp16_cuda", "sage.fp8_cuda", "sage.fp8_sm90", "sage3", "mslk.auto",
            "mslk.fa2", "aiter.ck", "hub.fa2.cuda", "hub.fa3", "hub.fa4", "hub.sage", "hub.aiter_ck")
_SWALLOWS = ("sage.auto", "sage.fp16_cuda", "sage.triton", "sage.fp8_cuda", "sage.fp8_sm90", "hub.sage")
REFUSED = [Refused(row, "a mask", SQUARE, MASK, "MASK") for row in _NO_MASK]
REFUSED += [Refused(row, "a bias", SQUARE, BIAS, "BIAS") for row in
            ("fa2", "fa3", "fa4", "sage.auto", "sage.triton", "sage3", "mslk.fa2", "hub.fa3", "npu")]
REFUSED += [Refused(row, "fp32 tensors", SQUARE, {}, "DTYPE", torch.float32) for row in
            ("fa2", "fa3", "fa4", "sage.auto", "sage3", "mslk.fa2", "aiter.ck", "hub.fa2.cuda", "hub.aiter_ck")]
REFUSED += [Refused(row, "corner top left, unequal lengths", PLAIN, {"causal": "tl"}, "ALIGNMENT") for row in
            ("fa2", "fa3", "fa4", "hub.fa2.cuda", "hub.fa3", "aiter.ck", "mslk.fa2", "sage.auto")]
REFUSED += [Refused(row, "corner bottom right, unequal lengths", PLAIN, {"causal": "br"}, "ALIGNMENT") for row in _SWALLOWS]
REFUSED += [Refused(row, what, SQUARE, options, code) for row in _SWALLOWS for what, options, code in (
    ("a window, swallowed", {"window": (3, 2)}, "WINDOW"), ("a soft cap, swallowed", {"softcap": 3.0}, "SOFTCAP"),
    ("sinks, swallowed", {"sinks": SINKS}, "SINK"), ("dropout, swallowed", {"dropout": 0.5}, "DROPOUT"),
    ("alibi, swallowed", {"slopes": SLOPES}, "ALIBI"))]
REFUSED += [Refused(row, "a gradient, else detached", SQUARE, {}, "GRAD", torch.float16, True) for row in
            (*_SWALLOWS, "sage3")]
REFUSED += [Refused(row, "widths above 128", SQUARE._replace(d=136), {}, "HEAD_DIM") for row in _SWALLOWS]
REFUSED += [
    Refused("fa2", "soft cap with dropout", SQUARE, {"softcap": 3.0, "dropout": 0.5}, "SOFTCAP"),
    Refused("fa2", "sinks", SQUARE, {"sinks": SINKS}, "SINK"),
    Refused("fa2", "widths above 256", SQUARE._replace(d=264), {}, "HEAD_DIM"),
    Refused("fa2", "scale below 0", SQUARE, {"scale": -0.3}, "SCALE"),
    Refused("fa2", "scale 0, of which nobody knows", SQUARE, {"scale": 0.0}, "UNKNOWN_SUPPORT"),
    Refused("fa2", "an array of offsets", SQUARE, {"causal": True, "q_offset": torch.tensor([1, 2])}, "ALIGNMENT"),
    Refused("fa3", "dropout, dropped", SQUARE, {"dropout": 0.5}, "DROPOUT"),
    Refused("fa3", "alibi", SQUARE, {"slopes": SLOPES}, "ALIBI"),
    Refused("fa3", "a width that is never padded", SQUARE._replace(d=60), {}, "HEAD_DIM"),
    Refused("fa4", "dropout, dropped", SQUARE, {"dropout": 0.5}, "DROPOUT"),
    Refused("fa4", "alibi", SQUARE, {"slopes": SLOPES}, "ALIBI"),
    Refused("sage.triton", "an additive mask, which acts in base 2", SQUARE, BIAS, "BIAS"),
    Refused("sage.triton", "a mask with causal", SQUARE, {**MASK, "causal": True}, "MASK"),
    Refused("sage.triton", "a mask that is not expanded", SQUARE, {"mask": mask_of(SQUARE)[:1, :1]}, "BROADCAST"),
    Refused("sage3", "a scale, ignored", SQUARE, {"scale": 0.3}, "SCALE"),
    Refused("sage3", "a window, ignored", SQUARE, {"window": (3, 2)}, "WINDOW"),
    Refused("sage3", "fewer kv heads", Shape(2, 4, 2, 9, 9, D), {}, "HEADS"),
    Refused("sage3", "D 256, which would run SDPA", SQUARE._replace(d=256), {}, "HEAD_DIM"),
    Refused("sage3", "causal, of which nobody knows", SQUARE, {"causal": True}, "UNKNOWN_SUPPORT"),
    Refused("sage3", "lse", SQUARE, {"return_lse": True}, "LSE"),
    Refused("mslk.auto", "a bias that would be broadcast", EIGHTS, {"bias": bias_of(EIGHTS)}, "BROADCAST"),
    Refused("mslk.auto", "a bias of another dtype", EIGHTS, {"bias": bias_of(EIGHTS, torch.float32, 4)}, "BIAS"),
    Refused("mslk.auto", "soft cap", SQUARE, {"softcap": 3.0}, "SOFTCAP"),
    Refused("mslk.auto", "sinks", SQUARE, {"sinks": SINKS}, "SINK"),
    Refused("mslk.auto", "a gradient through groups", GROUPS, {}, "GRAD", torch.float16, True),
    Refused("mslk.fa3", "dropout", SQUARE, {"dropout": 0.5}, "DROPOUT"),
    Refused("mslk.splitk", "a dense causal call", PLAIN, {"causal": "br"}, "ALIGNMENT"),
    Refused("mslk.splitk", "a window with many rows", SQUARE._replace(sq=17, skv=17), {"window": (3, 2)}, "WINDOW"),
    Refused("aiter.ck", "a window with a side of 0, which is not seen", SQUARE, {"window": (0, 2)}, "WINDOW"),
    Refused("aiter.ck", "a causal window", SQUARE, {"causal": True, "window": (3, -1)}, "WINDOW"),
    Refused("aiter.ck", "soft cap in a dense call", SQUARE, {"softcap": 3.0}, "SOFTCAP"),
    Refused("aiter.ck", "bias and alibi", SQUARE, {"bias": bias_of(SQUARE), "slopes": SLOPES}, "ALIBI"),
    Refused("aiter.ck", "a bias of each head", SQUARE, BIAS, "BROADCAST"),
    Refused("aiter.ck", "a gradient with sinks, wrong there", SQUARE, {"sinks": SINKS}, "GRAD_SINK", torch.float16, True),
    Refused("npu", "lse", SQUARE, {"return_lse": True}, "LSE"),
    Refused("npu", "unequal lengths, of which nobody knows", PLAIN, {}, "UNKNOWN_SUPPORT"),
    Refused("npu", "a width that is no multiple of 16", SQUARE._replace(d=24), {}, "HEAD_DIM"),
    Refused("npu", "a mask with causal", SQUARE, {**MASK, "causal": True}, "MASK"),
    Refused("xla", "widths, of which nobody knows", SQUARE, {}, "UNKNOWN_SUPPORT", torch.bfloat16),
    Refused("xla", "unequal lengths, wrong there", PLAIN, {}, "ALIGNMENT", torch.bfloat16),
    Refused("xla", "dropout, dropped", SQUARE, {"dropout": 0.5}, "DROPOUT", torch.bfloat16),
    Refused("hub.fa2.xpu", "soft cap, not used there", SQUARE, {"softcap": 3.0}, "SOFTCAP"),
    Refused("hub.fa2.xpu", "alibi, not used there", SQUARE, {"slopes": SLOPES}, "ALIBI"),
    Refused("hub.fa4", "a window, newer than its beta", SQUARE, {"window": (3, 2)}, "UNKNOWN_SUPPORT"),
    Refused("hub.aiter_ck", "fp16, of which it has no kernel", SQUARE, {}, "DTYPE"),
    Refused("hub.aiter_ck", "D 256, of which it has no kernel", SQUARE._replace(d=256), {}, "HEAD_DIM", torch.bfloat16),
    Refused("hub.aiter_ck", "a window, ignored", SQUARE, {"window": (3, 2)}, "UNKNOWN_SUPPORT", torch.bfloat16),
    Refused("hub.fa2.cpu", "a dense call", SQUARE, {}, "PACKED"),
    Refused("flex", "dropout, dropped", SQUARE, {"dropout": 0.5}, "DROPOUT", torch.float32),
    Refused("flex", "a gradient on the CPU", SQUARE, {}, "GRAD", torch.float32, True),
    Refused("flex", "sinks, of which nobody knows", SQUARE, {"sinks": SINKS}, "UNKNOWN_SUPPORT", torch.float32),
]


@pytest.mark.parametrize("line", REFUSED, ids=[f"{line.row}: {line.what}" for line in REFUSED])
def test_it_is_refused_with_its_code_and_the_package_is_not_called_d12(monkeypatch, line):
    fakes = stand(monkeypatch, line.row)
    q, k, v = tensors(line.shape, line.dtype)
    if line.grad:
        for tensor in (q, k, v):
            tensor.requires_grad_()
    with pytest.raises(rapt.RefusedError) as caught:
        rapt.torch.sdpa(q, k, v, enable_gqa=True, require=line.row, **line.options)
    assert line.codes in caught.value.report.codes(line.row)
    assert fakes.calls == [] and not any(rapt.torch.context.entered().values())


# ---- Packed calls ----

PACKED = ("fa2.varlen", "fa3.varlen", "hub.fa2.varlen", "hub.fa3.varlen", "sage.varlen")
_ENDS_Q, _ENDS_K = [0, 4, 4, 9], [0, 6, 8, 11]      # one sequence without rows; the last q token is in none


def _packed(row, **options):
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, heads, D, generator=draw).to(torch.float16).transpose(0, 1)
               for n, heads in ((10, 4), (11, 2), (11, 2)))
    lse = options.get("return_lse")
    result = rapt.torch.sdpa(q, k, v, enable_gqa=True, cu_q=torch.tensor(_ENDS_Q), cu_k=torch.tensor(_ENDS_K, dtype=torch.int32),
                             require=row, **options)
    return q, k, v, *(result if lse else (result, None))


@pytest.mark.parametrize("row", PACKED)
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_m17(monkeypatch, row, causal):
    fakes = stand(monkeypatch, row)
    lse_too = row != "sage.varlen"
    options = {"causal": "br"} if causal else {}
    if causal and row == "sage.varlen":
        with pytest.raises(rapt.RefusedError):      # causal there wants equal lengths, which no metadata shows
            _packed(row, **options)
        return
    q, k, v, out, lse = _packed(row, return_lse=lse_too, **options)
    assert out.shape == q.shape and len(fakes.calls) == 1
    got = fakes.calls[0][1]
    assert got["cu_seqlens_q"].dtype is torch.int32 and (got["max_seqlen_q"], got["max_seqlen_k"]) == (5, 6)
    for a, b, c, d in zip(_ENDS_Q, _ENDS_Q[1:], _ENDS_K, _ENDS_K[1:]):
        if a == b:
            continue
        want, want_lse = formula(q[None, :, a:b], k[None, :, c:d], v[None, :, c:d], off=d - c - (b - a), causal=causal)
        torch.testing.assert_close(out[:, a:b].double(), want[0], atol=4e-3, rtol=4e-3)
        if lse_too:
            torch.testing.assert_close(lse[:, a:b].double(), want_lse[0], atol=1e-4, rtol=1e-5)
    assert not out[:, 9:].any()                     # a token of no sequence
    if lse_too:
        assert (lse[:, 9:] == -torch.inf).all()


def test_the_hosts_own_packed_operator(monkeypatch):
    """torch.varlen takes (T,H,D); its page says that lse is (T,H), the operator gives (H,T)."""
    import torch.nn.attention.varlen as module
    fakes = stand(monkeypatch, "fa2.varlen")

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
                    window_size=(-1, -1), **more):
        fakes.record("varlen_attn", cu_seq_q=cu_seq_q, max_q=max_q, window_size=window_size, **more)
        out, lse = fakes.packed(query, key, value, cu_seq_q, cu_seq_k, lambda a, b, c: fakes.attend(a, b, c, scale))
        return (out, lse) if return_aux is not None and return_aux.lse else out

    monkeypatch.setattr(module, "varlen_attn", varlen_attn)
    q = torch.randn(4, 10, D).half()
    ends = torch.tensor([0, 4, 9])
    out, lse = rapt.torch.sdpa(q, q, q, cu_q=ends, cu_k=ends, require="torch.varlen", return_lse=True, scale=0.2)
    for a, b in ((0, 4), (4, 9)):
        want, want_lse = formula(q[None, :, a:b], q[None, :, a:b], q[None, :, a:b], scale=0.2)
        torch.testing.assert_close(out[:, a:b].double(), want[0], atol=4e-3, rtol=4e-3)
        torch.testing.assert_close(lse[:, a:b].double(), want_lse[0], atol=1e-4, rtol=1e-5)
    assert not out[:, 9:].any() and len(fakes.calls) == 1
    with pytest.raises(rapt.RefusedError):                      # nobody recorded which corner it has
        rapt.torch.sdpa(q, q, q, cu_q=ends, cu_k=ends, require="torch.varlen", causal="br")


@pytest.mark.parametrize("options, code", [({"slopes": SLOPES, "align": "br"}, "ALIBI"), ({"softcap": 3.0}, "SOFTCAP"),
                                           ({"dropout": 0.5}, "DROPOUT"), ({"return_lse": True}, "LSE"),
                                           ({"window": (3, 2), "align": "br"}, "WINDOW"), ({}, "ISOLATION")])
def test_the_hubs_cpu_build_ignores_options_so_they_are_refused(monkeypatch, options, code):
    fakes = stand(monkeypatch, "hub.fa2.cpu")
    with pytest.raises(rapt.RefusedError) as caught:
        _packed("hub.fa2.cpu", **options)
    assert code in caught.value.report.codes("hub.fa2.cpu") and fakes.calls == []


# ---- Gradients ----

@pytest.mark.parametrize("row", ["fa2", "fa3", "fa4", "mslk.auto", "mslk.cutlass", "aiter.ck", "hub.fa2.cuda", "hub.fa3"])
def test_a_packages_autograd_graph_is_kept_d28(monkeypatch, row):
    stand(monkeypatch, row)
    q, k, v = (t.requires_grad_() for t in tensors(EIGHTS))
    out = rapt.torch.sdpa(q, k, v, require=row, causal="br")
    out.float().square().sum().backward()
    grads = [t.grad.double() for t in (q, k, v)]
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    formula(*wide, causal=True)[0].square().sum().backward()
    for got, want in zip(grads, (t.grad for t in wide)):
        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    assert rapt.last_report().row == row


# ---- Layouts of the caller ----

@pytest.mark.parametrize("row", ["fa2", "sage.auto", "mslk.auto", "flex"])
@pytest.mark.parametrize("rank", [3, 5])
def test_other_ranks_are_seen_as_four_axes(monkeypatch, row, rank):
    stand(monkeypatch, row)
    q, k, v = tensors(SQUARE)
    some = [t[0] if rank == 3 else t.unflatten(0, (1, 2)) for t in (q, k, v)]
    out, lse = rapt.torch.sdpa(*some, require=row, return_lse=True)
    want, want_lse = formula(q, k, v)
    shape = (lambda t: t[0]) if rank == 3 else (lambda t: t.unflatten(0, (1, 2)))
    torch.testing.assert_close(out.double(), shape(want), atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(lse.double(), shape(want_lse), atol=1e-4, rtol=1e-5)


def test_two_batch_axes_of_one_are_broadcast(monkeypatch):
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE._replace(b=6))
    k, v = k[:1], v[:1]
    out = rapt.torch.sdpa(q.unflatten(0, (3, 2)), k[None], v[None], require="fa2")
    want = formula(q, k.expand_as(q), v.expand_as(q))[0].unflatten(0, (3, 2))
    torch.testing.assert_close(out.double(), want, atol=4e-3, rtol=4e-3)


def test_a_batch_of_one_is_broadcast_without_a_copy_s4(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    out = rapt.torch.sdpa(q, k[:1], v[:1], require="fa2")
    torch.testing.assert_close(out.double(), formula(q, k[:1].expand_as(k), v[:1].expand_as(v))[0], atol=4e-3, rtol=4e-3)
    assert fakes.calls[0][1]["k"].data_ptr() == k.data_ptr()


@pytest.mark.parametrize("row", ["fa2", "fa4", "mslk.auto", "flex"])
def test_nothing_to_attend_is_answered_without_the_package_s6_s7(monkeypatch, row):
    fakes = stand(monkeypatch, row)
    q, k, v = tensors(SQUARE._replace(skv=0))
    out, lse = rapt.torch.sdpa(q, k, v, require=row, return_lse=True)
    assert not out.any() and (lse == -torch.inf).all() and fakes.calls == []
    q, k, v = tensors(SQUARE._replace(b=0))
    assert rapt.torch.sdpa(q, k, v, require=row).shape == q.shape and fakes.calls == []


def test_autocast_reaches_the_package_as_one_dtype_and_is_off_inside_a5_a13(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    seen = []
    fakes.spoil = lambda name, result: seen.append(torch.is_autocast_enabled("cpu")) or result
    q, k, v = tensors(SQUARE, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rapt.torch.sdpa(q, k, v.to(torch.bfloat16), require="fa2")
    assert {fakes.calls[0][1][name].dtype for name in "qkv"} == {torch.bfloat16} and out.dtype is torch.bfloat16
    assert seen == [False]


# ---- Rows that no call reaches yet: their conversions alone ----

def _call(q, k, v, **fields):
    from rapt._providers._run import Call
    call = Call()
    for name, value in dict(q=q, k=k, v=v, mask=None, bias=None, causal=False, window=(-1, -1), off=0, softcap=0.0,
                            scale=q.shape[-1] ** -0.5, dropout=0.0, sinks=None, slopes=None, lse=False, grad=False,
                            deterministic=False, cu_q=None, cu_k=None, ends=None, max_q=0, max_k=0, row="").items():
        setattr(call, name, fields.get(name, value))
    return call


def test_xla_is_given_its_scale_corner_and_bias(monkeypatch):
    import fake_device
    fakes = fake_device.on_path(monkeypatch, other=True)
    import torch_xla.experimental.custom_kernel as package
    from rapt import _providers
    q, k, v = tensors(SQUARE)
    bias = bias_of(SQUARE, last=4)
    out, lse = _providers.operators()["xla"](_call(q, k, v, bias=bias, causal=True, scale=0.3), package)
    torch.testing.assert_close(out.double(), formula(q, k, v, bias=bias, causal=True, scale=0.3)[0], atol=4e-3, rtol=4e-3)
    assert lse is None and fakes.calls[0][1]["sm_scale"] == 0.3


def test_the_hubs_cpu_build_is_given_no_keyword_that_it_ignores(monkeypatch):
    import fake_device
    fakes = fake_device.on_path(monkeypatch)
    fakes.on_device = True
    import flash_attn
    from rapt import _providers
    sent = []

    def only(*arguments, **keywords):
        sent.append(keywords)
        return flash_attn.flash_attn_varlen_func(*arguments, **keywords)

    q = torch.randn(9, 4, D).half()
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    call = _call(q, q, q, cu_q=ends, cu_k=ends, max_q=5, max_k=5, ends=([0, 4, 9],) * 2, causal=True)
    out, lse = _providers.operators()["hub.fa2.cpu"](call, type("kernel", (), {"flash_attn_varlen_func": staticmethod(only)}))
    assert set(sent[0]) == {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal"}
    heads = q.transpose(0, 1)[None]
    want = formula(heads[:, :, :4], heads[:, :, :4], heads[:, :, :4], causal=True)[0][0].transpose(0, 1)
    torch.testing.assert_close(out[:4].double(), want, atol=4e-3, rtol=4e-3)
    assert lse is None
