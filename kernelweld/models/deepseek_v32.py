"""DeepSeek-V3.2 as served: latent attention over positions that an indexer selects, paged caches, experts.

Plain torch, nothing fused. Names of modules are those of the published checkpoint, so that a weight is found
where its name says. Tokens of several requests are one flat dimension T, in prefill and decode alike: all
write their cache rows before any attends, each to its own position and those before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernelweld.kernels.sparse_mla import sparse_mla
from kernelweld.models.caches import Batch, Cache, write_latent
from kernelweld.models.config import Config
from kernelweld.models.experts import MLP, MoE
from kernelweld.models.indexer import Indexer
from kernelweld.models.linear import linear
from kernelweld.models.norm import RMSNorm
from kernelweld.models.parallel import Parallel
from kernelweld.models.rope import rotate_pairs, table


class Attention(nn.Module):
    """Multi-head latent attention with the projection of keys absorbed into queries, that of values into the
    output; a rank holds a slice of the heads and returns its addend.
    """

    w_uk: torch.Tensor
    w_uv: torch.Tensor

    def __init__(self, config: Config, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.config = config
        self.heads = heads = parallel.share(config.num_attention_heads, "the number of heads")
        rank, rope, hidden = config.kv_lora_rank, config.qk_rope_head_dim, config.hidden_size
        self.q_a_proj = linear(config, hidden, config.q_lora_rank, dtype)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, 1e-6, dtype)
        self.q_b_proj = linear(config, config.q_lora_rank, heads * config.qk_head_dim, dtype)
        self.kv_a_proj_with_mqa = linear(config, hidden, rank + rope, dtype)
        self.kv_a_layernorm = RMSNorm(rank, 1e-6, dtype)
        self.o_proj = linear(config, heads * config.v_head_dim, hidden, dtype)
        self.indexer = Indexer(config, dtype)
        # The two parts of kv_b_proj, in the model's dtype in fp8 checkpoints too.
        self.register_buffer("w_uk", torch.empty(heads, config.qk_nope_head_dim, rank, dtype=dtype))
        self.register_buffer("w_uv", torch.empty(heads, rank, config.v_head_dim, dtype=dtype))

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch, cache: Cache
    ) -> torch.Tensor:
        """``x [T, hidden]``, ``cos`` and ``sin [T, 32]``; the same shape and dtype as ``x`` out."""
        config = self.config
        q_latent = self.q_a_layernorm(self.q_a_proj(x))
        latent, k_pe = self.kv_a_proj_with_mqa(x).split([config.kv_lora_rank, config.qk_rope_head_dim], -1)
        write_latent(cache, self.kv_a_layernorm(latent), rotate_pairs(k_pe, cos, sin), batch.slots)
        slots = self.indexer(x, q_latent, cos, sin, batch, cache)
        q = self._queries(self.q_b_proj(q_latent), cos[:, None], sin[:, None])
        out = sparse_mla(
            q, cache.latent, slots, cache.scale, scale=config.softmax_scale, rank=config.kv_lora_rank
        )
        assert isinstance(out, torch.Tensor)
        values = torch.bmm(out.transpose(0, 1), self.w_uv).transpose(0, 1)
        projected: torch.Tensor = self.o_proj(values.flatten(1))
        return projected

    def _queries(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, heads, 576]``: queries for latents, and their rotated parts."""
        config = self.config
        nope, rope = q.view(-1, self.heads, config.qk_head_dim).split(
            [config.qk_nope_head_dim, config.qk_rope_head_dim], -1
        )
        absorbed = torch.bmm(nope.transpose(0, 1), self.w_uk).transpose(0, 1)
        return torch.cat([absorbed, rotate_pairs(rope, cos, sin)], -1)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind the norm of the residual stream."""

    def __init__(self, config: Config, index: int, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.parallel = parallel
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, dtype, parallel)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if index < config.first_k_dense_replace:
            self.mlp: nn.Module = MLP(config, config.intermediate_size, dtype, parallel)
        else:
            self.mlp = MoE(config, dtype, parallel)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: Batch,
        cache: Cache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``x`` and ``residual [T, hidden]``, whose sum is the layer's input; the same of its output."""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.parallel.all_reduce(self.self_attn(x, cos, sin, batch, cache))
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.parallel.all_reduce(self.mlp(x)), residual


class Model(nn.Module):
    """Embedding, decoder layers and final norm (``model.`` in the checkpoint)."""

    rope_table: torch.Tensor

    def __init__(self, config: Config, dtype: torch.dtype, parallel: Parallel) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            DecoderLayer(config, index, dtype, parallel) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        rows = table(config.rope, config.qk_rope_head_dim, config.max_position_embeddings, dtype)
        self.register_buffer("rope_table", rows, persistent=False)

    def forward(self, ids: torch.Tensor, batch: Batch, caches: Sequence[Cache]) -> torch.Tensor:
        """``ids [T]`` int64; hidden states ``[T, hidden]`` behind the final norm."""
        cos, sin = self.rope_table[batch.positions].chunk(2, -1)
        x, residual = self.embed_tokens(ids), None
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cos, sin, batch, cache)
        normed: torch.Tensor = self.norm.add(x, residual)[0]
        return normed


class DeepseekV32(nn.Module):
    """The language model."""

    def __init__(
        self, config: Config, *, dtype: torch.dtype = torch.bfloat16, parallel: Parallel | None = None
    ) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel or Parallel()
        self.model = Model(config, dtype, self.parallel)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)

    def forward(
        self, ids: torch.Tensor, batch: Batch, caches: Sequence[Cache], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits ``[T, vocabulary]`` in the model's dtype, or ``[R, vocabulary]`` of tokens ``rows [R]``.

        Writes the tokens' rows to ``caches``, one ``Cache`` a layer.
        """
        hidden = self.model(ids, batch, caches)
        logits: torch.Tensor = self.lm_head(hidden if rows is None else hidden[rows])
        return logits
