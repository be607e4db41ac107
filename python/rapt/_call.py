# SPDX-License-Identifier: Apache-2.0
"""What the bindings share: keywords to the fields of a problem, and a prepared call to a result or an exception."""

import operator
import threading

from . import _rapt
from ._errors import CODE, DTYPE, FIELD, argument_error, failed, wrong
from ._policy import resolve
from ._report import Report, set_last

OUT, LSE = FIELD["out"], FIELD["lse"]
CORNERS = {"tl": 1, "br": 2}
OFFSET, OFFSET_ARRAY = 3, 4
DETERMINISM = {"none": 0, "run": 1, "threads": 2, "batch": 3}
KINDS = {"cpu": 0, "cuda": 1, "hip": 2, "xpu": 3, "mps": 4, "xla": 5, "hpu": 6, "ipu": 7, "npu": 8, "meta": 9}

# The keywords every binding takes besides its tensors. None is "not given".
KEYWORDS = (
    "causal align window scale softcap q_offset dropout return_lse determinism strict mixed_kv memory_limit verify "
    "require prefer forbid autocast"
).split()


class Context:
    """A context of the core, made at the first call so that the environment holds which the user has set by then."""

    def __init__(self, setup=None):
        self._setup, self._handle, self._lock, self._index = setup, None, threading.Lock(), {}

    @property
    def handle(self):
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._make()
        return self._handle

    def _make(self):
        try:
            handle = _rapt.ctx_create({})
            if self._setup is not None:
                self._setup(handle)
        except _rapt.Fault as fault:
            raise argument_error(fault.args[1:], None) from None
        return handle

    def entered(self):
        """How often each row has run: {id: count} (R1)."""
        return {row[0]: row[6] for row in _rapt.ctx_rows(self.handle)}

    def row_index(self, row):
        """The number of a row. Rows are only ever added, so a number once known stays."""
        if row not in self._index:
            self._index = {info[0]: index for index, info in enumerate(_rapt.ctx_rows(self.handle))}
        return self._index[row]


def _corner(text, field, names):
    if text in CORNERS:
        return CORNERS[text], None
    kind, _, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind == "off" and number.removeprefix("-").isdigit():
        return OFFSET, int(number)
    raise wrong("ALIGNMENT", "align", f"{field}={text!r}", '"tl", "br" or "off:N"', names)


def _offset(value):
    try:
        return OFFSET, operator.index(value)
    except TypeError:                   # an array, one number a batch entry
        return OFFSET_ARRAY, None


def _position(options, causal, align, q_offset, names):
    """causal, align and q_offset: one corner, however it was said (M2)."""
    said = {}
    if causal is not None and causal is not False:
        options["causal"] = True
        if causal is not True:
            said["causal"] = _corner(causal, "causal", names)
    if align is not None:
        said["align"] = _corner(align, "align", names)
    if q_offset is not None:
        said["q_offset"] = _offset(q_offset)
    if len(set(said.values())) > 1:
        raise wrong("ALIGNMENT", "align", " and ".join(said), "named once", names)
    for alignment, offset in said.values():
        options["alignment"] = alignment
        if offset is not None:
            options["q_offset"] = offset


def _choice(value, table, field, names):
    if isinstance(value, str) and value in table:
        return table[value]
    raise wrong("UNKNOWN_FIELD", field, repr(value), "one of " + ", ".join(table), names)


def _pair(window, names):
    try:
        left, right = window
        return left.__index__(), right.__index__()
    except (TypeError, ValueError, AttributeError):
        raise wrong("WINDOW", "window", repr(window), "two integers, left and right", names) from None


def _flags(options, return_lse, strict, mixed_kv):
    if return_lse:
        options["want_lse"] = True
    if strict:
        options["strict"] = True
    if mixed_kv:
        options["mixed_kv"] = True


def _autocast(options, value, kind, names):
    """value: None or "off", "auto", or a dtype's name; kind: the device type of the tensors (A1)."""
    if value is None or value == "off" or value is False:
        return
    code = 0 if value == "auto" else DTYPE.get(value) if isinstance(value, str) else None
    if code is None:
        raise wrong("AUTOCAST_DTYPE", "autocast", repr(value), "fp16, bf16 or fp32", names)
    options["autocast_dtype"], options["autocast_device"] = code, kind


def build_options(kind, names, *, causal=None, align=None, window=None, scale=None, softcap=None, q_offset=None,
                  dropout=None, return_lse=False, determinism=None, strict=False, mixed_kv=False, memory_limit=None,
                  verify=None, require=None, prefer=None, forbid=None, autocast=None):
    """The fields of a problem that are no tensors. kind: the device type's number."""
    options = {}
    _position(options, causal, align, q_offset, names)
    if window is not None:
        options["window_left"], options["window_right"] = _pair(window, names)
    for name, value in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
        if value is not None:
            options[name] = float(value)
    if determinism is not None:
        options["determinism"] = _choice(determinism, DETERMINISM, "determinism", names)
    if verify:
        options["verify"] = int(verify)
    _flags(options, return_lse, strict, mixed_kv)
    _autocast(options, autocast, kind, names)
    resolve(options, require, prefer, forbid, memory_limit)
    return options


def add_lengths(options, tensors, batch, names, describe, **arrays):
    """q_len, kv_len, q_offset: integer arrays [B]; cu_q, cu_k: [N+1]. describe(array) -> (tensor, dtype, shape)."""
    for name, array in arrays.items():
        if array is None:
            continue
        tensor, dtype, shape = describe(array, name)
        code = "CU_SEQLENS" if name.startswith("cu") else "LENGTHS"
        allowed = ("int64",) if name == "q_offset" else ("int32", "int64")
        if dtype not in [DTYPE[a] for a in allowed]:
            raise wrong("DTYPE", name, _rapt.DTYPES[dtype], " or ".join(allowed), names)
        if len(shape) != 1 or (code == "LENGTHS" and shape[0] != batch):
            raise wrong("SHAPE", name, "x".join(map(str, shape)) or "scalar", batch, names, axis=0)
        tensors[name] = tensor
        if name in ("q_len", "kv_len"):
            options[name] = dtype
        elif name == "cu_q":
            options["cu"], options["packed_sequences"] = dtype, max(shape[0] - 1, 0)


def add_extras(options, tensors, sinks, slopes, names, describe):
    """sinks [Hq] and slopes [Hq] or [B,Hq]; describe as above."""
    if sinks is not None:
        tensors["sinks"], options["sinks_dtype"], shape = describe(sinks, "sinks")
        if len(shape) != 1:
            raise wrong("SINK", "sinks", f"{len(shape)} axes", "one value per query head", names)
        options["sinks_size"] = shape[0]
    if slopes is not None:
        tensors["slopes"], options["slopes_dtype"], shape = describe(slopes, "slopes")
        if len(shape) not in (1, 2):
            raise wrong("ALIBI", "slopes", f"{len(shape)} axes", "fp32 [Hq] or [B,Hq]", names)
        options["slopes_size_b"], options["slopes_size_h"] = (1, *shape)[-2:]


def prepare(tensors, options, names):
    try:
        return _rapt.prepare(tensors, options)
    except _rapt.Fault as fault:
        raise argument_error(fault.args[1:], names) from None
    except (OverflowError, TypeError) as error:
        raise wrong("UNKNOWN_FIELD", "text", error, "a number in range", names) from None


def explain(ctx, call, names):
    """(status, report): what would happen. Nothing runs."""
    status, handle = _rapt.explain(ctx.handle, call)
    return status, Report(handle, names) if handle is not None else None


def decide(ctx, call, names, addition=""):
    """The report of a call that may run; an exception for one that may not."""
    status, report = explain(ctx, call, names)
    if status:
        set_last(report)
        raise failed(status, report, names, addition)
    return report


def output(ctx, call, field, names, addition=""):
    """(dtype, sizes, strides) to allocate. A call with a fault is reported as a whole."""
    try:
        return _rapt.output(call, field)
    except _rapt.Fault as fault:
        reason = fault.args[1:]
    report = decide(ctx, call, names, addition)         # raises, with the report of the same fault
    raise argument_error(reason, names, report)


def run(ctx, call, names, addition=""):
    """Runs a prepared call; (report, True), or (report, False) where the row that was chosen is the binding's to run."""
    status, handle = _rapt.attention(ctx.handle, call)
    report = Report(handle, names) if handle is not None else None
    if status and report is not None and _is_host(report.error):
        return decide(ctx, call, names, addition), False
    set_last(report)
    if status:
        raise failed(status, report, names, addition)
    return report, True


def _is_host(reason):
    return reason is not None and reason[0] == CODE["NULL"] and reason[1] == FIELD["run"]
