"""Qwen3.5's text model by itself, for releases of vLLM that have it only with images."""

from __future__ import annotations

from vllm.model_executor.models.interfaces import IsHybrid
from vllm.model_executor.models.qwen3_5 import Qwen3_5MoeForCausalLM, Qwen3_5MoeForConditionalGeneration


class TextOnly(Qwen3_5MoeForCausalLM, IsHybrid):
    """The layers are vLLM's; only the questions about the state's shape are passed on."""

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: object) -> object:
        return Qwen3_5MoeForConditionalGeneration.get_mamba_state_dtype_from_config(vllm_config)

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: object) -> object:
        return Qwen3_5MoeForConditionalGeneration.get_mamba_state_shape_from_config(vllm_config)

    @classmethod
    def get_mamba_state_copy_func(cls) -> object:
        return Qwen3_5MoeForConditionalGeneration.get_mamba_state_copy_func()
