# SPDX-License-Identifier: Apache-2.0
"""rapt against PyTorch's own attention in one process: alternating pairs, medians, the threshold from A against A.

    python bench/peer_torch.py [--threads N] [--seconds S] [PROBLEM ...]

Both get the same tensors. Prints one line a problem: the time ratio torch / rapt (above 1: rapt is faster), how far torch
against torch is from 1 in the same run, and the median times.
"""
import argparse
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seconds", type=float, default=6)
parser.add_argument("problems", nargs="*", default=["fp32 b1 h8 q2048 k2048 d128", "fp32 b1 h8 q2048 k2048 d128 causal=tl",
                                                    "bf16 b1 h8 q2048 k2048 d128", "fp16 b1 h8 q2048 k2048 d128"])
args = parser.parse_args()
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])

import torch  # noqa: E402  (the affinity comes first: both libraries read it at import)
import torch.nn.functional as F  # noqa: E402

import rapt.torch  # noqa: E402

torch.set_num_threads(args.threads)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def tensors(problem):
    words = problem.split()
    size = {w[0]: w[1:] for w in words[1:6]}
    heads = [int(x) for x in size["h"].split("/")]
    b, sq, sk, d, dtype = int(size["b"]), int(size["q"]), int(size["k"]), int(size["d"]), DTYPES[words[0]]
    torch.manual_seed(0)
    q = torch.rand(b, heads[0], sq, d).mul(2).sub(1).to(dtype)
    k, v = (torch.rand(b, heads[-1], sk, d).mul(2).sub(1).to(dtype) for _ in range(2))
    return (q, k, v), {"is_causal": "causal=tl" in words, "enable_gqa": heads[0] != heads[-1]}


def seconds(fn, a, kw):
    t = time.perf_counter()
    fn(*a, **kw)
    return time.perf_counter() - t


with torch.inference_mode():
    for problem in args.problems:
        a, kw = tensors(problem)
        host, mine = F.scaled_dot_product_attention, rapt.torch.sdpa
        seconds(host, a, kw), seconds(mine, a, kw)
        pairs, same, host_s, mine_s, end = [], [], [], [], time.perf_counter() + args.seconds
        while time.perf_counter() < end or len(pairs) < 5:
            host_s.append(seconds(host, a, kw))
            mine_s.append(seconds(mine, a, kw))
            pairs.append(host_s[-1] / mine_s[-1])
            same.append(host_s[-1] / seconds(host, a, kw))
        ratio, noise = statistics.median(pairs), abs(statistics.median(same) - 1)
        row = rapt.last_report().row
        print(f"{problem}, {args.threads} threads: torch {torch.__version__} / {row} = {ratio:.3f}, A against A {noise:.3f}, "
              f"{statistics.median(host_s):.4f} s and {statistics.median(mine_s):.4f} s, {len(pairs)} pairs: "
              f"{'not below' if ratio >= 1 - noise else 'BELOW'}")
