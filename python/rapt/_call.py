# SPDX-License-Identifier: Apache-2.0
"""What the bindings share: keywords to the fields of a problem, and a prepared call to a result or an exception."""

import operator
import threading

import numpy as np

from . import _rapt
from ._errors import CODE, DTYPE, FIELD, STATUS, BackendError, argument_error, failed, refuse, wrong
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
    """A context of the core, made at the first call so that the environment holds which the user has set by then.

    facts: a facts string makes a context for what-ifs (D20)."""

    def __init__(self, setup=None, facts=None):
        self._setup, self._options = setup, {} if facts is None else {"facts": facts}
        self._handle, self._lock, self._index = None, threading.Lock(), {}
        self.seen = {}                  # what a binding keeps of calls that ran, by what it knows them again

    @property
    def handle(self):
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._make()
        return self._handle

    def _make(self):
        try:
            handle = _rapt.ctx_create(self._options)
            if self._setup is not None:
                self._setup(handle)
        except _rapt.Fault as fault:
            raise argument_error(fault.args[1:], None) from None
        return handle

    def entered(self):
        """How often each row has run: {id: count} (R1)."""
        return {row[0]: row[6] for row in _rapt.ctx_rows(self.handle)}

    def keep(self, key, entry):
        """As many as the core has plans (P8); the oldest goes first."""
        with self._lock:
            if len(self.seen) >= 256:
                del self.seen[next(iter(self.seen))]
            self.seen[key] = entry

    def row_index(self, row):
        """The number of a row. Rows are only ever added, so a number once known stays."""
        if row not in self._index:
            self._index = {info[0]: index for index, info in enumerate(_rapt.ctx_rows(self.handle))}
        return self._index[row]


_what_if, _what_if_lock = {}, threading.Lock()


def what_if(facts):
    """The context of a facts string; the last sixteen are kept."""
    if not isinstance(facts, str) or not facts.strip():
        raise refuse("facts", repr(facts), 'a facts string such as "cuda cc=9.0" is needed')
    with _what_if_lock:
        if facts not in _what_if:
            if len(_what_if) == 16:
                del _what_if[next(iter(_what_if))]
            _what_if[facts] = Context(facts=facts)
        return _what_if[facts]


def kind_of(facts):
    """The device kind that a facts string speaks of; the context, made first, has refused any other word."""
    what_if(facts).handle
    return KINDS[facts.split()[0]]


def flag(value, name):
    """A switch is a bool: a text such as "no" must not count as true."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refuse(name, repr(value), "True or False is needed")


def number(value, name):
    try:
        if not isinstance(value, (bool, str, bytes)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise refuse(name, repr(value), "a number is needed")


def integer(value, name, want="an integer is needed", code="UNKNOWN_FIELD", low=-2**63):
    try:
        if not isinstance(value, bool) and low <= operator.index(value) < 2**63:
            return operator.index(value)
    except TypeError:
        pass
    raise refuse(name, repr(value), want, code)


def _corner(text, field):
    if isinstance(text, str):
        if text in CORNERS:
            return CORNERS[text], None
        kind, _, digits = text.partition(":")
        if kind == "off" and digits.removeprefix("-").isdecimal():
            return OFFSET, integer(int(digits), field, "the offset must fit 64 bits")
    also = "True, False, " if field == "causal" else ""
    raise refuse(field, repr(text), f'{also}"tl", "br" or "off:N" is needed', "ALIGNMENT")


def _offset(value):
    if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0:
        return OFFSET_ARRAY, None       # one number a batch entry
    return OFFSET, integer(value, "q_offset", "an integer that fits 64 bits, or an int64 array [B], is needed")


def _position(options, causal, align, q_offset):
    """causal, align and q_offset: one corner, however it was said (M2)."""
    said = {}
    if isinstance(causal, np.bool_):
        causal = bool(causal)
    if causal is not None and causal is not False:
        options["causal"] = True
        if causal is not True:
            said["causal"] = _corner(causal, "causal")
    if align is not None:
        said["align"] = _corner(align, "align")
    if q_offset is not None:
        said["q_offset"] = _offset(q_offset)
    if len(set(said.values())) > 1:
        given = {"causal": causal, "align": align, "q_offset": q_offset}
        raise refuse(" and ".join(f"{name}={given[name]!r}" for name in said), "more than one position of query row 0",
                     "name it once", "ALIGNMENT")
    for alignment, offset in said.values():
        options["alignment"] = alignment
        if offset is not None:
            options["q_offset"] = offset


def _choice(value, table, name):
    if isinstance(value, str) and value in table:
        return table[value]
    raise refuse(name, repr(value), "one of " + ", ".join(table) + " is needed")


def _pair(window):
    want = "two integers are needed, left and right, -1 for an open side"
    try:
        left, right = window
    except (TypeError, ValueError):
        raise refuse("window", repr(window), want, "WINDOW") from None
    return tuple(integer(side, f"window={window!r}: {where}", want, "WINDOW", -1)
                 for side, where in ((left, "left"), (right, "right")))


def _flags(options, return_lse, strict, mixed_kv):
    for field, name, value in (("want_lse", "return_lse", return_lse), ("strict", "strict", strict),
                               ("mixed_kv", "mixed_kv", mixed_kv)):
        if value is not None and flag(value, name):
            options[field] = True


def _autocast(options, value, kind):
    """value: None or "off", "auto", or a dtype's name; kind: the device type of the tensors (A1)."""
    if value is None or value is False or isinstance(value, str) and value == "off":
        return
    code = None
    if isinstance(value, str):
        code = 0 if value == "auto" else DTYPE.get(value)
    if code is None:
        raise refuse("autocast", repr(value), '"auto", "fp16", "bf16", "fp32" or "off" is needed', "AUTOCAST_DTYPE")
    options["autocast_dtype"], options["autocast_device"] = code, kind


def _own(names, field):
    return (names and names[FIELD[field]]) or field


def build_options(kind, names, *, causal=None, align=None, window=None, scale=None, softcap=None, q_offset=None,
                  dropout=None, return_lse=False, determinism=None, strict=False, mixed_kv=False, memory_limit=None,
                  verify=None, require=None, prefer=None, forbid=None, autocast=None):
    """The fields of a problem that are no tensors. kind: the device type's number."""
    options = {}
    _position(options, causal, align, q_offset)
    if window is not None:
        options["window_left"], options["window_right"] = _pair(window)
    for name, value in (("scale", scale), ("softcap", softcap), ("dropout", dropout)):
        if value is not None:
            options[name] = number(value, _own(names, name))
    if determinism is not None:
        options["determinism"] = _choice(determinism, DETERMINISM, "determinism")
    if verify is not None and integer(verify, "verify", "a number of rows is needed", low=0):
        options["verify"] = min(int(verify), 2**32 - 1)
    _flags(options, return_lse, strict, mixed_kv)
    _autocast(options, autocast, kind)
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
        raise refuse("an argument", error, "a number in range is needed") from None


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


def attempt(ctx, call, names):
    """Runs a prepared call: (status, report). HOST in place of a status: the chosen row is the binding's to run, and
    nothing ran."""
    status, handle = _rapt.attention(ctx.handle, call)
    report = Report(handle, names) if handle is not None else None
    if status and report is not None and report.error and report.error[:2] == _BINDINGS_OWN:
        return HOST, report
    return status, report


HOST, _BINDINGS_OWN = -1, (CODE["NULL"], FIELD["run"])


def run(ctx, call, names, addition=""):
    """The report of a call that ran; an exception for one that did not."""
    status, report = attempt(ctx, call, names)
    set_last(report)
    if status:
        raise failed(status, report, names, addition)
    return report


def again(ctx, call, report, *pointers):
    """Runs a call that has run before on other memory: True. False: it must be made anew, and nothing ran."""
    status = _rapt.again(ctx.handle, call, *pointers)
    if status == 0:
        set_last(report)
        return True
    if status in _FAILED:
        broken(status, report)
    return False


def broken(status, report):
    raise BackendError(f"{_rapt.STATUSES[status]}: {report.row} failed while it ran, outputs are undefined", report)


_FAILED = (STATUS["DEVICE_ERROR"], STATUS["INTERNAL"])
