"""Dimensions of DeepSeek-V3.2, from the ``config.json`` of a checkpoint or as published."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies of the rotary embedding: plain, or stretched by YaRN (Peng et al. 2023, arXiv 2309.00071)
    where ``factor`` is above 1.
    """

    theta: float = 10000.0
    factor: float = 1.0
    original_positions: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RopeScaling:
        """From ``rope_parameters`` of transformers 5, or ``rope_theta`` and ``rope_scaling`` of before."""
        found = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        theta = found.get("rope_theta", config.get("rope_theta", cls.theta))
        if found.get("rope_type", found.get("type", "default")) == "default":
            return cls(theta)
        return cls(
            theta,
            found["factor"],
            found["original_max_position_embeddings"],
            found.get("beta_fast") or cls.beta_fast,
            found.get("beta_slow") or cls.beta_slow,
            found.get("mscale") or 0.0,
            found.get("mscale_all_dim") or 0.0,
        )

    @property
    def table_scale(self) -> float:
        """What cosines and sines are multiplied with."""
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def attention_scale(self) -> float:
        """What the scale of the attention is multiplied with."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True)
class Config:
    """DeepSeek-V3.2 as published; names as in its ``config.json``.

    ``fp8``: linear layers hold e4m3 codes with a float32 scale for each block of 128 x 128;
    ``ue8m0``: the scales of their inputs are powers of two.
    """

    vocab_size: int = 129280
    hidden_size: int = 7168
    intermediate_size: int = 18432
    moe_intermediate_size: int = 2048
    num_hidden_layers: int = 61
    first_k_dense_replace: int = 3
    num_attention_heads: int = 128
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    n_routed_experts: int = 256
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 2048
    max_position_embeddings: int = 163840
    rms_norm_eps: float = 1e-6
    rope: RopeScaling = field(default_factory=lambda: RopeScaling(factor=40.0))
    fp8: bool = False
    ue8m0: bool = False

    @classmethod
    def read(cls, folder: Path) -> Config:
        """From ``config.json`` in ``folder``; a name that is not there has its published value."""
        return cls.of(json.loads((folder / "config.json").read_text(encoding="utf-8")))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Config:
        """From the contents of ``config.json``."""
        names = {f.name for f in fields(cls)} - {"rope", "fp8", "ue8m0"}
        quantization = found.get("quantization_config") or {}
        return cls(
            **{name: found[name] for name in names & found.keys()},
            rope=RopeScaling.of(found),
            fp8=quantization.get("quant_method") == "fp8",
            ue8m0=quantization.get("scale_fmt") == "ue8m0",
        )

    @property
    def qk_head_dim(self) -> int:
        """Width of a query's head: the part without rotation and the rotated one."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """The scale of the attention's logits."""
        scale: float = self.qk_head_dim**-0.5
        return scale * self.rope.attention_scale


#: The smallest dimensions that the layouts of the caches allow, two layers of each kind's parts.
TINY = Config(
    vocab_size=256,
    hidden_size=256,
    intermediate_size=256,
    moe_intermediate_size=128,
    num_hidden_layers=2,
    first_k_dense_replace=1,
    num_attention_heads=4,
    q_lora_rank=128,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_group=4,
    topk_group=2,
    index_n_heads=4,
    index_topk=16,
    max_position_embeddings=4096,
)
