# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")         # read when Keras is imported, whoever does that first
if os.environ.get("RAPT_TEST_FAKES") == "1":    # the whole suite must pass with and without them, alike
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "fakes"))

import numpy as np  # noqa: E402  after the fakes are on the path
import pytest  # noqa: E402


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def draw(rng):
    """draw(shape, ...) -> one fp32 array a shape, values in [-1, 1)."""

    def make(*shapes):
        return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]

    return make


@pytest.fixture
def probe_untraced():
    """Stock Keras as it is by itself: once torch.nn.attention.bias is imported, which other tests do, PyTorch lets its flash
    probe into graphs."""
    from torch._dynamo import trace_rules
    from torch.backends import cuda

    allowed = trace_rules._allowed_callable_ids
    held = [id(f) for f in (cuda.SDPAParams, cuda.can_use_flash_attention) if id(f) in allowed]
    for number in held:
        allowed.remove(number)
    yield
    for number in held:
        allowed.add(number)
