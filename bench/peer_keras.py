# SPDX-License-Identifier: Apache-2.0
"""Keras with rapt against stock Keras, PyTorch backend: alternating pairs, medians, the threshold from A against A.

    python bench/peer_keras.py [--threads N] [--seconds S] [--layers N] [--grad] [BxSxW ...]

The model is a six-layer encoder with the same weights on all sides, eager and compiled. A compiled graph holds what was
there when it was made, so each side has a process of its own: two with stock Keras, one with rapt.keras.install(). A round
is one forward in each, never at the same time, the first in turn. One thread is timed in the process's CPU time, which
neighbours on the machine disturb less, more threads by the clock on the wall. Prints one line a size and mode: the time
ratio stock / rapt (above 1: rapt is faster), how far the two stock processes are from each other, and the median times.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seconds", type=float, default=6)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--grad", action="store_true", help="with gradients enabled, as in a training step's forward")
parser.add_argument("--side", choices=("stock", "rapt"), help=argparse.SUPPRESS)
parser.add_argument("sizes", nargs="*", default=["1x16x512", "8x128x512"], help="batch x length x width")
args = parser.parse_args()


# ---- One side: a process that times one forward a line it reads ----

def encoder(keras, length, width, heads=8):
    given = x = keras.Input(shape=(length, width))
    for _ in range(args.layers):
        a = keras.layers.MultiHeadAttention(num_heads=heads, key_dim=width // heads)(x, x)
        x = keras.layers.LayerNormalization()(x + a)
        f = keras.layers.Dense(2 * width, activation="relu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(width)(f))
    return keras.Model(given, x)


def serve():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    import keras
    import torch
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(args.grad)
    if args.side == "rapt":
        import rapt.keras
        rapt.keras.install()
    clock = time.process_time if args.threads == 1 else time.perf_counter
    runs = {}
    for size in args.sizes:
        batch, length, width = map(int, size.split("x"))
        keras.utils.set_random_seed(0)
        model, x = encoder(keras, length, width), torch.randn(batch, length, width)
        runs[f"{size} eager"] = model, x
        runs[f"{size} compiled"] = torch.compile(lambda x, model=model: model(x, training=False)), x
    print(f"keras {keras.__version__}", flush=True)
    for line in sys.stdin:
        run, x = runs[line.strip()]
        start = clock()
        run(x)
        print(clock() - start, flush=True)


# ---- Both ----

class Side:
    def __init__(self, name, cache):
        environment = {**os.environ, "KERAS_BACKEND": "torch", "TORCHINDUCTOR_CACHE_DIR": os.path.join(cache, name)}
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--side", name, *sys.argv[1:]],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=environment)
        self.version = self.process.stdout.readline().strip()

    def seconds(self, name):
        print(name, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def compare(name, stock, twin, mine):
    sides = (stock, twin, mine)
    for side in sides * 3:
        side.seconds(name)
    took, end = [], time.perf_counter() + args.seconds
    while time.perf_counter() < end or len(took) < 8:
        turn = len(took) % 3
        seconds = {side: side.seconds(name) for side in sides[turn:] + sides[:turn]}
        took.append([seconds[side] for side in sides])
    ratio = statistics.median(a / b for a, _, b in took)
    noise = abs(statistics.median(a / b for a, b, _ in took) - 1)
    stock_s, _, mine_s = map(statistics.median, zip(*took))
    print(f"{name}, {args.threads} threads: {stock.version} / rapt = {ratio:.3f}, A against A {noise:.3f}, "
          f"{stock_s:.5f} s and {mine_s:.5f} s {'CPU' if args.threads == 1 else 'wall'}, {len(took)} rounds: "
          f"{'not below' if ratio >= 1 - noise else 'BELOW'}", flush=True)


if args.side:
    serve()
else:
    with tempfile.TemporaryDirectory() as cache:                # no artefact of another run
        sides = [Side(name, cache) for name in ("stock", "stock", "rapt")]
        for size in args.sizes:
            for mode in ("eager", "compiled"):
                compare(f"{size} {mode}", *sides)
        for side in sides:
            side.process.stdin.close()
            side.process.wait()
