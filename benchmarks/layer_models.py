"""The decoder layers that ``hf_layers.py`` measures: transformers models, sliced as tensor parallelism would.

Widths (hidden, head and latent sizes, rotary dims) are the public models'; heads and experts are one
rank's share, so that a layer fits one GPU with its random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from kernelweld.cli.zoo import ZOO

_SMALL = {"vocab_size": 2048}
_QWEN = {**_SMALL, "num_attention_heads": 16, "num_key_value_heads": 1, "num_experts": 64}
_QWEN_GDN = {**_QWEN, "linear_num_key_heads": 8, "linear_num_value_heads": 32}
_DEEPSEEK = {**_SMALL, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64}

#: For each kind of layer: the target, and the fields that differ from the public model's.
LAYERS: Mapping[str, tuple[str, Mapping[str, object]]] = MappingProxyType(
    {
        "deepseek-v3.2 dense": ("deepseek_v32", {**_DEEPSEEK, "first_k_dense_replace": 99}),
        "deepseek-v3.2 moe": ("deepseek_v32", {**_DEEPSEEK, "first_k_dense_replace": 0}),
        "minimax-m2 moe": ("minimax_m2", {**_SMALL, "num_local_experts": 64}),
        "qwen3.5 full-attn-moe": ("qwen3_5_moe", {**_QWEN_GDN, "layer": "full_attention"}),
        "qwen3.5 gdn-moe": ("qwen3_5_moe", {**_QWEN_GDN, "layer": "linear_attention"}),
    }
)


def build(kind: str, layers: int) -> nn.Module:
    """A model of ``layers`` layers of one kind, bfloat16, random weights, on the GPU; hybrid models
    end in one attention layer more.
    """
    target, changes = LAYERS[kind]
    fields = {**ZOO[target].fields(full=True, layers=layers), **changes}
    layer_type = fields.pop("layer", None)
    if layer_type is not None:
        fields["layer_types"] = [layer_type] * layers + ["full_attention"]  # a cache needs an attention layer
        fields["num_hidden_layers"] = layers + 1
    if target == "deepseek_v32":
        dense = layers if changes["first_k_dense_replace"] else 0
        fields["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
    config = AutoConfig.for_model(ZOO[target].model_type, **fields)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)
