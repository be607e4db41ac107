# SPDX-License-Identifier: Apache-2.0
"""F.scaled_dot_product_attention with rapt installed against the same call without, in one process.

    python bench/peer_sdpa.py [--full] [--level avx2|native] [--prefer ROWS] [--seconds S] [--dtype D ...] [--only TEXT]

PyTorch's own CPU grid (batch 2, 12; length 267, 1030; heads 1, 3; width 8, 16; causal; masks of rank 2 and 4) and shapes
of models, on one thread by CPU time: without, with, without, again and again. The ratio is the time without over the time
with (above 1: rapt is faster); A against A is how far the first without over the second is from 1, for a group the mean
of its cases. --level avx2 caps both sides to AVX2. Without --full, a part of the grid that takes less than three minutes.
Before them the call overhead: one query and one key of width 64, rapt.torch.sdpa beside F.sdpa, and F.sdpa with rapt
installed beside without; there the figure is a time ratio, below 1: rapt is faster.
"""
import argparse
import collections
import contextlib
import functools
import math
import os
import statistics
import sys
import time
import warnings

parser = argparse.ArgumentParser()
parser.add_argument("--full", action="store_true")
parser.add_argument("--level", choices=("avx2", "native"), default="native")
parser.add_argument("--prefer", help="rows that go first, such as cpu.avx512")
parser.add_argument("--seconds", type=float, help="CPU time a case; default 0.3")
parser.add_argument("--dtype", nargs="*", default=["fp32", "bf16", "fp16", "fp64"])
parser.add_argument("--only", default="", help="cases whose line begins with or holds this text")
args = parser.parse_args()
args.seconds = args.seconds or 0.3
if args.level == "avx2":                # read by the libraries when they are loaded
    os.environ.update(RAPT_ISA="avx2", ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2",
                      MKL_ENABLE_INSTRUCTIONS="AVX2", DNNL_MAX_CPU_ISA="AVX2")
if args.prefer:
    os.environ["RAPT_PREFER"] = args.prefer
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

import torch  # noqa: E402  (the environment comes first)
import torch.nn.functional as F  # noqa: E402

import rapt.torch  # noqa: E402

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
CASE_BAR, MEAN_BAR = 0.85, 1.0
CALL_BAR, INSTALLED_BAR = 0.8, 0.7      # of F.sdpa's time, one query and one key

Case = collections.namedtuple("Case", "name b h hk sq sk d dv options mask train")


# ---- Cases ----

def grid():
    """PyTorch's own, forward and, with --full, also with the backward in every case."""
    masks = [(), ("causal",), ("bool", "2"), ("float", "2"), ("bool", "4"), ("float", "4")]
    if args.full:
        masks += [("bool", "2", "row"), ("float", "4", "row")]
    for b in (2, 12):
        for s in (267, 1030):
            for h in (1, 3):
                for d in (8, 16):
                    part = (b, s, h, d) in ((2, 267, 1, 8), (12, 267, 3, 16), (2, 1030, 3, 8))
                    for mask in masks if args.full or part else ():
                        for train in (False, True):
                            if args.full or not train or mask in ((), ("causal",)) and s == 267:
                                yield Case("grid", b, h, h, s, s, d, d, {"is_causal": mask == ("causal",)},
                                           mask if mask != ("causal",) else (), train)


def models():
    """Of the tables of kernels: heads or batches fewer than the model's, so that the run ends."""
    def case(name, b, h, hk, sq, sk, d, dv=None, train=False, mask=(), **options):
        return Case(name, b, h, hk, sq, sk, d, dv or d, options, mask, train)

    yield case("bert128", 2, 12, 12, 128, 128, 64)
    yield case("vit197", 2, 16, 16, 197, 197, 64)
    yield case("flux512", 1, 4, 4, 1536, 1536, 128)
    yield case("prefill2k", 1, 4, 4, 2048, 2048, 128, is_causal=True)
    yield case("decode4k", 1, 8, 8, 1, 4096, 128)
    yield case("decode8k gqa", 1, 32, 8, 1, 8192, 128, enable_gqa=True)
    yield case("wan cross", 1, 4, 4, 2048, 512, 128)
    yield case("padding", 2, 8, 8, 512, 512, 64, mask=("bool", "pad"))
    yield case("wide value", 1, 8, 8, 512, 512, 64, 128)
    yield case("small", 1, 8, 8, 16, 16, 64)
    yield case("small", 1, 8, 8, 16, 16, 64, train=True)
    if args.full:
        yield case("flux1024", 1, 2, 2, 4608, 4608, 128)
        yield case("wan", 1, 2, 2, 4096, 4096, 128)
        yield case("decode4k", 1, 32, 32, 1, 4096, 128)
        yield case("decode32k gqa", 1, 32, 8, 1, 32768, 128, enable_gqa=True)
        yield case("prefill gqa", 1, 8, 2, 1024, 1024, 128, is_causal=True, enable_gqa=True)
        yield case("window", 1, 8, 8, 1024, 1024, 128, mask=("bool", "window"))
        for d in (40, 80, 96, 160, 256):
            yield case("width", 1, 4, 4, 512, 512, d)
        for name, *size in (("bert128", 2, 12, 12, 128, 128, 64), ("flux512", 1, 4, 4, 1536, 1536, 128)):
            yield case(name, *size, train=True)


def mask_of(c, dtype):
    if not c.mask:
        return None
    kind, shape = c.mask[0], c.mask[1:]
    if shape == ("window",):
        distance = torch.arange(c.sq)[:, None] - torch.arange(c.sk)
        return distance.abs() <= 128
    sizes = {("2",): (c.sq, c.sk), ("4",): (c.b, c.h, c.sq, c.sk), ("2", "row"): (1, c.sk),
             ("4", "row"): (c.b, 1, 1, c.sk), ("pad",): (c.b, 1, 1, c.sk)}[shape]
    if shape == ("pad",):
        return (torch.arange(c.sk) < c.sk // 2).expand(sizes)
    return torch.rand(sizes) > 0.2 if kind == "bool" else torch.randn(sizes).to(dtype)


def call_of(c, dtype):
    """() -> one forward, or a forward and a backward."""
    torch.manual_seed(0)
    q, k, v = (torch.rand(c.b, heads, s, d).mul(2).sub(1).to(dtype).requires_grad_(c.train)
               for heads, s, d in ((c.h, c.sq, c.d), (c.hk, c.sk, c.d), (c.hk, c.sk, c.dv)))
    mask, options = mask_of(c, dtype), c.options
    sdpa = F.scaled_dot_product_attention
    if not c.train:
        return lambda: sdpa(q, k, v, attn_mask=mask, **options)
    wanted, gradient = (q, k, v), torch.randn(c.b, c.h, c.sq, c.dv).to(dtype)
    return lambda: torch.autograd.grad(sdpa(q, k, v, attn_mask=mask, **options), wanted, gradient)


# ---- Measuring ----

def seconds(call, n):
    t = time.thread_time()
    for _ in range(n):
        call()
    return (time.thread_time() - t) / n


def measure(call):
    """(ratio, A against A, seconds without, seconds with, row): medians over rounds."""
    call()
    n = max(1, min(2000, int(0.006 / max(seconds(call, 1), 1e-7))))
    ratios, same, hosts, mines, row, end = [], [], [], [], None, time.thread_time() + args.seconds
    while len(ratios) < (5 if n > 1 else 3) or time.thread_time() < end:
        before = seconds(call, n)
        with rapt.torch.install():
            call()                      # the first call after the operators have changed
            mine = seconds(call, n)
            row = row or rapt.last_report().row
        call()
        after = seconds(call, n)
        ratios.append((before + after) / 2 / mine)
        same.append(before / after)
        hosts.append((before + after) / 2)
        mines.append(mine)
    ratio, same, host, mine = (statistics.median(x) for x in (ratios, same, hosts, mines))
    return ratio, abs(same - 1), host, mine, row


def described(c, dtype):
    heads = f"{c.h}/{c.hk}" if c.h != c.hk else f"{c.h}"
    words = [c.name, dtype, f"b{c.b} h{heads} q{c.sq} k{c.sk} d{c.d}"] + ([f"dv{c.dv}"] if c.dv != c.d else [])
    words += ["causal"] if c.options.get("is_causal") else []
    words += ["mask=" + ",".join(c.mask)] if c.mask else []
    return " ".join(words + ["forward+backward" if c.train else "forward"])


def mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(what, results, bar):
    """results: (ratio, A against A) a case. True where the bar is missed."""
    ratio, noise, worst = mean([r for r, _ in results]), statistics.fmean(n for _, n in results), min(results)[0]
    missed = bar is not None and ratio < bar - noise
    verdict = "" if bar is None else f"  bar {bar:.2f} {'MISSED' if missed else 'met'}"
    print(f"{what}: geometric mean {ratio:.3f}, lowest {worst:.3f}, A against A {noise:.3f}, {len(results)} cases{verdict}",
          flush=True)
    return missed


# ---- One query, one key ----

def overhead(what, host, other, bar, around=contextlib.nullcontext):
    """Time of other, inside of around(), over that of host. True where the bar is missed."""
    ratios, same = [], []
    for _ in range(41):
        seconds(host, 100)
        before = seconds(host, 1500)
        with around():
            seconds(other, 100)
            mine = seconds(other, 1500)
        seconds(host, 100)
        after = seconds(host, 1500)
        ratios.append(2 * mine / (before + after))
        same.append(before / after)
    ratio, noise = statistics.median(ratios), abs(statistics.median(same) - 1)
    missed = bar is not None and ratio > bar + noise
    verdict = "" if bar is None else f"  bar {bar:.2f} {'MISSED' if missed else 'met'}"
    print(f"one query and key, {what}: {ratio:.3f} of torch's {after * 1e6:.2f} us, A against A {noise:.3f}{verdict}",
          flush=True)
    return missed


def overheads():
    q, k, v = (torch.rand(1, 1, 1, 64) for _ in range(3))
    wanting, narrow = torch.rand(1, 1, 1, 64, requires_grad=True), torch.rand(1, 1, 1, 32)
    host = functools.partial(F.scaled_dot_product_attention, q, k, v)
    mine = functools.partial(rapt.torch.sdpa, q, k, v)
    missed = overhead("rapt.torch.sdpa, grad mode on", host, mine, CALL_BAR)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            missed += overhead(f"rapt.torch.sdpa, {mode.__name__}", host, mine, CALL_BAR)
    missed += overhead("installed", host, host, INSTALLED_BAR, rapt.torch.install)
    for what, *tensors in (("forward wanting gradients", wanting, k, v), ("Dv 32", q, k, narrow),
                           ("fp64", q.double(), k.double(), v.double())):
        call = functools.partial(F.scaled_dot_product_attention, *tensors)
        overhead(f"installed, {what}", call, call, None, rapt.torch.install)
    return missed


def dtypes_of(c):
    """The grid in all; the models in those that have one."""
    return [name for name in args.dtype if c.name == "grid" or name != "fp64"]


def main():
    print(f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), level {args.level}"
          f"{', both sides capped' if args.level == 'avx2' else ''}, rapt {rapt._rapt.VERSION}, "
          f"prefer {args.prefer or '-'}, 1 thread, CPU time")
    groups, below, missed = collections.defaultdict(list), 0, 0 if args.only else overheads()
    for dtype in args.dtype:
        for c in (*grid(), *models()):
            name = described(c, dtype)
            if args.only not in name or dtype not in dtypes_of(c):
                continue
            ratio, same, host, mine, row = measure(call_of(c, DTYPES[dtype]))
            low = ratio < CASE_BAR - same
            below += low
            for key in (("dtype", dtype), ("row", dtype, row), ("route", dtype, "backward" if c.train else "forward")):
                groups[key].append((ratio, same))
            print(f"{name}: torch / {row} = {ratio:.3f}, A against A {same:.3f}, {host * 1e6:.1f} us and "
                  f"{mine * 1e6:.1f} us{'  BELOW' if low else ''}", flush=True)
    for key, results in sorted(groups.items(), key=str):
        missed += summary(" ".join(map(str, key)), results, MEAN_BAR if key[0] == "dtype" else None)
    print(f"cases below {CASE_BAR}: {below}  {'MISSED' if below else 'met'}")
    return bool(missed or below)


sys.exit(main())
