# SPDX-License-Identifier: Apache-2.0
"""One dtype for everything that enters an attention module, whatever autocast has made of its inputs."""

import re
from dataclasses import dataclass

import torch

from ._errors import ArgumentError, BackendError, RefusedError, refuse
from ._torch_request import cast_bias, dtype_name

_TARGETS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WANT = "float16, bfloat16, float32 or float64 is needed"
_MASKS = ("attention_mask", "attn_mask", "encoder_attention_mask", "mask")     # as hosts spell them
_SHOWN = 8                              # weights named in a message; the exception's .got has all
_ABOUT_DTYPES = re.compile(r"\b(dtypes?|data type|scalar type|(input|weight|bias) type)\b", re.IGNORECASE)


def _check_tensor(name, tensor):
    if not isinstance(tensor, torch.Tensor):
        hint = "; torch.from_numpy makes one" if type(tensor).__name__ == "ndarray" else ""
        raise refuse(name, f"a {type(tensor).__name__}", f"a torch.Tensor is needed{hint}", "DTYPE")


def _check_castable(name, tensor, target, remedy):
    """Casting is for the dtypes autocast casts (A2, A3): float64 is no accident, and is not narrowed unasked."""
    if tensor.dtype not in _TARGETS:
        raise refuse(name, dtype_name(tensor.dtype), _WANT, "DTYPE")
    if tensor.dtype is torch.float64 is not target:
        raise refuse(name, f"float64, which is not narrowed to {dtype_name(target)} unasked",
                     f"{remedy}, or use AutocastAttentionGuard(torch.float64)", "DTYPE_MIX")


def _cast_stream(name, tensor, target):
    _check_tensor(name, tensor)
    _check_castable(name, tensor, target, f"pass {name}.to({target})")
    return tensor.to(target)


def is_floating_mask(mask):
    """Bool and integer masks, and objects that stand for a mask, are none."""
    return isinstance(mask, torch.Tensor) and mask.is_floating_point() and type(mask).__name__ != "CausalBias"


def _cast_mask(name, mask, target):
    if not is_floating_mask(mask):
        return mask
    _check_castable(name, mask, target, f"build it in {dtype_name(target)} or as a bool mask")
    return cast_bias(mask, target)


def _floating(tensors):
    """The dtypes of those that have one to speak of: no None, no integers or bools."""
    for name, tensor in tensors.items():
        if tensor is not None:
            _check_tensor(name, tensor)
    return {name: t.dtype for name, t in tensors.items() if t is not None and (t.is_floating_point() or t.is_complex())}


def _weights(module):
    return [(name, p.dtype) for name, p in module.named_parameters() if p.is_floating_point()]


def _weights_error(weights, target, addition=""):
    """The error that names the weights which are not of the target dtype; None where there is no such one."""
    said = [f"{name} ({dtype_name(dtype)})" for name, dtype in weights if dtype != target]
    if not said:
        return None
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    want = dtype_name(target)
    of_all = {dtype for _, dtype in weights}
    other = ""
    if len(of_all) == 1 and of_all <= set(_TARGETS):
        other = f", or use AutocastAttentionGuard({of_all.pop()})"
    return ArgumentError(
        f"DTYPE_MIX: the module has weights that are not {want}: {', '.join(said[:_SHOWN])}{more}; cast it with "
        f"module.to({target}){other}.{addition}", "DTYPE_MIX", "module", ", ".join(said), want)


def _without_autocast(types, function, *arguments, **keywords):
    """torch.autocast restores the outer state on every exit (A11)."""
    if not types:
        return function(*arguments, **keywords)
    with torch.autocast(types[0], enabled=False):
        return _without_autocast(types[1:], function, *arguments, **keywords)


@dataclass(frozen=True)
class AutocastAttentionGuard:
    """Runs an attention module on inputs of one dtype, with the outer autocast off.

    target_dtype: what both streams and a floating mask are cast to; None is the dtype of hidden_states.
    disable_outer_autocast: False leaves the state of torch.autocast to the module. device: a device type whose autocast is
    switched off too, beside that of hidden_states."""

    target_dtype: torch.dtype | None = None
    disable_outer_autocast: bool = True
    device: str | None = None

    def __post_init__(self):
        if self.target_dtype is not None and self.target_dtype not in _TARGETS:
            got = self.target_dtype
            raise refuse("target_dtype", dtype_name(got) if isinstance(got, torch.dtype) else repr(got), _WANT, "DTYPE")
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError):
            raise refuse("device", repr(self.device), 'a device of torch is needed, such as "cuda"', "DEVICE") from None

    def _types(self, tensor):
        """Device types whose autocast is switched off; one without autocast has none to switch (A12)."""
        if not self.disable_outer_autocast:
            return ()
        types = (tensor.device.type,)
        if self.device is not None and torch.device(self.device).type not in types:
            types += (torch.device(self.device).type,)
        return tuple(kind for kind in types if torch.amp.is_autocast_available(kind))

    def run(self, module_or_fn, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        """module_or_fn(hidden_states, ..) with both streams and the masks in the target dtype.

        encoder_hidden_states and attention_mask are passed on by these names where they are given, and so are kwargs;
        floating masks among them (attn_mask, encoder_attention_mask, mask) are cast too, everything else is passed as it
        is. Where the module then fails on a mix of dtypes, its weights that do not fit are named; a compiled graph fails
        past this place, so compiled code calls validate(module=) first."""
        _check_tensor("hidden_states", hidden_states)
        target = hidden_states.dtype if self.target_dtype is None else self.target_dtype
        hidden = _cast_stream("hidden_states", hidden_states, target)
        if encoder_hidden_states is not None:
            kwargs["encoder_hidden_states"] = _cast_stream("encoder_hidden_states", encoder_hidden_states, target)
        if attention_mask is not None:
            kwargs["attention_mask"] = attention_mask
        for name in _MASKS:
            if name in kwargs:
                kwargs[name] = _cast_mask(name, kwargs[name], target)
        types = self._types(hidden_states)
        try:
            return _without_autocast(types, module_or_fn, hidden, **kwargs)
        except (RefusedError, BackendError):    # they carry a report
            raise
        except RuntimeError as error:
            module = getattr(module_or_fn, "__self__", module_or_fn)
            if not isinstance(module, torch.nn.Module) or not _ABOUT_DTYPES.search(str(error)):
                raise
            named = _weights_error(_weights(module), target, f" The module said: {error}")
            if named is None:
                raise
            raise named from error

    def validate(self, *unnamed, module=None, **tensors):
        """The one dtype of the tensors given by name, such as q=q, k=k, v=v, and of the floating weights of module.

        It is target_dtype where that is set. None, bool and integer tensors are passed over. Anything else is an
        ArgumentError that names the tensors or weights, their dtypes and the remedy. None: nothing floating was given.

        Tensors without names are only asked about: (whether they have one dtype, the set of their dtypes)."""
        if unnamed:
            if tensors or module is not None:
                raise refuse("validate", "given tensors with and without names", "give every one a name", "UNKNOWN_FIELD")
            found = set(_floating({f"tensor {i}": tensor for i, tensor in enumerate(unnamed)}).values())
            return len(found) == 1, found
        found = _floating(tensors)
        if found:
            self._check_found(found)
        if module is None:
            return next(iter(found.values()), None)
        return self._check_module(module, next(iter(found.values()), self.target_dtype))

    def _check_found(self, found):
        target = self.target_dtype or next(iter(found.values()))
        wrong = [name for name, dtype in found.items() if dtype != target]
        if not wrong:
            if target not in _TARGETS:
                name, dtype = next(iter(found.items()))
                raise refuse(name, dtype_name(dtype), _WANT, "DTYPE")
            return
        code = "DTYPE_MIX" if len(set(found.values())) > 1 else "DTYPE"
        said = ", ".join(f"{name} is {dtype_name(dtype)}" for name, dtype in found.items())
        casts = ", ".join(f"{name}.to({target})" for name in wrong)
        raise ArgumentError(f"{code}: {said}; all must be {dtype_name(target)}: pass {casts}.", code, ",".join(found), said,
                            dtype_name(target))

    def _check_module(self, module, target):
        if not isinstance(module, torch.nn.Module):
            raise refuse("module", f"a {type(module).__name__}", "a torch.nn.Module is needed", "DTYPE")
        if target is None:
            counts = {}
            for p in module.parameters():
                if p.is_floating_point():
                    counts[p.dtype] = counts.get(p.dtype, 0) + p.numel()
            if not counts:
                return None
            target = max(counts, key=counts.get)        # of a mixed module, the few are named, not the many
        error = _weights_error(_weights(module), target)
        if error is not None:
            raise error
        return target
