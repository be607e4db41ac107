# SPDX-License-Identifier: Apache-2.0
"""Which packages there are, which rows are theirs, how they are found, loaded and asked whether they run here."""

import importlib.metadata
import platform

import torch

from .. import _call

CPU, CUDA, HIP, XPU, XLA, HPU, NPU = (_call.KINDS[name] for name in ("cpu", "cuda", "hip", "xpu", "xla", "hpu", "npu"))


class Package:
    """One registration: rows that stand or fall together.

    kinds: devices that its rows run on. module: its import name; None: part of PyTorch, or brought by hand. symbols:
    functions that must be there. fact: the key of its version in a facts string; companions: others that the rows'
    limits speak of. distributions: what metadata may call it. also: fields of a row that this binding's way of calling
    changes. probe: a function that launches the package on a device (see launched)."""

    def __init__(self, name, rows, kinds, module=None, symbols=(), fact=None, distributions=None, also=None, probe=None,
                 companions=None, builtin=False):
        self.name, self.rows, self.kinds, self.module, self.symbols = name, rows, kinds, module, symbols
        self.fact, self.also, self.probe, self.builtin = fact or name, also or {}, probe, builtin
        self.distributions = distributions or (name,)
        self.companion_facts = companions or ()

    def companions(self):
        """Versions of packages that the rows' limits speak of besides their own."""
        found = {fact: _version((fact,)) for fact in self.companion_facts}
        return {fact: version for fact, version in found.items() if version is not None}

    def load(self, import_module):
        """The module that has the functions, really imported. Raises whatever importing it raises."""
        module = import_module(self.module)
        missing = [name for name in self.symbols if not callable(getattr(module, name, None))]
        if missing:
            raise ImportError(f"{module.__name__} has no {', '.join(missing)}")
        return module

    def launched(self, module, kind):
        """Facts of one small call on the current device: NAME.cc, what it runs on. No device, no fact."""
        if self.probe is None or kind != CUDA or not torch.cuda.is_available():
            return {}
        self.probe(module)
        return {f"{self.fact}.cc": "%d.%d" % torch.cuda.get_device_capability()}


def _version(distributions):
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except Exception:                                       # not there, or metadata that cannot be read
            continue
    return None


def distribution(package):
    """The installed version, None where there is none. Nothing is imported."""
    return _version(package.distributions)


def reason_of(error):
    """One line for a row's reason: plain ASCII, as long as a reason has room."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.encode("ascii", "replace").decode()[:95]


def device_facts(kind):
    """What the rows' limits ask of the device. Devices of several generations have none in common: that fact is left
    out, and the rows that need it say so."""
    if kind not in (CUDA, HIP) or not torch.cuda.is_available():
        return {}
    facts = {}
    devices = range(torch.cuda.device_count())
    if kind == HIP:
        facts["rocm"] = torch.version.hip.split("-")[0]
        archs = {torch.cuda.get_device_properties(i).gcnArchName.split(":")[0] for i in devices}
        return {**facts, "arch": archs.pop()} if len(archs) == 1 else facts
    facts["cuda"] = torch.version.cuda
    generations = {"%d.%d" % torch.cuda.get_device_capability(i) for i in devices}
    if len(generations) == 1:
        facts["cc"] = generations.pop()
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    if cudnn:
        facts["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    triton = _version(("triton",))
    return facts if triton is None else {**facts, "triton": triton}


def python_facts():
    return {"python": platform.python_version().rstrip("+")}


def _tiny(shape=(1, 1, 1, 64)):
    return torch.zeros(shape, dtype=torch.float16, device="cuda")


def _launch_flash(module):
    with torch.no_grad():
        module.flash_attn_func(_tiny(), _tiny(), _tiny())
    torch.cuda.synchronize()


# Capabilities that come with how flex is called here: tensors by closure, isolation on a CPU by a second pass (_flex.py);
# on other devices every call promises finite tensors (H3).
_BITS = {name: 1 << bit for name, bit in (("mask", 2), ("bias", 3), ("broadcast", 4), ("mask_causal", 5),
                                          ("bias_causal", 6), ("mask_bias", 7), ("alibi", 16), ("isolate", 29),
                                          ("any_stride", 33), ("any_bias_dtype", 34))}
# Sequence ends lie in host memory here: the longest is read off them, and they are sent as int32.
_PACKED = {"also": 1 << 24 | 1 << 38}
_FLEX = {"also": sum(_BITS.values())}

TORCH = Package("torch", ("torch.sdpa", "torch.flash_cpu", "torch.flash", "torch.efficient", "torch.math", "torch.cudnn"),
                (CPU, CUDA, HIP, XPU, XLA, HPU, NPU), builtin=True)

PACKAGES = (
    Package("torch.varlen", ("torch.varlen",), (CUDA,), also=_PACKED, builtin=True),
    Package("flex", ("flex",), (CPU, CUDA, XPU, HPU), also=_FLEX, builtin=True),
    Package("flash-attn", ("fa2", "fa2.varlen", "fa2.rocm_ck", "fa2.rocm_triton"), (CUDA, HIP), "flash_attn",
            ("flash_attn_func", "flash_attn_varlen_func"), distributions=("flash-attn", "flash_attn"), also=_PACKED,
            probe=_launch_flash),
    Package("flash-attn-3", ("fa3", "fa3.varlen"), (CUDA,), "flash_attn_interface",
            ("flash_attn_func", "flash_attn_varlen_func"), distributions=("flash-attn-3", "flash_attn_3"), also=_PACKED,
            probe=_launch_flash),
    Package("flash-attn-4", ("fa4",), (CUDA,), "flash_attn.cute", ("flash_attn_func",),
            distributions=("flash-attn-4", "flash_attn_4")),
    Package("sageattention", ("sage.auto", "sage.fp16_cuda", "sage.triton", "sage.fp8_cuda", "sage.fp8_sm90",
                              "sage.varlen"), (CUDA,), "sageattention", ("sageattn",), also=_PACKED),
    Package("sageattn3", ("sage3",), (CUDA,), "sageattn3", ("sageattn3_blackwell",)),
    Package("mslk", ("mslk.auto", "mslk.fa3", "mslk.fa2", "mslk.cutlass", "mslk.splitk", "mslk.blackwell", "mslk.ck"),
            (CUDA, HIP), "xformers.ops", ("memory_efficient_attention",), fact="xformers",
            distributions=("xformers",), companions=("mslk",)),
    Package("aiter", ("aiter.ck",), (HIP,), "aiter", ("flash_attn_func",), distributions=("aiter", "amd-aiter")),
    Package("torch_npu", ("npu",), (NPU,), "torch_npu", ("npu_fusion_attention",),
            distributions=("torch_npu", "torch-npu")),
    Package("torch_xla", ("xla",), (XLA,), "torch_xla.experimental.custom_kernel", ("flash_attention",),
            distributions=("torch_xla", "torch-xla")),
)

_FLASH = ("flash_attn_func",)
_VARLEN = ("flash_attn_varlen_func",)
HUB = tuple(Package(row, (row,), kinds, symbols=symbols, fact="kernels", distributions=("kernels",),
                    also=_PACKED if symbols is _VARLEN else None) for row, kinds, symbols in (
    ("hub.fa2.cuda", (CUDA,), _FLASH), ("hub.fa2.xpu", (XPU,), _FLASH), ("hub.fa2.cpu", (CPU,), _VARLEN),
    ("hub.fa2.varlen", (CUDA,), _VARLEN), ("hub.fa3", (CUDA,), _FLASH), ("hub.fa3.varlen", (CUDA,), _VARLEN),
    ("hub.fa4", (CUDA,), _FLASH), ("hub.sage", (CUDA,), ("sageattn",)), ("hub.aiter_ck", (HIP,), _FLASH),
    ("hub.aiter_triton", (HIP,), _FLASH)))
