# SPDX-License-Identifier: Apache-2.0
"""The report of a real Flux block: 24 heads of 128, text and image tokens in one sequence, bf16 autocast.

    python examples/flux_report.py [--heads 24] [--text 512] [--image 1024] [--promote]

Needs rapt with PyTorch and diffusers; the weights are random, 0.7 GB of them. --promote lets the norms of query and key
return float32, as torch's RMSNorm does under autocast on GPUs since PyTorch 2.12: what then reaches the dispatcher is
float32 beside bfloat16."""

import argparse

import diffusers
import rapt
import rapt.diffusers
import torch
from diffusers.models.attention_dispatch import attention_backend
from diffusers.models.transformers.transformer_flux import FluxPosEmbed, FluxTransformerBlock

WIDTH = 128


def block(heads):
    with torch.device("meta"):
        made = FluxTransformerBlock(heads * WIDTH, heads, WIDTH)
    made = made.to_empty(device="cpu").to(torch.bfloat16).eval()
    for name, p in made.named_parameters():
        torch.nn.init.ones_(p) if ".norm_" in name else torch.nn.init.normal_(p, std=0.02)
    return made


def positions(text, image):
    """Text at the origin, the image as a square grid."""
    ids, side = torch.zeros(text + image, 3), int(image**0.5)
    ids[text:, 1] = torch.arange(image) // side
    ids[text:, 2] = torch.arange(image) % side
    return FluxPosEmbed(10000, (16, 56, 56))(ids)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--heads", type=int, default=24)
    options.add_argument("--text", type=int, default=512)
    options.add_argument("--image", type=int, default=1024)
    options.add_argument("--promote", action="store_true")
    options = options.parse_args()
    torch.manual_seed(0)
    made, dim = block(options.heads), options.heads * WIDTH
    if options.promote:
        for norm in (made.attn.norm_q, made.attn.norm_k, made.attn.norm_added_q, made.attn.norm_added_k):
            norm.register_forward_hook(lambda module, args, out: out.float())
    tokens = {"hidden_states": options.image, "encoder_hidden_states": options.text}
    inputs = {name: torch.randn(1, count, dim, dtype=torch.bfloat16) for name, count in tokens.items()}
    inputs.update(temb=torch.randn(1, dim, dtype=torch.bfloat16), image_rotary_emb=positions(options.text, options.image))
    print(f"diffusers {diffusers.__version__}, torch {torch.__version__}, rapt {rapt.__version__}")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), attention_backend("rapt"):
        made(**inputs)
    print(rapt.last_report())


if __name__ == "__main__":
    main()
