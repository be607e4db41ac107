# SPDX-License-Identifier: Apache-2.0
"""F.scaled_dot_product_attention's signature and semantics over rapt, and what else rapt has for PyTorch.

The core decides and says why. Its own rows read the tensors where they lie; where it chooses the host's operator (a
call that needs a gradient, dropout, a device without rows of our own), this module calls that operator and keeps its
autograd graph (D28)."""

import inspect
import re
import threading

try:
    import torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError("rapt.torch needs PyTorch, which is not installed: pip install torch, 2.13 or later") from None

from . import _call, _log, _policy, _rapt, _report  # noqa: E402
from ._errors import refuse  # noqa: E402
from ._report import set_last  # noqa: E402

_VERSION = re.match(r"\d+(\.\d+)*", torch.__version__).group()
if tuple(int(part) for part in _VERSION.split(".")[:2]) < (2, 13):
    raise ImportError(f"rapt.torch needs PyTorch 2.13 or later, this is {torch.__version__}")

from torch.overrides import handle_torch_function, has_torch_function  # noqa: E402  after the version is known

from . import _ops, _providers, _torch_request  # noqa: E402
from ._guard import AutocastAttentionGuard  # noqa: E402, F401
from ._install import install, installed, remove  # noqa: E402, F401
from ._site import attention_site  # noqa: E402, F401
from ._torch_host import HostCall, joined, known  # noqa: E402
from ._torch_request import OF_CODE, dtype_name, kind_of  # noqa: E402

_C = torch._C


def _register(handle):
    _rapt.ctx_pool_add(handle)
    _providers.register(handle, _VERSION)


context = _call.Context(_register)
_policy.contexts.append(context)


def use_pool(name):
    """Whose threads run calls of rapt.torch in this process from now on: "own", rapt's, as at the start, or "torch",
    PyTorch's, as many as torch.set_num_threads() says. Returns the name that held before.

    The results are the same bit for bit. With "own" the number of threads is that of the cores this process may use, and
    torch.set_num_threads() has no say. In a child of a fork, "torch" computes on the calling thread alone."""
    if name not in ("own", "torch"):
        raise refuse("name", repr(name), '"own" or "torch" is needed')
    return _rapt.ctx_pool(context.handle, name)


def use_kernel(row, module):
    """Brings a kernel of the `kernels` hub, which rapt never fetches by itself:

        rapt.torch.use_kernel("hub.fa3", kernels.get_kernel("kernels-community/flash-attn3", version=1))

    From then on prefer and require may name the row. ArgumentError: row is no row of a hub kernel, or the module has not
    the functions that rapt would call."""
    _providers.use_kernel(context, row, module)


# ---- One call, from its arguments to its result ----

_SAID = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}


def _request(address, /, *arguments, **keywords):
    return _torch_request.request(address, None, *arguments, **keywords)


def _mixed(r):
    """The host's own words on operands of different dtypes, for who looks for them (A7)."""
    q, k, v = (_SAID.get(t.dtype, dtype_name(t.dtype)) for t in (r.query, r.key, r.value))
    if q == k == v:
        return ""
    return (f" Expected query, key, and value to have the same dtype, but got query.dtype: {q} key.dtype: {k} and "
            f"value.dtype: {v} instead.")


def _allocate(r, call, name, field):
    """The dense tensor the core describes, seen with the axes of query."""
    dtype, sizes, strides = _call.output(context, call, field, r.names, _mixed(r))
    tensor = torch.empty_strided(sizes, strides, dtype=OF_CODE[dtype], device=r.query.device)
    _rapt.attach(call, name, (tensor.data_ptr(), dtype, sizes, strides, r.kind, 0))
    if r.options.get("cu"):
        return tensor.transpose(0, 1) if name == "out" else tensor              # the core's is [S,H,D]
    if r.rank == 3:
        return tensor[0]
    if r.rank == 2:
        return tensor[0, 0]
    return tensor.unflatten(0, r.batch) if r.rank == 5 else tensor


def _decided(where, r, address=True, kind=None):
    """(status, report, request): the call as given, or, where only the host's operator may run and does not take the
    call apart, the same call with one mask."""
    if r.kind and where is context:
        _providers.load(where, r.kind)                          # the packages of this kind of device, once
    status, report = _call.explain(where, _call.prepare(r.tensors, r.options, r.names), r.names)
    if status != _call.STATUS["REFUSED"]:
        return status, report, r
    other = joined(r, report, address, kind)
    if other is None:
        return status, report, r
    again, said = _call.explain(where, _call.prepare(other.tensors, other.options, other.names), other.names)
    if again or said.row not in ("torch.sdpa", "torch.math", "torch.flash_cpu"):
        return status, report, r
    said.notes = other.notes
    return again, said, other


def _on_host(r, key, decided=None):
    """A row that the binding runs itself: the host's own operator, or a package's."""
    status, report, r = decided or _decided(context, r)
    if status:
        set_last(report)
        raise _call.failed(status, report, r.names, _mixed(r))
    age = _rapt.ctx_age(context.handle)
    provider = _providers.is_provider(report.row)
    call = _providers.call(context, r, report, age) if provider else HostCall(r, report, age)
    result = call.run(r.query, r.key, r.value, r.mask, r.bias)
    if key is not None and not r.notes:
        context.keep(key, call)
    return result


def _bindings_own(row):
    return _providers.is_provider(row) or known(row)


def _in_full(key, query, key_, value, attn_mask, dropout_p, is_causal, keywords):
    """Everything checked, described and decided anew. key: what to remember the call by, None for not at all."""
    if _C._functorch.peek_interpreter_stack() is not None:
        return _ops.transformed_sdpa(query, key_, value, attn_mask, dropout_p, is_causal, **keywords)
    r = _request(True, query, key_, value, attn_mask, dropout_p, is_causal, **keywords)
    if r.graph:
        return _on_host(r, key)                                 # no own row serves a gradient yet
    if r.kind:
        decided = _decided(context, r)
        if decided[0] or _bindings_own(decided[1].row):
            return _on_host(r, key, decided)                    # the core does not touch memory of devices
    call = _call.prepare(r.tensors, r.options, r.names)
    out = _allocate(r, call, "out", _call.OUT)
    lse = _allocate(r, call, "lse", _call.LSE) if r.options.get("want_lse") else None
    status, report = _call.attempt(context, call, r.names)
    if status in (_call.HOST, _call.STATUS["REFUSED"]):
        return _on_host(r, key)
    set_last(report)
    if status:
        raise _call.failed(status, report, r.names, _mixed(r))
    if key is not None:
        context.keep(key, _Own(call, report, r, out, lse))
        if keywords.keys() <= {"scale", "enable_gqa"}:
            _rapt.known_keep(context.handle, call, report)
    return (out, lse) if lse is not None else out


class _Own:
    """A call that one of our rows, or a provider's, has run: what is needed to run it on other memory."""

    __slots__ = ("call", "report", "bias", "out", "lse")

    def __init__(self, call, report, r, out, lse):
        self.call, self.report, self.bias = call, report, r.bias is not None
        self.out, self.lse = ((t.shape, t.stride(), t.dtype) if t is not None else None for t in (out, lse))

    def run(self, query, key, value, attn_mask):
        """The result, or None where the call must be made in full."""
        shape, strides, dtype = self.out
        out = torch.empty_strided(shape, strides, dtype=dtype)
        lse = None
        if self.lse is not None:
            lse = torch.empty_strided(self.lse[0], self.lse[1], dtype=self.lse[2])
        mask = bias = 0
        if attn_mask is not None:
            if self.bias:
                bias = attn_mask.data_ptr()
            else:
                mask = attn_mask.data_ptr()
        if not _call.again(context, self.call, self.report, query.data_ptr(), key.data_ptr(), value.data_ptr(), mask,
                           bias, out.data_ptr(), 0 if lse is None else lse.data_ptr()):
            return None
        return out if lse is None else (out, lse)


# ---- Calls seen before ----

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SIMPLE = (str, bool, int, float, type(None))


def _seen(tensor):
    """Of a tensor, all that the core is told but its address; None where its memory is not simply there."""
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.is_neg():
        return None
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def _key(query, key, value, attn_mask, dropout_p, is_causal, keywords):
    """What decides about a call: two calls with one key differ in nothing but their values. None: not worth knowing
    again, or something is going on that only the call in full knows how to treat. Tracers come here first."""
    if (_C._len_torch_dispatch_stack() or _C._functorch.peek_interpreter_stack() is not None
            or _C._get_tracing_state() is not None):
        _refuse_tracers()
        return None
    if torch.autograd.forward_ad._current_level >= 0 or type(is_causal) is not bool or type(dropout_p) is not float:
        return None
    try:
        q, k, v = _seen(query), _seen(key), _seen(value)
        mask = None if attn_mask is None else _seen(attn_mask) or False
    except RuntimeError:                                        # a layout without strides
        return None
    if q is None or k is None or v is None or mask is False:
        return None
    said = ()
    if keywords:
        said = tuple((name, type(value), value) for name, value in keywords.items())
        for _, kind, value in said:
            if kind not in _SIMPLE and not (kind is tuple and all(type(part) is int for part in value)):
                return None
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return (q, k, v, mask, dropout_p, is_causal, said, autocast, torch.is_grad_enabled(), _C._get_flash_sdp_enabled(),
            _policy.held())


def _learn():
    """Tells the extension what plain tensors and a thread without modes look like inside, for the short way. A new
    thread has no modes, whatever the one that imports this has. Where the inside is another, only that way is lost."""
    failed = []

    def learn():
        try:
            for inference in (False, True):
                with torch.inference_mode(inference):
                    sample = torch.empty(1)
                    _rapt.known_learn(inference, sample, sample._cdata, _C._dispatch_keys(sample).raw_repr())
            _rapt.known_begin(*_PLAIN, vars(torch.autograd.forward_ad), _C._get_flash_sdp_enabled,
                              _C._is_torch_function_mode_enabled, _report._last.set, _call.broken)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    thread.join()
    if failed:
        _log.notice(f"rapt.torch, PyTorch {torch.__version__}: {failed[0]}; calls seen before take the long way")


_learn()


def _refuse_tracers():
    """Tracers would record what they see of the call, which is nothing, or a tensor without a history."""
    advice = "trace F.scaled_dot_product_attention, or a custom operator around the call"
    if _C._get_tracing_state() is not None:
        raise refuse("query", "under torch.jit.trace, which would record a constant", advice)
    for mode in _modes():
        if "Proxy" in mode:
            raise refuse("query", "under make_fx or torch.export, which would record a constant", advice)


def _modes():
    stack = [_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack())]
    return [type(mode).__name__ for mode in stack]


_NO_DROPOUT = 0                         # an integer: Dynamo would compile twice over a default that is a float


def sdpa(query, key, value, attn_mask=None, dropout_p=_NO_DROPOUT, is_causal=False, **keywords):
    """F.scaled_dot_product_attention through rapt: the same signature and meaning, plus the keywords of rapt.attention.

    query [B,Hq,Sq,D], key [B,Hkv,Skv,D], value [B,Hkv,Skv,Dv] in fp16, bf16, fp32 or fp64, with any strides, also without
    B or H or with one axis more; out [B,Hq,Sq,Dv], with return_lse (out, lse [B,Hq,Sq]). Beyond the host's own: Dv may
    differ from D on every route, and `bias`, `mask`, `window`, `align`, `return_lse`, `prefer` and the rest are there. The
    autocast state is read at every call. A call that needs gradients runs on the host's operator and keeps its graph.
    last_report() says what ran and why nothing else did.

    ArgumentError: the call is wrong for every row (an argument that is no tensor: TypeError, as in the host).
    RefusedError: nothing permitted can run it. BackendError: what ran it has failed."""
    if torch.compiler.is_compiling():
        return _ops.compiled_sdpa(query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    if dropout_p is _NO_DROPOUT:
        dropout_p = 0.0
    result = _rapt.known_call(context._handle, query, key, value, attn_mask, dropout_p, is_causal, keywords)
    if result is not None:
        return result
    if has_torch_function((query, key, value, attn_mask)) or keywords:
        tensors = _relevant(query, key, value, attn_mask, keywords)
        if has_torch_function(tensors):
            return handle_torch_function(sdpa, tensors, query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    known = _key(query, key, value, attn_mask, dropout_p, is_causal, keywords)
    entry = context.seen.get(known) if known is not None else None
    if type(entry) is _Own:
        result = entry.run(query, key, value, attn_mask)
        if result is not None:
            return result
    elif entry is not None and entry.age == _rapt.ctx_age(context.handle):
        mask = attn_mask is not None and not attn_mask.is_floating_point()
        return entry.run(query, key, value, attn_mask if mask else None, None if mask else attn_mask)
    return _in_full(known, query, key, value, attn_mask, dropout_p, is_causal, keywords)


def _relevant(query, key, value, attn_mask, keywords):
    """The arguments whose type may want the call for itself. The host's causal biases are understood here."""
    return (query, key, value, None if _torch_request.causal_bias(attn_mask) else attn_mask,
            keywords.get("mask"), keywords.get("bias"))


def explain(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, device=None, facts=None, **keywords):
    """The report of the same call to sdpa(), without running anything. Meta and fake tensors will do. ArgumentError for
    what is wrong before there is a call to report on; a call that is refused has a report that says so.

    device: the tensors count as lying there, whatever they are. facts: a facts string such as
    "cuda cc=9.0 flash-attn=2.8.3" asks for a machine that is not here (docs/api.md section 2)."""
    where, kind = _place(device, facts)
    r = _torch_request.request(False, kind, query, key, value, attn_mask, dropout_p, is_causal, **keywords)
    return _decided(where, r, False, kind)[1]


def _place(device, facts):
    """(context, device kind) of a question; kind None: where the tensors are."""
    kind = None
    if device is not None:
        try:
            kind = kind_of(torch.device(device).type)
        except (RuntimeError, TypeError):
            raise refuse("device", repr(device), 'a device of torch is needed, such as "cuda"; its generation is a fact, '
                         'as in facts="cuda cc=9.0"', "DEVICE") from None
    if facts is None:
        return context, kind
    if isinstance(facts, str) and facts.strip() and not re.search(r"(^|\s)torch=", facts):
        facts += f" torch={_VERSION}"
    spoken = _call.kind_of(facts)
    if kind not in (None, spoken):
        raise refuse("device", repr(device), f"the facts speak of {facts.split()[0]}", "DEVICE")
    return _call.what_if(facts), spoken


# ---- Seen from outside ----

def _signature(function, extra):
    """Shows the keywords to help() and to tools; they are taken apart in one place, request()."""
    parameters = list(inspect.signature(_torch_request.request).parameters.values())[2:-1]
    new = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in extra]
    function.__signature__ = inspect.Signature([*parameters, *new])


def _outside_graphs(function):
    """torch.compile breaks its graph here and leaves the call alone, with all that it calls: what torch.compiler.disable
    does, without importing the compiler for programs that have none."""
    frames = _C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, skip)
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "rapt reads the memory of its tensors"


_signature(sdpa, ())
_signature(explain, ("device", "facts"))
_outside_graphs(_in_full)                # sdpa is traced as one operator (_ops.py); what it does when run is not
_outside_graphs(explain)
