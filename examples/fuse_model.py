"""Fuse a transformers model, generate with it, and ask what was done.

    python examples/fuse_model.py

A tiny random Qwen3 stands for your model; no weights are downloaded. On a GPU the generated kernels run. On
a CPU the same plan runs through the words' references.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import kernelweld


def build() -> torch.nn.Module:
    """A Qwen3 of two layers with random weights."""
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def main(backend: str = "auto") -> kernelweld.Report:
    """Fuses, generates eight tokens, prints the report and returns it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = kernelweld.fuse(build().to(device), backend=backend)
    prompt = torch.randint(3, 128, (1, 6), device=device)
    with torch.no_grad():
        tokens = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    print("tokens:", tokens[0].tolist())
    report = kernelweld.report(model)
    print(report)
    return report


if __name__ == "__main__":
    main(*sys.argv[1:])
