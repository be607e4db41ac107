# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for hand-written attention dispatch: a named place of a model that asks at every call what may run it."""

from . import _call
from ._errors import refuse
from ._site_base import (AttentionSite, Call, check_floating, check_rank, check_sizes,  # noqa: F401
                         sites)
from ._site_wan import WanSite


def _one_mask(mask, keywords):
    """The mask under either of its names; both are refused."""
    other = keywords.get("attn_mask")
    if mask is not None and other is not None:
        raise refuse("attn_mask", "given twice, also as mask", "give one of the two")
    return other if mask is None else mask


class _DenseSite(AttentionSite):
    """site(q, k, v, mask=None, **keywords): [B,S,H,D] tensors in and out."""

    FORM, ROW, HEAD = "(B, S, H, D)", 1, 2

    @staticmethod
    def _heads_first(t):
        return t.transpose(1, 2)

    def _described(self, q, k, v, mask=None, **keywords):
        check_floating(q=q, k=k, v=v)
        check_rank(4, self.FORM, q=q, k=k, v=v)
        check_sizes(q, k, v, self.HEAD, self.ROW)
        if keywords.get("enable_gqa") is None:
            keywords["enable_gqa"] = True
        keywords["attn_mask"] = _one_mask(mask, keywords)

        def finish(result):
            if isinstance(result, tuple):
                return self._heads_first(result[0]), result[1]
            return self._heads_first(result)
        return Call(*(self._heads_first(t) for t in (q, k, v)), keywords, finish)

    def __call__(self, q, k, v, mask=None, **keywords):
        """Attention of q [B,Sq,H,D], k [B,Skv,Hkv,D], v [B,Skv,Hkv,Dv] in fp16, bf16, fp32 or fp64, H a multiple of
        Hkv; [B,Sq,H,Dv], heads first in a site of layout "bhsd". mask: bool, True = may attend, or floating and added;
        it broadcasts against [B,H,Sq,Skv]. The keywords are those of rapt.torch.sdpa. ArgumentError for a wrong call,
        RefusedError where nothing that the site permits can run it."""
        return self._attend(q, k, v, mask, **keywords)


class _HeadsFirstSite(_DenseSite):
    """The same for [B,H,S,D]."""

    FORM, ROW, HEAD = "(B, H, S, D)", 2, 1

    @staticmethod
    def _heads_first(t):
        return t


class _PackedHeadsSite(AttentionSite):
    """site(q, k, v, num_heads, compatibility_mode=False, mask=None, **keywords): [B,S,H*D] tensors in and out."""

    def _described(self, q, k, v, num_heads, compatibility_mode=False, mask=None, **keywords):
        check_floating(q=q, k=k, v=v)
        check_rank(3, "(B, S, H*D)", q=q, k=k, v=v)
        heads = _call.integer(num_heads, "num_heads", "a number of heads is needed", "HEADS", 1)
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.shape[-1] % heads:
                raise refuse(name, f"{t.shape[-1]} wide", f"a multiple of num_heads={heads} is needed", "HEADS")
        if k.shape[-1] != q.shape[-1] or v.shape[1] != k.shape[1]:
            raise refuse("k", f"of shape {tuple(k.shape)}", f"its last axis must be q's {q.shape[-1]}, and its rows v's "
                         f"{v.shape[1]}", "SHAPE")
        if _call.flag(compatibility_mode, "compatibility_mode"):
            if keywords.get("prefer") is not None:
                raise refuse("compatibility_mode", "True beside prefer", "give one of the two")
            keywords["prefer"] = "torch.sdpa"
        keywords["attn_mask"] = _one_mask(mask, keywords)
        q, k, v = (t.unflatten(-1, (heads, t.shape[-1] // heads)).transpose(1, 2) for t in (q, k, v))

        def finish(result):
            if isinstance(result, tuple):
                return result[0].transpose(1, 2).flatten(2), result[1]
            return result.transpose(1, 2).flatten(2)
        return Call(q, k, v, keywords, finish)

    def __call__(self, q, k, v, num_heads, compatibility_mode=False, mask=None, **keywords):
        """Attention of q [B,Sq,H*D], k [B,Skv,H*D], v [B,Skv,H*Dv] in fp16, bf16, fp32 or fp64 with H = num_heads;
        [B,Sq,H*Dv]. compatibility_mode: the host's own operator goes before every preference. mask and keywords as for a
        site of layout "bshd"."""
        return self._attend(q, k, v, num_heads, compatibility_mode, mask, **keywords)


_LAYOUTS = {"wan": WanSite, "bshd": _DenseSite, "bhsd": _HeadsFirstSite, "bs(hd)": _PackedHeadsSite}


def attention_site(name, *, layout="wan", prefer=None, otherwise=None, require=None, forbid=None, family=None):
    """A callable for one place of a model, by name, that takes the place of a hand-written dispatch function.

    layout says how it is called and how tensors lie: "wan", flash_attention(q, k, v, q_lens, k_lens, ..) on [B,L,N,C];
    "bshd" and "bhsd", (q, k, v, mask); "bs(hd)", (q, k, v, num_heads, compatibility_mode, mask) on [B,S,H*D].
    prefer: rows by name, tried first at every call, in this order; one that cannot take a call is passed over with its
    reasons. otherwise: the rows that may run where those cannot, and no others; to name a row so is also the consent to
    its accuracy (N7). require, forbid: as in rapt.policy. Where a scope or the call itself says something, that holds.
    family: the problem that report lines speak of. ArgumentError for a name that nobody has."""
    made = _LAYOUTS.get(layout) if isinstance(layout, str) else None
    if made is None:
        raise refuse("layout", repr(layout), "one of " + ", ".join(map(repr, _LAYOUTS)) + " is needed")
    return made(name, prefer, otherwise, require, forbid, family)
