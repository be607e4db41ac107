# SPDX-License-Identifier: Apache-2.0
"""The mask types, each as the set of pairs that it lets through."""

import rapt_fakes as fakes


class AttentionBias:
    bias = None


class LowerTriangularMask(AttentionBias):
    def seen(self, m, n):
        return fakes.span(m, n, 0, -1, 0)


class LowerTriangularFromBottomRightMask(AttentionBias):
    def seen(self, m, n):
        return fakes.span(m, n, n - m, -1, 0)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    def __init__(self, bias):
        self.bias = bias


class LowerTriangularFromBottomRightLocalAttentionMask(AttentionBias):
    """The window counts keys, the own one included."""

    def __init__(self, _window_size):
        if _window_size < 1:
            raise ValueError("window_size should be greater than 0")
        self._window_size = _window_size

    def seen(self, m, n):
        return fakes.span(m, n, n - m, self._window_size - 1, 0)


class LocalAttentionFromBottomRightMask(AttentionBias):
    def __init__(self, window_left, window_right):
        if window_left < 0 or window_right < 0:
            raise ValueError("Invalid window_left or window_right")
        self.window_left, self.window_right = window_left, window_right

    def seen(self, m, n):
        return fakes.span(m, n, n - m, self.window_left, self.window_right)
