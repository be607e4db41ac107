# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch: every dot_product_attention through rapt's decision, eager and compiled.

Keras' layers and its functional call look up one attribute of its backend at every call; install() replaces that. This
module imports neither Keras nor PyTorch before it knows that Keras runs on PyTorch."""

import importlib
import inspect
import os
import sys
import threading

from ._errors import RefusedError, refuse

_ATTRIBUTE = "keras.src.backend.nn.dot_product_attention"
_PARAMETERS = ("query", "key", "value", "bias", "mask", "scale", "is_causal", "flash_attention", "attn_logits_soft_cap")
_NEEDED = (
    "keras.src.backend.nn.dot_product_attention", "keras.src.ops.nn.DotProductAttention.compute_output_spec",
    "keras.src.backend.convert_to_tensor", "keras.src.backend.cast", "keras.src.backend.result_type")
_lock = threading.Lock()
_state = None                           # while installed: (what the attribute held, what the symbolic rule was)


class FlashUnavailable(RefusedError):
    """flash_attention=True, and no row of class fused that is permitted can run the call; `report` says why of each."""

    def __init__(self, report):
        super().__init__(report)
        self.args = (f"Flash attention is not supported with the provided inputs. {report}",)

    def __reduce__(self):
        return type(self), (self.report,)


# ---- Which Keras this is ----

def _chosen():
    """The name of Keras' backend. One that its environment names is refused before anything is imported."""
    name = os.environ.get("KERAS_BACKEND", "")
    if "keras" in sys.modules or name in ("", "torch"):
        try:
            name = importlib.import_module("keras").backend.backend()
        except ImportError as error:
            raise ImportError(f"rapt.keras needs Keras on PyTorch, and Keras did not import: {error}. Install keras and "
                              "torch, and set KERAS_BACKEND=torch before the first import of Keras") from error
    return name


def _find(path):
    """(holder, last name, what is there), or one error that names the attribute and the version."""
    module, names = "keras.src.ops" if path.startswith("keras.src.ops") else "keras.src.backend", path.split(".")[3:]
    held = importlib.import_module(module)
    for name in names:
        holder, held = held, getattr(held, name, None)
        if held is None:
            version = getattr(sys.modules["keras"], "__version__", "unknown")
            raise ImportError(f"rapt.keras needs {path}, which Keras {version} does not have")
    return holder, names[-1], held


def _hook():
    """The module of the hook; an error where Keras is not one that it fits."""
    name = _chosen()
    if name != "torch":
        raise refuse("Keras' backend", name, "rapt.keras serves Keras on PyTorch: set KERAS_BACKEND=torch before the "
                     "first import of Keras", "AVAIL")
    for path in _NEEDED:
        _find(path)
    return importlib.import_module("._keras_hook", __package__)


def _original():
    holder, name, held = _find(_ATTRIBUTE)
    if getattr(held, "__module__", None) != "keras.src.backend.torch.nn":
        raise RuntimeError(f"rapt.keras.install: {_ATTRIBUTE} is held by {_whose(held)}; take that out first")
    parameters = tuple(inspect.signature(held).parameters)
    if parameters != _PARAMETERS:
        version = sys.modules["keras"].__version__
        raise ImportError(f"rapt.keras knows {_ATTRIBUTE}({', '.join(_PARAMETERS)}), Keras {version} has "
                          f"({', '.join(parameters)})")
    return holder, name, held


def _whose(held):
    return f"{getattr(held, '__module__', '?')}.{getattr(held, '__qualname__', type(held).__name__)}"


# ---- Putting in and taking out ----

class Installed:
    """What install() returns: a context manager that takes out what it has put in."""

    def __init__(self, mine):
        self._mine = mine               # the state that it has put in; None for none

    def remove(self):
        """Keras' own function is back. RuntimeError, and nothing changes, where another library has replaced it since."""
        _remove(self._mine)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()
        return False


def installed():
    """Whether Keras' attention goes through rapt now."""
    return _state is not None


def install():
    """Every dot_product_attention of Keras runs rapt until the handle's remove(), or the end of a `with`.

    Returns the handle; where rapt is installed already, one whose remove() does nothing. ArgumentError (AVAIL): Keras
    runs on another backend than PyTorch. RuntimeError: another library holds the attribute. ImportError: no Keras, or
    one without an attribute that this needs."""
    global _state
    with _lock:
        if _state is not None:
            return Installed(None)
        hook = _hook()
        holder, name, original = _original()
        rule = _find(_NEEDED[1])
        setattr(holder, name, hook.dot_product_attention)
        setattr(rule[0], rule[1], hook.symbolic_rule(rule[2]))
        _state = original, rule[2]
        hook.forget_compiled()
        return Installed(_state)


def remove():
    """Keras' own function is back. Nothing happens where nothing is installed."""
    _remove(_state)


def _remove(mine):
    """mine: what is to be taken out, if it still is what is installed."""
    global _state
    with _lock:
        if mine is None or _state is not mine:
            return
        hook = _hook()
        (holder, name, held), rule = _find(_ATTRIBUTE), _find(_NEEDED[1])
        if held is not hook.dot_product_attention:
            raise RuntimeError(f"rapt.keras.remove: {_ATTRIBUTE} is now held by {_whose(held)}; take that out first")
        setattr(holder, name, _state[0])
        setattr(rule[0], rule[1], _state[1])
        _state = None
        hook.forget_compiled()


def explain(query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None,
            attn_logits_soft_cap=None, *, device=None, facts=None):
    """The report of a dot_product_attention with these arguments, [B,T,N,H] and [B,S,K,H]; nothing runs.

    Meta tensors will do. device and facts are those of rapt.torch.explain. A line of the report says whether
    flash_attention made a difference to the choice."""
    return _hook().explain(query, key, value, bias, mask, scale, is_causal, flash_attention, attn_logits_soft_cap,
                           device, facts)
