# SPDX-License-Identifier: Apache-2.0
"""What the tests of peers share: operands that every dtype holds exactly, and who has run."""

import torch

import rapt
import rapt.torch

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALVES)


def rand(*shape, dtype=torch.float32):
    """Multiples of 1/128 in [-1, 1]: the same numbers in every dtype, so that one reference serves all."""
    return (torch.randint(-128, 129, shape) / 128).to(dtype)


def own(row):
    return row.startswith("cpu.") or row == "ref"


def entered():
    """(runs of our rows, runs of the host's), by the core's counters (R1)."""
    counts = rapt.torch.context.entered()
    ours = sum(n for row, n in counts.items() if own(row))
    return ours, sum(n for row, n in counts.items() if row.startswith("torch."))


def counted(function, *args, **keywords):
    """(result, runs of our rows, runs of the host's)."""
    before = entered()
    result = function(*args, **keywords)
    after = entered()
    return result, after[0] - before[0], after[1] - before[1]


def outcome(function, *args, **keywords):
    """(result, None), or (None, the exception)."""
    try:
        return function(*args, **keywords), None
    except Exception as error:
        return None, error
