# SPDX-License-Identifier: Apache-2.0
"""diffusers' attention dispatcher with stand-ins for its backends: what they are given, and under which autocast."""

import contextlib
import types

import pytest
import torch
from diffusers.models import attention_dispatch as dispatch
from rapt import _diffusers_guard
from torch.nn import functional as F

registry, Backend = dispatch._AttentionBackendRegistry, dispatch.AttentionBackendName
attend = dispatch.dispatch_attention_fn         # held by name, as the models hold it
FLASH_TEXT = "FlashAttention only support fp16 and bf16 data type"
EVERY = sorted(registry._backends, key=lambda member: member.value)
OWN_CODE = attend.__code__
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


class Spy:
    """Stands for a backend's function. then: what it runs with the same arguments; without, it gives query back."""

    def __init__(self, then=None):
        self.calls, self.autocast, self._then = [], [], then
        self.__module__ = dispatch.__name__     # one of diffusers' own, as far as anybody can tell

    def __call__(self, **given):
        self.calls.append(given)
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        return given["query"] if self._then is None else self._then(**given)

    def dtypes(self, *names):
        return {self.calls[-1][name].dtype for name in names or ("query", "key", "value")}


def spy_on(monkeypatch, backend, then=None):
    """A Spy in the place of a backend's function, with the arguments that the dispatcher knows that one by."""
    spy = Spy(then)
    monkeypatch.setitem(registry._backends, backend, spy)
    return spy


def straight(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """A kernel called past the dispatcher of torch, as external packages are: no autocast acts on its inputs."""
    with torch.autocast("cpu", enabled=False):
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query, key, value)), attn_mask, dropout_p,
                                             is_causal, scale=scale, enable_gqa=enable_gqa)
    return out.transpose(1, 2)


def half_only(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
              _parallel_config=None):
    """straight(), for one half dtype in all three, as flash-attn."""
    if not query.dtype == key.dtype == value.dtype or query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(FLASH_TEXT)
    return straight(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def put(monkeypatch, backend, function, names, constraints=()):
    """A function in the place of a backend's, as _AttentionBackendRegistry.register would have it."""
    monkeypatch.setitem(registry._backends, backend, function)
    monkeypatch.setitem(registry._constraints, backend, list(constraints))
    monkeypatch.setitem(registry._supported_arg_names, backend, set(names))


HALF_ONLY = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", "_parallel_config")


def put_half_only(monkeypatch, backend=Backend.FLASH):
    put(monkeypatch, backend, half_only, HALF_ONLY,
        [dispatch._check_device, dispatch._check_qkv_dtype_bf16_or_fp16, dispatch._check_shape])
    return backend


# ---- Calls, with and without the guard ----

@pytest.fixture(autouse=True)
def clean():
    torch.manual_seed(3)
    yield
    assert attend.__code__ is OWN_CODE and _diffusers_guard._holders == 0       # no test leaves a guard behind


@pytest.fixture(params=[True, False], ids=["guarded", "fault"])
def guarded(request):
    with _diffusers_guard.guard() if request.param else contextlib.nullcontext():
        yield request.param


def must_fail(guarded, check):
    if guarded:
        check()
    else:
        with pytest.raises(AssertionError):
            check()


def qkv(*dtypes, heads=2, kv_heads=2, sq=4, sk=4, batch=1):
    q, k, v = dtypes if len(dtypes) == 3 else 3 * dtypes or 3 * (FP32,)
    return (torch.randn(batch, sq, heads, 8).to(q), torch.randn(batch, sk, kv_heads, 8).to(k),
            torch.randn(batch, sk, kv_heads, 8).to(v))


def autocast(dtype=BF16):
    return torch.autocast("cpu", dtype=dtype)


def parallel(ring=1, ulysses=1):
    both = types.SimpleNamespace(ring_degree=ring, ulysses_degree=ulysses)
    return types.SimpleNamespace(context_parallel_config=both)
