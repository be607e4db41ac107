# SPDX-License-Identifier: Apache-2.0
"""memory_efficient_attention: (B,M,H,K) or (B,M,G,H,K), masks as typed objects, a tensor added; lse padded to 32 rows."""

from . import fmha
from .fmha import memory_efficient_attention  # noqa: F401
from .fmha.attn_bias import LowerTriangularMask  # noqa: F401
