# SPDX-License-Identifier: Apache-2.0
"""One decided call on a row of a package: what its function is given, and what is looked at before a result goes out.

A package's own failure is reported as such and nothing else is tried (D13); a result that is not what the contract
says it is counts as a failure too."""

import contextlib
import math

import torch

from .. import _call, _rapt
from .._errors import FIELD, BackendError
from .._report import set_last
from .._torch_request import OF_CODE, policy_cast


class Call:
    """The tensors and options of one call, the same for every package.

    q [B,Hq,Sq,D], k [B,Hkv,Skv,D], v [B,Hkv,Skv,Dv]; packed: [Tq,Hq,D], [Tk,Hkv,D], [Tk,Hkv,Dv], with cu_q, cu_k int32 on
    the device. mask (bool, True = may attend), bias: broadcast against [B,Hq,Sq,Skv]. off: the position of query row 0,
    None where it is no one number. window: (left, right), -1 = open. scale is always a number, softcap 0 = off."""

    __slots__ = ("q", "k", "v", "mask", "bias", "causal", "window", "off", "scale", "softcap", "dropout", "sinks",
                 "slopes", "lse", "grad", "deterministic", "cu_q", "cu_k", "ends", "max_q", "max_k", "row")

    @property
    def packed(self):
        return self.cu_q is not None

    @property
    def positional(self):
        return self.causal or self.window != (-1, -1)

    @property
    def bounds(self):
        """(left, right) with causal folded in: -1 = open."""
        left, right = self.window
        return left, 0 if self.causal and right != 0 else right

    def seen(self, rows, keys, off):
        """Which of so many query rows, the first at off, see any of so many keys: by metadata alone."""
        left, right = self.bounds
        position = torch.arange(rows) + off
        low = position - left if left >= 0 else torch.zeros_like(position)
        high = position + right if right >= 0 else torch.full_like(position, keys - 1)
        return torch.clamp(low, min=0) <= torch.clamp(high, max=keys - 1)


def _window(options):
    return options.get("window_left", -1), options.get("window_right", -1)


class ProviderCall:
    """A decision for a package's row without the tensors; what HostCall is for the host's operator."""

    __slots__ = ("report", "age", "row", "function", "package", "casts", "dtype", "options", "extras", "rank", "batch",
                 "graph", "empty", "scale", "dropout", "device")

    def __init__(self, r, report, age, function, package):
        self.report, self.age, self.row, self.function, self.package = report, age, report.row, function, package
        _, _, _, _, cast_dtype, self.casts = report.decision
        self.dtype = OF_CODE[cast_dtype] if self.casts else None
        self.options, self.extras, self.rank, self.batch = r.options, r.extras, r.rank, r.batch
        self.graph, self.empty, self.device = r.graph, r.empty, r.query.device.type
        self.scale, self.dropout = r.host["scale"], r.host["dropout_p"]

    # ---- In ----

    def _cast(self, name, tensor):
        if tensor is None or not self.casts >> FIELD[name] & 1:
            return tensor
        return policy_cast(tensor, self.dtype, name == "bias")

    def _dense(self, tensor):
        """The four axes of the contract, seen through views."""
        if self.rank == 2:
            return tensor[None, None]
        if self.rank == 3:
            return tensor[None]
        return tensor.expand(*self.batch, -1, -1, -1).flatten(0, 1) if self.rank == 5 else tensor

    def _over(self, tensor):
        """A mask or bias with four axes."""
        if tensor is None:
            return None
        if self.rank == 5 and tensor.dim() == 5:
            tensor = tensor.expand(*self.batch, *tensor.shape[2:]).flatten(0, 1)
        return tensor[(None,) * (4 - tensor.dim())]

    def _arguments(self, query, key, value, mask, bias):
        call, o = Call(), self.options
        tensors = [self._cast(name, t) for name, t in (("q", query), ("k", key), ("v", value))]
        if o.get("cu"):
            call.q, call.k, call.v = (t.transpose(0, 1) for t in tensors)
        else:
            call.q, call.k, call.v = (self._dense(t) for t in tensors)
            batch = max(t.shape[0] for t in (call.q, call.k, call.v))
            call.q, call.k, call.v = (t.expand(batch, -1, -1, -1) for t in (call.q, call.k, call.v))
        call.mask, call.bias = self._over(mask), self._over(self._cast("bias", bias))
        call.window = _window(o)
        call.causal = bool(o.get("causal")) or call.window[1] == 0              # M6
        call.off = None if o.get("cu") else self._off(call)
        call.scale = max(call.q.shape[-1], 1) ** -0.5 if self.scale is None else float(self.scale)
        call.softcap, call.dropout = float(o.get("softcap", 0.0)), float(self.dropout or 0.0)
        call.lse, call.grad = bool(o.get("want_lse")), self.graph
        call.deterministic = o.get("determinism", 0) > 0
        call.row = self.row
        self._extras(call)
        return call

    def _off(self, call):
        o, sq, skv = self.options, call.q.shape[2], call.k.shape[2]
        alignment = o.get("alignment", 0)
        if alignment == _call.OFFSET:
            return o["q_offset"]
        if alignment == _call.OFFSET_ARRAY:
            return None
        return skv - sq if alignment == _call.CORNERS["br"] else 0

    def _extras(self, call):
        device, extras = call.q.device, self.extras
        for name in ("sinks", "slopes"):
            tensor = extras.get(name)
            setattr(call, name, None if tensor is None else tensor.to(device))
        call.cu_q = call.cu_k = call.ends = None
        call.max_q = call.max_k = 0
        if extras.get("cu_q") is None:
            return
        cu_q, cu_k = extras["cu_q"], extras["cu_k"]
        call.ends = cu_q.tolist(), cu_k.tolist()                # host arrays: no device is waited for
        call.max_q, call.max_k = (max((b - a for a, b in zip(ends, ends[1:])), default=0) for ends in call.ends)
        call.cu_q, call.cu_k = (t.to(device=device, dtype=torch.int32) for t in (cu_q, cu_k))

    # ---- The call ----

    def run(self, query, key, value, mask, bias):
        """out, or (out, lse), in the axes of query. The host's autocast is suspended: what is cast has been (A13)."""
        with torch.autocast(self.device, enabled=False):
            call = self._arguments(query, key, value, mask, bias)
            if self.empty or 0 in (*call.q.shape[:-1], call.k.shape[0 if call.packed else 2]):
                out, lse = _nothing(call)
                set_last(self.report)
                return self._shaped(out, lse)
            out, lse = self._entered(call)
            out, lse = self._checked(call, out, lse)
            out, lse = _without_keys(call, out, lse)
        return self._shaped(out, lse)

    def _entered(self, call):
        _rapt.ops_host(1)               # what the package itself calls is the host's, whatever is installed
        try:
            with _device_of(call.q):
                return self.function(call, self.package)
        except torch.OutOfMemoryError:
            raise                       # the host's own error, which programs look for
        except Exception as error:
            raise self._failed(f"failed: {type(error).__name__}: {error}") from error
        finally:
            _rapt.ops_host(-1)
            set_last(self.report.entered())     # a run that fails has run too

    def _failed(self, words):
        return BackendError(f"DEVICE_ERROR: {self.row} {words}", self.report)

    def _checked(self, call, out, lse):
        """R1: the result is what was asked for, or the row has failed."""
        heads_first = call.q.shape[:-1]
        shape = (*heads_first, call.v.shape[-1])
        self._expect("out", out, shape, call.q.dtype, call)
        if call.grad and torch.is_grad_enabled() and not out.requires_grad:
            raise self._failed("returned a result that is detached from its inputs, and a gradient is needed")
        if call.lse:
            rows = (call.q.shape[1], call.q.shape[0]) if call.packed else heads_first
            self._expect("lse", lse, tuple(rows), torch.float32, call)
        if out.device.type == "cpu":
            self._finite(call, out)
        return out, lse

    def _expect(self, name, tensor, shape, dtype, call):
        if not isinstance(tensor, torch.Tensor):
            raise self._failed(f"returned {type(tensor).__name__} as {name}, a tensor is needed")
        for what, got, want in (("shape", tuple(tensor.shape), tuple(shape)), ("dtype", tensor.dtype, dtype),
                                ("device", tensor.device, call.q.device)):
            if got != want:
                raise self._failed(f"returned {name} of {what} {got}, {want} is needed")

    def _finite(self, call, out):
        """NaN from finite tensors is a failure where looking costs little, which is on the CPU: a device would have to be
        waited for."""
        if not bool(torch.isnan(out).any()):
            return
        given = [t for t in (call.q, call.k, call.v) if t is not None]
        if call.bias is not None:
            given.append(call.bias.masked_fill(call.bias == -math.inf, 0.0))
        largest = [float(t.abs().max()) if t.numel() else 0.0 for t in (call.q, call.k)]
        overflows = abs(call.scale) * math.prod(largest) * call.q.shape[-1] > 1e38             # N10: NaN is right then
        if not overflows and all(bool(torch.isfinite(t).all()) for t in given):
            raise self._failed("returned NaN for finite tensors")

    # ---- Out ----

    def _shaped(self, out, lse):
        if self.options.get("cu"):
            out = out.transpose(0, 1)
        elif self.rank == 2:
            out, lse = out[0, 0], None if lse is None else lse[0, 0]
        elif self.rank == 3:
            out, lse = out[0], None if lse is None else lse[0]
        elif self.rank == 5:
            out, lse = out.unflatten(0, self.batch), None if lse is None else lse.unflatten(0, self.batch)
        return (out, lse) if self.options.get("want_lse") else out


def _device_of(tensor):
    """The current device is the tensors' own meanwhile: kernels of Triton want that, and Sage leaves it changed."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def _nothing(call):
    """No rows, or no keys for any: zeros and -inf, or the sink (S6, S7, M16). Empty sums keep the graph."""
    out = call.q.new_zeros((*call.q.shape[:-1], call.v.shape[-1]))
    if call.grad and torch.is_grad_enabled():
        out = out + sum(t.narrow(-1, 0, 0).sum() for t in (call.q, call.k, call.v))
    rows = (call.q.shape[1], call.q.shape[0]) if call.packed else call.q.shape[:-1]
    lse = torch.full(rows, -math.inf, dtype=torch.float32, device=call.q.device)
    if call.sinks is not None:
        lse = call.sinks.float()[:, None].expand(lse.shape).clone()
    return out, lse


def _empty_rows(call):
    """Rows without a key by metadata, as a bool [Sq], packed [Tq]; None where every row has one."""
    if call.packed:
        ends_q, ends_k = call.ends
        seen = torch.zeros(call.q.shape[0], dtype=torch.bool)
        for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
            if d > c:
                seen[a:b] = call.seen(b - a, d - c, d - c - (b - a)) if call.positional else True
    elif call.positional and call.off is not None:
        seen = call.seen(call.q.shape[2], call.k.shape[2], call.off)
    else:
        return None
    return None if bool(seen.all()) else (~seen).to(call.q.device)


def _without_keys(call, out, lse):
    """M16 by visibility, not by value: packages write 0, NaN or nothing there, and +inf, -inf or 0 as lse (H10)."""
    empty = _empty_rows(call)
    if call.mask is not None and call.row in _MASKED_UNDEFINED:
        dead = ~call.mask.any(-1)
        empty = dead if empty is None else dead | empty
    if empty is None:
        return out, lse
    over = empty[:, None, None] if call.packed else empty[..., None]
    out = out.masked_fill(over, 0.0)
    if lse is not None:
        value = -math.inf if call.sinks is None else call.sinks.float()[:, None]
        lse = torch.where(empty, value, lse) if call.sinks is not None else lse.masked_fill(empty, value)
    return out, lse


_MASKED_UNDEFINED = ("sage.triton",)    # rows that a mask leaves without keys come back undefined
