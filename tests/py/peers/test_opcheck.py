# SPDX-License-Identifier: Apache-2.0
"""torch.library.opcheck on the operators over operands as hosts have them (contract H2, N8, D19)."""

import itertools

import pytest
import torch
from peers_common import DTYPES, HALVES, rand

from rapt import _ops

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
GRADS = _ops.GRAD_Q | _ops.GRAD_K | _ops.GRAD_V
OPERATORS = {"sdpa": _ops.sdpa_op, "sdpa.lse": _ops.sdpa_lse_op, "sdpa_ag": _ops.sdpa_ag_op}


def bhsd(b, h, s, d, dtype):
    return rand(b, h, s, d, dtype=dtype)


def bshd(b, h, s, d, dtype):
    return rand(b, s, h, d, dtype=dtype).transpose(1, 2)


def packed(b, h, s, d, dtype):
    return rand(b, s, 3, h, d, dtype=dtype).permute(2, 0, 3, 1, 4)[1]


def expanded(b, h, s, d, dtype):
    return rand(b, 1, s, d, dtype=dtype).expand(b, h, s, d)


def last_stride_2(b, h, s, d, dtype):
    return rand(b, h, s, 2 * d, dtype=dtype)[..., ::2]


LAYOUTS = {"bhsd": (bhsd, bhsd), "bshd": (bshd, bshd), "packed": (packed, packed), "expanded kv": (bhsd, expanded),
           "last stride 2": (last_stride_2, last_stride_2)}
MASKS = {
    "none": lambda dtype: {}, "mask": lambda dtype: {"mask": torch.rand(5, 7) > 0.3},
    "mask of keys": lambda dtype: {"mask": torch.rand(2, 1, 1, 7) > 0.3},
    "bias": lambda dtype: {"bias": rand(1, 3, 5, 7, dtype=dtype)},
    "both": lambda dtype: {"bias": rand(7, dtype=dtype), "mask": (torch.rand(1, 1, 5, 7) > 0.3).expand(2, 3, 5, 7)},
}


def check(op, operands, grads=True, checks=CHECKS, **options):
    close = {}
    if grads and op is _ops.sdpa_ag_op:
        operands = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in operands]
        options["flags"] = GRADS
        if operands[0].dtype in HALVES:
            close = {"atol": 1e-2, "rtol": 1e-2}
    torch.library.opcheck(op, operands, options, test_utils=checks, **close)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_operators_are_what_their_fakes_say_h2_n8(layout, mask):
    """Every layout with every mask; the dtypes, and Dv other than D, go round."""
    of_q, of_kv = LAYOUTS[layout]
    turn = list(LAYOUTS).index(layout) + list(MASKS).index(mask)
    for n, op in enumerate(OPERATORS.values()):
        for dtype, dv, checks in ((DTYPES[(turn + n) % 4], 8 + 4 * (n % 2), CHECKS),
                                  (DTYPES[(turn + n + 1) % 4], 12 - 4 * (n % 2), CHECKS[:3])):
            operands = of_q(2, 3, 5, 8, dtype), of_kv(2, 3, 7, 8, dtype), of_kv(2, 3, 7, dv, dtype)
            if op is not _ops.sdpa_ag_op or mask != "both":     # the host's backward takes one: the front joins them
                check(op, operands, checks=checks, **MASKS[mask](dtype))


@pytest.mark.parametrize("name", OPERATORS)
def test_zero_sizes_h4(name):
    sizes = {"b": 2, "h": 3, "sq": 5, "skv": 7, "dv": 8}
    for empty, (dtype, layout) in zip(sizes, itertools.cycle(zip(DTYPES, LAYOUTS))):
        n = {**sizes, empty: 0}
        of_q, of_kv = LAYOUTS[layout]
        operands = (of_q(n["b"], n["h"], n["sq"], 8, dtype), of_kv(n["b"], n["h"], n["skv"], 8, dtype),
                    of_kv(n["b"], n["h"], n["skv"], n["dv"], dtype))
        check(OPERATORS[name], operands)


# ---- The faults that opcheck must tell ----

@pytest.fixture
def no_memory():
    """What fakes have answered is kept by the host: forgotten before and after a fault."""
    torch._subclasses.FakeTensorMode.cache_clear()
    yield
    torch._subclasses.FakeTensorMode.cache_clear()


def test_a_wrong_fake_stride_is_told(monkeypatch, no_memory):
    right = _ops._layout
    monkeypatch.setattr(_ops, "_layout", lambda q, dv, contiguous: right(q, dv, True))
    operands = [bshd(2, 3, n, 8, torch.float32) for n in (5, 7, 7)]
    for name, op in OPERATORS.items():
        with pytest.raises(Exception, match="[Ss]tride"):
            check(op, operands, False)
        check(op, [t.contiguous() for t in operands], False)    # nothing but strides was wrong


def test_a_wrong_fake_dtype_of_lse_is_told_n8(monkeypatch, no_memory):
    monkeypatch.setattr(_ops, "_new_lse", lambda q: torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device))
    operands = [bhsd(2, 3, n, 8, torch.float64) for n in (5, 7, 7)]
    with pytest.raises(Exception, match="[Dd]type|dtypes"):
        check(_ops.sdpa_lse_op, operands)
