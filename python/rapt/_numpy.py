# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays: no copies of q, k, v, mask or bias, whatever their strides."""

import numpy as np

from . import _call, _policy
from ._errors import DTYPE, refuse, unknown_keyword, wrong

_NAMES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "bool", "uint8": "uint8",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
}
_LAYOUTS = ("bhsd", "bshd", "sbhd", "hsd", "shd")

context = _call.Context()
_policy.contexts.append(context)

_LENT_AS = {DTYPE["bf16"]: np.uint16, DTYPE["fp8e4m3"]: np.uint8, DTYPE["fp8e5m2"]: np.uint8}


class _Codes(dict):
    """dtype -> number of the core; 0 for a dtype that it has no name for."""

    def __missing__(self, dtype):
        code = DTYPE[_NAMES[dtype.name]] if dtype.isnative and dtype.name in _NAMES else 0
        self[dtype] = code
        return code


_codes = _Codes()
_OWN = {DTYPE[core]: np.dtype(name) for name, core in _NAMES.items() if "float8" not in name and name != "bfloat16"}


def _dtype_of(code):
    dtype = _OWN.get(code)
    if dtype is None:                   # a result in bf16 comes of bf16 arrays, or of autocast to it
        import ml_dtypes

        dtype = _OWN[code] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def _buffer(array, code):
    """The array as (buffer, dtype). NumPy lends no buffer of a dtype that is not its own, so 16 bits go as integers."""
    if code in _LENT_AS:
        array = array.view(_LENT_AS[code])
    return array, code


def _tensor(array, name):
    _check(array, name)
    return _buffer(array, _codes[array.dtype])


def _check(array, name):
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):            # its mask would be ignored
        raise refuse(name, "a numpy.ma.MaskedArray", "a plain array is needed, with mask= for what is hidden", "DTYPE")
    if not array.dtype.isnative:
        raise refuse(name, f"{array.dtype.name} in the byte order of another machine",
                     'this machine\'s is needed: .astype(dtype.newbyteorder("="))', "DTYPE")
    if not _codes[array.dtype]:
        raise refuse(name, array.dtype.name, "float16, bfloat16, float32 or float64 is needed", "DTYPE")


def _dense(array, name):
    if isinstance(array, (list, tuple)):
        array = np.asarray(array)
    _check(array, name)
    array = np.ascontiguousarray(array)
    return _tensor(array, name), _codes[array.dtype], array.shape


_ON_DEVICE = ("q", "k", "v", "mask", "bias")


def _elsewhere(tensors, kind):
    """The same arrays as a device of that kind would have them, without memory."""
    for name, (array, code) in tensors.items():
        strides = [stride // array.itemsize for stride in array.strides]
        tensors[name] = (0, code, array.shape, strides, kind if name in _ON_DEVICE else 0, 0)


def _order(layout, rank):
    """Memory axis of each logical axis, for arrays whose axes stand in the order of `layout`."""
    if layout not in _LAYOUTS:
        raise refuse("layout", repr(layout), "one of " + ", ".join(_LAYOUTS) + " is needed")
    axes = layout if rank == 4 else layout.replace("b", "")
    if len(axes) != rank:
        raise wrong("RANK", "q", rank, "3 or 4, as the layout says")
    return tuple(axes.index(axis) for axis in ("bhsd" if rank == 4 else "hsd"))


def _inverse(order):
    return tuple(order.index(axis) for axis in range(len(order)))


def _logical(arrays, order):
    """q, k, v with their axes in logical order; a batch of 1 is read for every batch entry, by stride 0."""
    if any(array.ndim != len(order) for array in arrays):
        return arrays                   # the core refuses it
    arrays = [array.transpose(order) for array in arrays]
    if len(order) != 4:
        return arrays
    batch = max(array.shape[0] for array in arrays)
    return [np.broadcast_to(a, (batch, *a.shape[1:])) if a.shape[0] == 1 != batch else a for a in arrays]


def _prepare(q, k, v, layout, mask, bias, sinks, slopes, lengths, keywords, unknown, kind=0):
    for name in unknown:
        raise unknown_keyword(name, ["layout", *_ARRAYS, *_call.KEYWORDS])
    if not isinstance(q, np.ndarray) or not isinstance(k, np.ndarray) or not isinstance(v, np.ndarray):
        raise TypeError("q, k and v must be NumPy arrays; tensors of a framework go through its own module")
    for name, array in zip("qkv", (q, k, v)):
        _check(array, name)
    order = _order(layout, q.ndim)
    arrays = _logical([q, k, v], order)
    tensors = {name: _tensor(array, name) for name, array in zip("qkv", arrays)}
    for name, array in (("mask", mask), ("bias", bias)):
        if array is not None:
            tensors[name] = _tensor(array, name)
    options = _call.build_options(kind, None, **keywords)
    if options.get("alignment") == _call.OFFSET_ARRAY:
        lengths = {**lengths, "q_offset": keywords["q_offset"]}
    batch = arrays[0].shape[0] if arrays[0].ndim == 4 else 1
    _call.add_lengths(options, tensors, batch, None, _dense, **lengths)
    _call.add_extras(options, tensors, sinks, slopes, None, _dense)
    if kind:
        options["assume_finite"] = True                         # H3
        _elsewhere(tensors, kind)
    return _call.prepare(tensors, options, None), order


def _empty(dtype, sizes, strides):
    """A dense array whose axes stand in memory as the strides say."""
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], axis))
    return np.empty([sizes[axis] for axis in order], dtype).transpose(_inverse(order))


def _allocate(call, name, field):
    dtype, sizes, strides = _call.output(context, call, field, None)
    array = _empty(_dtype_of(dtype), sizes, strides)
    _call._rapt.attach(call, name, _buffer(array, dtype))
    return array


_ARRAYS = ("mask", "bias", "sinks", "slopes", "q_len", "kv_len", "cu_q", "cu_k", "seed", "offset")


def attention(q, k, v, *, layout="bhsd", mask=None, bias=None, causal=None, align=None, window=None, scale=None,
              softcap=None, sinks=None, slopes=None, q_len=None, kv_len=None, q_offset=None, cu_q=None, cu_k=None,
              dropout=None, seed=None, offset=None, return_lse=False, determinism=None, strict=False, mixed_kv=False,
              memory_limit=None, verify=None, require=None, prefer=None, forbid=None, autocast=None, **unknown):
    """Scaled dot-product attention. Returns out, or (out, lse) with return_lse.

    q, k, v: [B,H,S,D] arrays, or [H,S,D]; `layout` names another order of their axes, which out then has too. float16,
    float32, float64, or bfloat16 of ml_dtypes. mask: bool, True = may attend; bias: added to the logits; both broadcast
    against [B,Hq,Sq,Skv]. causal: True, or the corner "tl" or "br" where Sq and Skv differ. The other keywords are the
    fields of a problem. last_report() then says what ran and why nothing else did."""
    keywords = dict(causal=causal, align=align, window=window, scale=scale, softcap=softcap, q_offset=q_offset,
                    dropout=dropout, return_lse=return_lse, determinism=determinism, strict=strict, mixed_kv=mixed_kv,
                    memory_limit=memory_limit, verify=verify, require=require, prefer=prefer, forbid=forbid,
                    autocast=autocast)
    lengths = {"q_len": q_len, "kv_len": kv_len, "cu_q": cu_q, "cu_k": cu_k}
    call, order = _prepare(q, k, v, layout, mask, bias, sinks, slopes, lengths, keywords, unknown)
    out = _allocate(call, "out", _call.OUT)
    lse = _allocate(call, "lse", _call.LSE) if return_lse else None
    _call.run(context, call, None)
    if cu_q is not None:
        out = out.transpose(1, 0, 2)    # packed: the core's is [S,H,D]
    elif q.ndim == 3:
        out, lse = out[0], lse if lse is None else lse[0]
    out = out.transpose(_inverse(order))
    return (out, lse) if return_lse else out


def explain(q, k, v, *, layout="bhsd", mask=None, bias=None, sinks=None, slopes=None, q_len=None, kv_len=None,
            cu_q=None, cu_k=None, seed=None, offset=None, facts=None, **keywords):
    """The report of the same call to attention(), without running anything: legal, refused or faulty alike.

    facts: a facts string such as "cuda cc=9.0 flash-attn=2.8.3" asks for a machine that is not here; the arrays then count
    as lying on that device."""
    unknown = [name for name in keywords if name not in _call.KEYWORDS]
    lengths = {"q_len": q_len, "kv_len": kv_len, "cu_q": cu_q, "cu_k": cu_k}
    where, kind = (context, 0) if facts is None else (_call.what_if(facts), _call.kind_of(facts))
    call, _ = _prepare(q, k, v, layout, mask, bias, sinks, slopes, lengths, keywords, unknown, kind)
    return _call.explain(where, call, None)[1]


def report_line(site, dtypes=None, devices=None):
    """The one line that says what runs at a site (R4), e.g. "cpu (fp32 only; ref otherwise)".

    site: a rapt.torch.attention_site, whose own line it is, or a problem string that stands for every dtype and device of
    two lists, comma separated: "fp16,bf16,fp32" and "cpu,cuda" where they are not given. Runs and loads nothing."""
    if hasattr(site, "report_line"):
        return site.report_line(dtypes=dtypes, devices=devices)
    try:
        text, _ = _call._rapt.ctx_line(context.handle, site, dtypes, devices)
    except _call._rapt.Fault as fault:
        raise _call.argument_error(fault.args[1:], None) from None
    return text
