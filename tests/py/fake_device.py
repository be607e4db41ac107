# SPDX-License-Identifier: Apache-2.0
"""CPU tensors that count as lying on another kind of device, and the fake packages that take them there.

    fakes = fake_device.pretend(monkeypatch)            # a context of its own; fakes.calls has what the packages got

Nothing of the product is replaced but the table of device kinds and the facts of the device that is not here."""

import pathlib
import sys

from rapt import _call, _providers

FAKES = pathlib.Path(__file__).parent / "fakes"
FACTS = {
    "cuda": {"cuda": "12.8", "cudnn": "9.12.0", "triton": "3.5.0", "flash-attn.cc": "8.0,9.0,10.0,12.0",
             "flash-attn-3.cc": "8.0,9.0"},
    "hip": {"rocm": "6.4"}, "npu": {}, "xla": {}, "xpu": {},
}


NAMES = ("flash_attn", "flash_attn_interface", "sageattention", "sageattn3", "xformers", "mslk", "aiter", "torch_npu",
         "torch_xla", "kernels")


def forget(monkeypatch):
    """What was imported under these names before is not what this test is to import."""
    for name in list(sys.modules):
        if name.split(".")[0] in NAMES:
            monkeypatch.delitem(sys.modules, name)


def on_path(monkeypatch, other=False):
    """other: those that hosts look for too, and import far more of than a fake has."""
    forget(monkeypatch)
    if other:
        monkeypatch.syspath_prepend(str(FAKES / "other"))
    monkeypatch.syspath_prepend(str(FAKES))
    import rapt_fakes
    rapt_fakes.reset()
    return rapt_fakes


def pretend(monkeypatch, kind="cuda", where="9.0", **facts):
    """CPU tensors count as `kind`; where: the generation or architecture. Returns the module of the fakes."""
    import rapt.torch
    from rapt import _torch_request
    fakes = on_path(monkeypatch, kind in ("npu", "xla"))
    fakes.on_device = True
    known = {**FACTS[kind], **({"cc": where} if kind == "cuda" else {"arch": where} if kind == "hip" else {}), **facts}
    monkeypatch.setattr(_providers, "device_facts", lambda _: known)
    monkeypatch.setitem(_torch_request._KINDS, "cpu", _call.KINDS[kind])
    monkeypatch.setattr(rapt.torch, "context", _call.Context(rapt.torch._register))
    return fakes


def at_home(monkeypatch):
    """The fakes are there, the tensors are where they are."""
    import rapt.torch
    fakes = on_path(monkeypatch)
    monkeypatch.setattr(rapt.torch, "context", _call.Context(rapt.torch._register))
    return fakes
