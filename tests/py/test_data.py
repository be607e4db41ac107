# SPDX-License-Identifier: Apache-2.0
"""The recorded layers of examples/data: real weights, real text, the framework's own output (N13, M5, M8, S5)."""

import pathlib

import numpy as np
import oracle_np
import pytest
from safetensors.numpy import load_file

import rapt

DATA = pathlib.Path(__file__).parents[2] / "examples" / "data"


def layer(name):
    tensors = load_file(DATA / f"{name}.safetensors")
    keywords = {"mask": tensors["mask"]} if "mask" in tensors else {"causal": "tl"}
    visibility = {"mask": tensors["mask"]} if "mask" in tensors else {"causal": True}
    return tensors, keywords, visibility


@pytest.mark.parametrize("row", ["cpu", "ref"])
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_recorded_layer_n13(name, row):
    t, keywords, visibility = layer(name)
    out = rapt.attention(t["q"], t["k"], t["v"], require=row, **keywords)
    o, _, bound, _ = oracle_np.attention(t["q"], t["k"], t["v"], **visibility)
    oracle_np.check(out, o, bound)
    oracle_np.check(out, t["out"].astype(np.float64), bound, times=2.0)        # the framework's has an error of its own


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_recorded_layer_through_the_framework_h4(name):
    torch = pytest.importorskip("torch")
    import rapt.torch

    t, _, _ = layer(name)
    q, k, v = (torch.from_numpy(t[n]) for n in "qkv")
    if "mask" in t:
        keywords = {"attn_mask": torch.from_numpy(t["mask"])}
    else:
        keywords = {"is_causal": True, "enable_gqa": True}
    out = rapt.torch.sdpa(q, k, v, **keywords)
    plain = layer(name)[1]
    assert np.array_equal(out.numpy(), rapt.attention(t["q"], t["k"], t["v"], **plain))


def test_the_files_are_small_and_described():
    files = sorted(DATA.glob("*.safetensors"))
    assert [f.stem for f in files] == ["decoder", "encoder"] and sum(f.stat().st_size for f in files) < 3_000_000
    text = (DATA / "README.md").read_text()
    assert all(f.name in text for f in files) and "Apache-2.0" in text
