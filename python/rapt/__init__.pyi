# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

__version__: str
__all__ = [
    "ArgumentError", "BackendError", "Diagnosis", "RefusedError", "Report", "attention", "doctor", "explain", "last_report",
    "policy", "report_line",
]

_Array = np.ndarray[Any, np.dtype[Any]]
_Names = str | Sequence[str] | None
_Ints = _Array | Sequence[int] | None

# The keywords that every binding takes; None is "not given".
class _Options(TypedDict, total=False):
    causal: bool | str | None
    align: str | None
    window: tuple[int, int] | list[int] | None
    scale: float | None
    softcap: float | None
    dropout: float | None
    determinism: Literal["none", "run", "threads", "batch"] | None
    strict: bool | None
    mixed_kv: bool | None
    memory_limit: int | None
    verify: int | None
    require: _Names
    prefer: _Names
    forbid: _Names
    autocast: Literal["auto", "bf16", "fp16", "fp32", "off", False] | None

class _Arrays(_Options, total=False):
    layout: Literal["bhsd", "bshd", "sbhd", "hsd", "shd"]
    mask: _Array | None
    bias: _Array | None
    sinks: _Ints
    slopes: _Ints
    q_len: _Ints
    kv_len: _Ints
    cu_q: _Ints
    cu_k: _Ints
    q_offset: int | _Ints
    seed: int | None
    offset: int | None

class Report:
    notes: tuple[str, ...]
    @property
    def text(self) -> str: ...
    @property
    def json_text(self) -> str: ...
    @property
    def json(self) -> dict[str, Any]: ...
    @property
    def decision(self) -> tuple[int, str, str, str, int, int]: ...
    @property
    def error(self) -> tuple[int, int, int, int, str, str] | None: ...
    @property
    def status(self) -> str: ...
    @property
    def row(self) -> str | None: ...
    @property
    def kernel(self) -> str | None: ...
    @property
    def rows(self) -> list[_Verdict]: ...
    def codes(self, row: str) -> list[str]: ...

# Named tuples; no NamedTuple here, since the field index hides the method of that name.
class _Reason(tuple[Any, ...]):
    code: str
    state: str
    field: str
    axis: int | None
    index: int | None  # type: ignore[assignment]
    got: str | None
    want: str | None
    text: str

class _Verdict(tuple[Any, ...]):
    row: str
    verdict: str
    reasons: tuple[_Reason, ...]

class ArgumentError(ValueError):
    code: str | None
    field: str | None
    got: str | None
    want: str | None
    report: Report | None

class RefusedError(RuntimeError):
    report: Report

class BackendError(RuntimeError):
    report: Report | None

class Diagnosis:
    json: dict[str, Any]
    @property
    def problems(self) -> tuple[str, ...]: ...
    @property
    def ok(self) -> bool: ...

class policy:
    require: str | None
    prefer: str | None
    forbid: str | None
    memory_limit: int | None
    def __init__(self, *, require: _Names = None, prefer: _Names = None, forbid: _Names = None,
                 memory_limit: int | None = None) -> None: ...
    def __enter__(self) -> policy: ...
    def __exit__(self, *exception: object) -> Literal[False]: ...

@overload
def attention(q: _Array, k: _Array, v: _Array, *, return_lse: Literal[False] | None = ...,
              **options: Unpack[_Arrays]) -> _Array: ...
@overload
def attention(q: _Array, k: _Array, v: _Array, *, return_lse: Literal[True],
              **options: Unpack[_Arrays]) -> tuple[_Array, _Array]: ...
def explain(q: _Array, k: _Array, v: _Array, *, facts: str | None = ..., return_lse: bool | None = ...,
            **options: Unpack[_Arrays]) -> Report: ...
def report_line(site: object, dtypes: str | None = None, devices: str | None = None) -> str: ...
def last_report() -> Report | None: ...
def doctor(problem: str | None = None) -> Diagnosis: ...
