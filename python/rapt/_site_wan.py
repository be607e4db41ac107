# SPDX-License-Identifier: Apache-2.0
"""Sites called as Wan's attention module calls its functions: [B,L,N,C], lengths, casts to a half dtype."""

import torch

from . import _call
from ._errors import refuse
from ._site_base import AttentionSite, Call, check_floating, check_rank, check_sizes, spelling
from ._torch_request import MEMORY_LIMIT, dtype_name

_HALF = (torch.float16, torch.bfloat16)
_VERSIONS = {None: None, 2: "fa2", 3: "fa3", 4: "fa4"}


def _version(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, type(None))) or value not in _VERSIONS:
        raise refuse(name, repr(value), "None, 2, 3 or 4 is needed; it says which flash-attention goes first", "VERSION")
    return _VERSIONS[value]


def _cast(q, k, v, dtype):
    """What is not half becomes dtype, then q and k get v's dtype: (q, k, v, what was done)."""
    if dtype not in _HALF:
        raise refuse("dtype", dtype_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype),
                     "torch.float16 or torch.bfloat16 is needed", "DTYPE")
    common = v.dtype if v.dtype in _HALF else dtype
    notes = []
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype != common:
            notes.append(f"{name} cast from {dtype_name(t.dtype)} to {dtype_name(common)}")
    # By way of dtype, as the functions do that this stands for: fp32 to bf16 to fp16 rounds twice.
    q, k, v = (t if t.dtype in _HALF else t.to(dtype) for t in (q, k, v))
    return q.to(common), k.to(common), v, notes


def _lengths(lens, name, batch):
    """Lengths [B] where the core reads them, on the host."""
    want = f"{batch} integers, int32 or int64, are needed, one a sample"
    if lens is None:
        return None
    if not isinstance(lens, torch.Tensor):
        if not isinstance(lens, (list, tuple)) or not all(type(n) is int for n in lens):
            raise refuse(name, repr(lens), want, "LENGTHS")
        if not all(-2**63 <= n < 2**63 for n in lens):
            raise refuse(name, repr(lens), want, "LENGTHS")
        lens = torch.tensor(lens, dtype=torch.int64)
    if lens.dtype not in (torch.int32, torch.int64):
        raise refuse(name, dtype_name(lens.dtype), want, "LENGTHS")
    if lens.dim() != 1 or lens.shape[0] != batch:
        raise refuse(name, f"of shape {tuple(lens.shape)}", want, "SHAPE")
    if lens.is_meta:
        raise refuse(name, "on meta, without data", want, "DEVICE")
    return lens.to("cpu")


def _window(window_size):
    if window_size is None:
        return None
    left, right = _pair(window_size)
    return None if left == right == -1 else (left, right)


def _pair(window_size):
    want = "two integers are needed, left and right, -1 for an open side"
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise refuse("window_size", repr(window_size), want, "WINDOW")
    return tuple(_call.integer(side, "window_size", want, "WINDOW", -1) for side in window_size)


class WanSite(AttentionSite):
    """site(q, k, v, q_lens, k_lens, ..), also as site.flash_attention; site.attention differs in a name only."""

    NAMES = spelling(scale="softmax_scale", window="window_size", q_len="q_lens", kv_len="k_lens", align="causal",
                     determinism="deterministic")

    def _described(self, q, k, v, q_lens=None, k_lens=None, dropout_p=0.0, softmax_scale=None, q_scale=None,
                   causal=False, window_size=(-1, -1), deterministic=False, dtype=torch.bfloat16, version=None,
                   name="version"):
        first = _version(version, name)
        check_floating(q=q, k=k, v=v)
        check_rank(4, "(B, L, N, C)", q=q, k=k, v=v)
        check_sizes(q, k, v, 2, 1)
        kept, batch = q.dtype, q.shape[0]
        for said, t in (("k", k), ("v", v)):
            if t.shape[0] != batch:
                raise refuse(said, f"of {t.shape[0]} samples", f"q has {batch}", "SHAPE")
        q, k, v, notes = _cast(q, k, v, dtype)
        if q_scale is not None:
            q = self._scaled(q, q_scale)
            notes.append("q multiplied by q_scale")
        keywords = {"dropout_p": dropout_p, "scale": softmax_scale, "enable_gqa": True, "window": _window(window_size)}
        if _call.flag(causal, "causal"):
            keywords["causal"] = "br"
        elif keywords["window"] is not None:
            keywords["align"] = "br"
        if _call.flag(deterministic, "deterministic"):
            keywords["determinism"] = "run"
        lengths = _lengths(q_lens, "q_lens", batch), _lengths(k_lens, "k_lens", batch)
        if kept != v.dtype:
            notes.append(f"result cast to {dtype_name(kept)}")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return Call(q, k, v, keywords, lambda out: out.transpose(1, 2).to(kept), notes, first,
                    lengths if lengths != (None, None) else None)

    @staticmethod
    def _scaled(q, q_scale):
        """q_scale: a number, or a tensor that broadcasts against q without making it larger."""
        if isinstance(q_scale, torch.Tensor):
            fits = q_scale.dim() <= 4 and all(n in (1, m) for n, m in zip(reversed(q_scale.shape), reversed(q.shape)))
            if not fits or not (q_scale.is_floating_point() or q_scale.dtype in (torch.int32, torch.int64)):
                raise refuse("q_scale", f"{dtype_name(q_scale.dtype)} of shape {tuple(q_scale.shape)}",
                             f"a number, or numbers that broadcast against q {tuple(q.shape)}, are needed", "SCALE")
            return (q * q_scale).to(q.dtype)
        return q * _call.number(q_scale, "q_scale")

    def flash_attention(self, q, k, v, q_lens=None, k_lens=None, dropout_p=0.0, softmax_scale=None, q_scale=None,
                        causal=False, window_size=(-1, -1), deterministic=False, dtype=torch.bfloat16, version=None):
        """Attention of q [B,Lq,N,C], k [B,Lk,Nk,C], v [B,Lk,Nk,C2]; [B,Lq,N,C2] in q's dtype. N is a multiple of Nk.

        What is not fp16 or bf16 is cast to dtype, q and k then to v's dtype. q_lens, k_lens: [B] used rows of q, and of
        k and v; rows of q beyond q_lens, and rows that see no key, are 0. causal and window_size (left, right; inclusive,
        -1 open) count from the bottom right corner of each sample. version: 2, 3 or 4 puts that flash-attention before
        the site's own preference, and requires nothing. ArgumentError, RefusedError: as for every site."""
        return self._attend(q, k, v, q_lens, k_lens, dropout_p, softmax_scale, q_scale, causal, window_size,
                            deterministic, dtype, version)

    __call__ = flash_attention

    def attention(self, q, k, v, q_lens=None, k_lens=None, dropout_p=0.0, softmax_scale=None, q_scale=None,
                  causal=False, window_size=(-1, -1), deterministic=False, dtype=torch.bfloat16, fa_version=None):
        """flash_attention by its other name; fa_version is its version."""
        return self._attend(q, k, v, q_lens, k_lens, dropout_p, softmax_scale, q_scale, causal, window_size,
                            deterministic, dtype, fa_version, "fa_version")

    def _dtypes(self, dtypes):
        """A line speaks of what is sent on: half dtypes only."""
        if dtypes is None:
            return "fp16,bf16"
        return ",".join(name if name in ("fp16", "bf16") or not name.startswith("fp") else "bf16"
                        for name in dtypes.split(","))

    # ---- Under torch.compile ----

    def _as_mask(self, call):
        """A graph with gradients or dropout, or for the host's operator alone, says lengths, causal and window as one
        mask, which is how that operator takes them; else they are arguments."""
        graph = torch.is_grad_enabled() and (call.q.requires_grad or call.k.requires_grad or call.v.requires_grad)
        if not (graph or call.keywords["dropout_p"] or not self.own_rows):
            return False
        return _positional(call) or call.lengths is not None

    def _fits_graph(self, call):
        """Whether that mask is within the memory a call may use (D17)."""
        if not _positional(call) or not self._as_mask(call):
            return True
        samples = 1 if call.lengths is None else call.q.shape[0]
        return samples * call.q.shape[2] * call.k.shape[2] <= MEMORY_LIMIT

    def _traced(self, call):
        if call.lengths is not None:
            _assert_lengths(call)
        if self._as_mask(call):
            return self._masked(call)
        if call.lengths is not None:
            call.keywords["q_len"], call.keywords["kv_len"] = call.lengths
        return super()._traced(call)

    def _masked(self, call):
        q, k, v, keywords = call.q, call.k, call.v, dict(call.keywords)
        keywords["attn_mask"] = _seen(call)
        keywords.update(causal=None, window=None, align=None)
        q_len, k_len = call.lengths if call.lengths is not None else (None, None)
        finish = call.finish
        if k_len is not None:                       # padding may hold anything, and 0 times NaN is NaN
            k, v = k.masked_fill(_unused(k, k_len), 0), v.masked_fill(_unused(v, k_len), 0)
        if q_len is not None:
            padding = _unused(q, q_len)
            q = q.masked_fill(padding, 0)

            def finish(out):
                return call.finish(out.masked_fill(padding, 0))
        return super()._traced(Call(q, k, v, keywords, finish, call.notes, call.first))


def _unused(t, lengths):
    """Rows of t [B,H,S,D] beyond the lengths [B], as [B,1,S,1]."""
    return (torch.arange(t.shape[2]) >= lengths[:, None])[:, None, :, None]


def _assert_lengths(call):
    """Values are known when a graph runs; a length out of range is an error then."""
    for lengths, of, name in zip(call.lengths, (call.q, call.k), ("q_lens", "k_lens")):
        if lengths is not None:
            torch._assert_async(((lengths >= 0) & (lengths <= of.shape[2])).all(), f"LENGTHS: {name} is outside 0..L")


def _positional(call):
    return call.keywords.get("causal") is not None or call.keywords["window"] is not None


def _seen(call):
    """Which keys each row may see: bool [B or 1, 1, Sq or 1, Skv] (M5, M6, M7)."""
    sq, skv = call.q.shape[2], call.k.shape[2]
    q_len, k_len = call.lengths if call.lengths is not None else (None, None)
    used_q = torch.tensor([sq]) if q_len is None else q_len
    used_k = torch.tensor([skv]) if k_len is None else k_len
    j = torch.arange(skv)
    seen = (j < used_k[:, None])[:, None, None, :]
    if _positional(call):
        i = torch.arange(sq)[:, None] + (used_k - used_q)[:, None, None]
        distance = (j - i)[:, None]
        left, right = call.keywords["window"] or (-1, -1)
        if call.keywords.get("causal") is not None:
            right = 0
        if right >= 0:
            seen = seen & (distance <= right)
        if left >= 0:
            seen = seen & (distance >= -left)
    return seen
