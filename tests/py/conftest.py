# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def draw(rng):
    """draw(shape, ...) -> one fp32 array a shape, values in [-1, 1)."""

    def make(*shapes):
        return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]

    return make
