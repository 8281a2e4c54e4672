"""Tiny checkpoints of random weights, made by transformers, that vLLM loads as it loads real ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import torch

DENSE: Mapping[str, object] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}

#: Name of a model to its class prefix, its module in transformers, and its configuration.
MODELS: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "qwen3": ("Qwen3", "qwen3", DENSE),
    "qwen3_moe": ("Qwen3Moe", "qwen3_moe", {**DENSE, **EXPERTS, "decoder_sparse_step": 1}),
    "qwen3_next": (
        "Qwen3Next",
        "qwen3_next",
        {**DENSE, **EXPERTS, **LINEAR, "shared_expert_intermediate_size": 64},
    ),
    "minimax_m2": (
        "MiniMaxM2",
        "minimax_m2",
        {
            **DENSE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 16,
            "num_mtp_modules": 0,
            "use_qk_norm": True,
            "scoring_func": "softmax",
            "use_routing_bias": True,
            "attn_type_list": [1, 1],
        },
    ),
    "deepseek_v32": (
        "DeepseekV32",
        "deepseek_v32",
        {
            **DENSE,
            "num_key_value_heads": 4,
            "q_lora_rank": 64,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 64,
            "index_topk": 16,
            "index_n_heads": 4,
            "index_head_dim": 128,
        },
    ),
}


def checkpoint(name: str, folder: Path) -> Path:
    """The folder of a model's checkpoint, made when it is first asked for."""
    path = folder / name
    if not path.exists():
        prefix, module, settings = MODELS[name]
        home = importlib.import_module(f"transformers.models.{module}")
        config = getattr(home, f"{prefix}Config")(**settings)
        config.architectures = [f"{prefix}ForCausalLM"]
        torch.manual_seed(0)
        getattr(home, f"{prefix}ForCausalLM")(config).to(torch.bfloat16).save_pretrained(path)
    return path
