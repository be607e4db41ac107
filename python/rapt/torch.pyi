# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from . import Report, _Names, _Options
from ._guard import AutocastAttentionGuard as AutocastAttentionGuard
from ._site_base import AttentionSite as _AttentionSite
from ._site_wan import WanSite as _WanSite

_Ints = Tensor | Sequence[int] | None

class _Tensors(_Options, total=False):
    enable_gqa: bool
    mask: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    slopes: Tensor | None
    q_len: _Ints
    kv_len: _Ints
    cu_q: _Ints
    cu_k: _Ints
    q_offset: int | _Ints
    seed: int | None
    offset: int | None

class _Installed:
    def remove(self) -> None: ...
    def __enter__(self) -> _Installed: ...
    def __exit__(self, *exception: object) -> Literal[False]: ...

@overload
def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, *, return_lse: Literal[False] | None = ..., **options: Unpack[_Tensors]) -> Tensor: ...
@overload
def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, *, return_lse: Literal[True], **options: Unpack[_Tensors]) -> tuple[Tensor, Tensor]: ...
def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, return_lse: bool | None = ..., device: str | torch.device | None = ...,
            facts: str | None = ..., **options: Unpack[_Tensors]) -> Report: ...
def install() -> _Installed: ...
def installed() -> bool: ...
def remove() -> None: ...
def use_pool(name: Literal["own", "torch"]) -> Literal["own", "torch"]: ...
def use_kernel(row: str, module: ModuleType) -> None: ...
@overload
def attention_site(name: str, *, layout: Literal["wan"] = ..., prefer: _Names = None, otherwise: _Names = None,
                   require: _Names = None, forbid: _Names = None, family: str | None = None) -> _WanSite: ...
@overload
def attention_site(name: str, *, layout: Literal["bshd", "bhsd", "bs(hd)"], prefer: _Names = None,
                   otherwise: _Names = None, require: _Names = None, forbid: _Names = None,
                   family: str | None = None) -> _AttentionSite: ...
