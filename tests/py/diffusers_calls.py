# SPDX-License-Identifier: Apache-2.0
"""Calls of diffusers' attention dispatcher for the tests of the backend "rapt", and what they are held against."""

import diffusers
import oracle_np
import pytest
import rapt
import rapt.diffusers
import torch
from diffusers.models import attention_dispatch as dispatch

registry, Backend = dispatch._AttentionBackendRegistry, dispatch.AttentionBackendName
attend, attention_backend = dispatch.dispatch_attention_fn, dispatch.attention_backend
NATIVE, RAPT = Backend.NATIVE, Backend("rapt")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {FP16: "fp16", BF16: "bf16", FP32: "fp32", torch.float64: "fp64"}
TABLES = ("_backends", "_constraints", "_supported_arg_names")


@pytest.fixture(autouse=True)
def clean():
    torch.manual_seed(5)
    torch._dynamo.reset()
    level = diffusers.logging.get_verbosity()
    diffusers.logging.set_verbosity_error()
    active = registry._active_backend
    before = [dict(getattr(registry, table)) for table in TABLES]
    yield
    diffusers.logging.set_verbosity(level)
    registry.set_active_backend(active)
    assert before == [getattr(registry, table) for table in TABLES]     # nothing is left behind


def rand(*shape, dtype=FP32):
    return (torch.rand(shape) * 2 - 1).to(dtype)


def qkv(b=2, sq=5, skv=7, h=4, kv=4, d=8, dv=None, dtype=FP32):
    return rand(b, sq, h, d, dtype=dtype), rand(b, skv, kv, d, dtype=dtype), rand(b, skv, kv, dv or d, dtype=dtype)


def call(q, k, v, **kw):
    return attend(q, k, v, backend="rapt", **kw)


def numpy(tensor):
    return tensor.detach().transpose(1, 2).to(torch.float64).numpy()


def within(out, q, k, v, **oracle):
    """N13 against the written formula, in the layout of the host (H1, H2)."""
    o, lse, bound, bound_lse = oracle_np.attention(numpy(q), numpy(k), numpy(v), dtype=NAMES[q.dtype], **oracle)
    if isinstance(out, tuple):
        oracle_np.check(numpy(out[1][..., None])[..., 0], lse, bound_lse)
        out = out[0]
    oracle_np.check(numpy(out), o, bound)


def own():
    return rapt.last_report().row.startswith("cpu.") or rapt.last_report().row == "ref"


def refused(code, words, *args, **kw):
    with pytest.raises(rapt.ArgumentError, match=words) as caught:
        call(*args, **kw)
    assert caught.value.code == code
    return str(caught.value)
