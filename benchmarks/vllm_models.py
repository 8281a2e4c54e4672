"""Models of real dimensions for ``vllm_engine.py``: a configuration; weights are drawn by vLLM.

Fewer layers and experts than the real ones, everything else as published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What block-quantized checkpoints leave in bfloat16.
_PLAIN = (
    "lm_head",
    "mlp.gate",
    "mlp.shared_expert_gate",
    "block_sparse_moe.gate",
    "linear_attn.in_proj_a",
    "linear_attn.in_proj_b",
    "linear_attn.in_proj_ba",
    "linear_attn.conv1d",
)


@dataclass(frozen=True)
class Case:
    """One model. ``per_layer`` divides counts of kernels: the layers it has."""

    config: str
    module: str
    architecture: str
    layers: int
    arguments: Mapping[str, Any]
    fp8: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes ``config.json``."""
        from importlib import import_module

        kind = getattr(import_module(f"transformers.models.{self.module}"), self.config)
        config = kind(num_hidden_layers=self.layers, vocab_size=4096, bos_token_id=0, **self.arguments)
        config.architectures = [self.architecture]
        if self.fp8:
            config.quantization_config = {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": [
                    *_PLAIN[:1],
                    *(f"model.layers.{i}.{name}" for i in range(self.layers) for name in _PLAIN[1:]),
                ],
            }
        config.save_pretrained(folder)


_MINIMAX = {
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rotary_dim": 64,
    "num_local_experts": 16,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 5e6,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "num_mtp_modules": 0,
    "eos_token_id": 1,
}
_QWEN3_5 = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "num_experts": 16,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "max_position_embeddings": 8192,
    "eos_token_id": 1,
}
_TRITON_GDN = {"gdn_prefill_backend": "triton"}


def _minimax(fp8: bool) -> Case:
    layers = 16
    extra = {"attn_type_list": [1] * layers}
    return Case("MiniMaxM2Config", "minimax_m2", "MiniMaxM2ForCausalLM", layers, {**_MINIMAX, **extra}, fp8)


def _qwen3_5(fp8: bool) -> Case:
    return Case(
        "Qwen3_5MoeTextConfig", "qwen3_5_moe", "Qwen3_5MoeForCausalLM", 16, _QWEN3_5, fp8, _TRITON_GDN
    )


CASES: Mapping[str, Case] = {
    "minimax_m2": _minimax(False),
    "minimax_m2 fp8": _minimax(True),
    "qwen3_5_moe": _qwen3_5(False),
    "qwen3_5_moe fp8": _qwen3_5(True),
}


def register_text_only() -> None:
    """Releases up to 0.26 have Qwen3.5 only with its image encoder: registers the text model by itself."""
    from vllm import ModelRegistry

    if "Qwen3_5MoeForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("Qwen3_5MoeForCausalLM", "vllm_qwen3_5:TextOnly")
