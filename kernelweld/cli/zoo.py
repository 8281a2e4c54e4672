"""The models that ``hf:`` targets name: real dimensions, and tiny ones that are spelled the same way.

A tiny configuration keeps what decides which operations ``transformers`` emits (head counts that differ,
partial and sectioned rotary embedding, expert groups, layer kinds) and shrinks only widths, experts and
layers. Where a small value would change the spelling (rotary sections of a 32-frequency table, more than
one expert group), the real one stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Fields = Mapping[str, object]

_TINY: Fields = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,  # over 64 inputs this keeps values near 1: an error anywhere shows at the end
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TINY_EXPERTS: Fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_TINY_GDN: Fields = {
    "head_dim": 256,  # a quarter is rotated: 32 frequencies, as the real sections (11, 11, 10) need
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_YARN: Fields = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LLAMA3: Fields = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_MROPE: Fields = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}


def _partial(theta: float, factor: float) -> Fields:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}


@dataclass(frozen=True)
class Zoo:
    """One ``hf:`` target.

    ``model_type`` is the name in ``transformers``; ``layers`` is the depth of the tiny model; ``common``
    holds for both sizes, ``real`` and ``tiny`` for one. What ``real`` leaves out is the default of the
    configuration class. The public models meant are DeepSeek-V3.2, MiniMax-M2.5, Qwen3.5-397B-A17B,
    Qwen3-Next-80B-A3B, Qwen3.5-9B, Qwen3-8B, Llama-3.1-8B, Gemma-2-2B, Mistral-7B, GLM-4-9B and OLMo-2-7B.
    """

    model_type: str
    layers: int = 2
    common: Fields = field(default_factory=dict)
    real: Fields = field(default_factory=dict)
    tiny: Fields = field(default_factory=dict)

    def fields(self, *, full: bool, layers: int | None) -> dict[str, object]:
        """Keyword arguments for the configuration class; ``layers`` overrides the depth."""
        depth = {"num_hidden_layers": layers} if layers is not None else {}
        if full:
            return {**self.common, **self.real, **depth}
        return {**_TINY, "num_hidden_layers": self.layers, **self.common, **self.tiny, **depth}


ZOO: Mapping[str, Zoo] = MappingProxyType(
    {
        "deepseek_v32": Zoo(
            "deepseek_v32",
            common={"rope_parameters": _YARN, "max_position_embeddings": 163840},
            tiny={
                "num_key_value_heads": 4,
                "q_lora_rank": 48,
                "kv_lora_rank": 32,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 16,
                "v_head_dim": 16,
                "index_n_heads": 4,
                "index_head_dim": 32,
                "index_topk": 4,
                "n_routed_experts": 16,
                "num_experts_per_tok": 4,
                "n_group": 4,
                "topk_group": 2,  # 1 would turn the group mask from a scatter into comparisons
                "moe_intermediate_size": 32,
                "first_k_dense_replace": 1,
            },
        ),
        "minimax_m2": Zoo(
            "minimax_m2",
            common={"rope_parameters": _partial(5e6, 0.5)},
            tiny={"num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        "qwen3_5_moe": Zoo(
            "qwen3_5_moe_text",
            layers=4,
            common={"rope_parameters": _MROPE},
            real={
                "hidden_size": 4096,
                "num_hidden_layers": 60,
                "num_attention_heads": 32,
                "num_key_value_heads": 2,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 64,
                "num_experts": 512,
                "num_experts_per_tok": 10,
                "moe_intermediate_size": 1024,
                "shared_expert_intermediate_size": 1024,
            },
            tiny={**_TINY_GDN, **_TINY_EXPERTS, "shared_expert_intermediate_size": 32},
        ),
        "qwen3_next": Zoo(
            "qwen3_next",
            layers=4,
            common={"rope_parameters": _partial(1e7, 0.25)},
            tiny={**_TINY_GDN, **_TINY_EXPERTS, "shared_expert_intermediate_size": 32},
        ),
        "qwen3_5": Zoo("qwen3_5_text", layers=4, common={"rope_parameters": _MROPE}, tiny=_TINY_GDN),
        "qwen3": Zoo(
            "qwen3",
            common={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            real={"intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8},
        ),
        "llama": Zoo(
            "llama",
            common={"rope_parameters": _LLAMA3, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
            real={"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8},
        ),
        "gemma2": Zoo("gemma2", tiny={"query_pre_attn_scalar": 32}),
        "mistral": Zoo("mistral"),
        "glm4": Zoo("glm4", common={"rope_parameters": _partial(1e4, 0.5)}),
        "olmo2": Zoo(
            "olmo2",
            common={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rms_norm_eps": 1e-6},
            real={"vocab_size": 100352, "max_position_embeddings": 4096},
        ),
    }
)
