# SPDX-License-Identifier: Apache-2.0
"""The hub's loader without a hub: the same fakes under the names of the kernels, and AITER's, which ignores keywords."""

import importlib
import math
import types

import rapt_fakes as fakes

_OF = {"flash-attn2": "flash_attn", "flash-attn3": "flash_attn_interface", "flash-attn4": "flash_attn.cute",
       "sage-attention": "sageattention"}


def get_kernel(repo_id, revision=None, version=None):
    name = repo_id.split("/")[1]
    if name == "aiter-flash-attn-ck":
        return types.SimpleNamespace(flash_attn_func=_aiter_ck)
    return importlib.import_module(_OF[name])


def _aiter_ck(q, k, v, softmax_scale=None, causal=False, s_aux=None, return_attn_probs=False, **swallowed):
    fakes.record("hub.aiter_ck", q=q, k=k, v=v, softmax_scale=softmax_scale, causal=causal, s_aux=s_aux,
                 return_attn_probs=return_attn_probs, swallowed=swallowed)
    a, b, c = (t.transpose(1, 2) for t in (q, k, v))
    sq, skv = a.shape[2], b.shape[2]
    out, lse = fakes.attend(a, b, c, softmax_scale, fakes.span(sq, skv, skv - sq, -1, 0 if causal else -1), None, 0.0,
                            s_aux, empty=math.inf)
    out = out.transpose(1, 2)
    return fakes.done("hub.aiter_ck", (out, lse) if return_attn_probs else out)
