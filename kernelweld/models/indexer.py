"""The indexer of DeepSeek sparse attention: which earlier positions each token attends to."""

from __future__ import annotations

import torch
from torch import nn

from kernelweld.kernels.index_logits import index_logits
from kernelweld.kernels.index_topk import index_topk
from kernelweld.models.caches import Batch, Cache, slots_of, write_keys
from kernelweld.models.config import Config
from kernelweld.models.linear import linear
from kernelweld.models.quant import quantize
from kernelweld.models.rope import rotate_halves


class Indexer(nn.Module):
    """64 light heads whose weighted, rectified products with one key a position score that position.

    The same on every rank. The Hadamard transform of DeepSeek's own code is left out, as in vLLM and
    transformers: it changes no product.
    """

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self.rotary, self.topk = config.qk_rope_head_dim, config.index_topk
        self.wq_b = linear(config, config.q_lora_rank, self.heads * self.width, dtype)
        self.wk = linear(config, config.hidden_size, self.width, dtype)
        self.k_norm = nn.LayerNorm(self.width, eps=1e-6, dtype=dtype)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False, dtype=dtype)

    def forward(
        self,
        x: torch.Tensor,
        q_latent: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: Batch,
        cache: Cache,
    ) -> torch.Tensor:
        """Slots ``[T, topk]`` int32 of the positions with the largest scores, -1 where there are fewer.

        ``x [T, hidden]``, ``q_latent [T, q_lora_rank]``, ``cos`` and ``sin [T, 32]``. Writes the keys of the
        tokens to ``cache.keys`` first.
        """
        write_keys(cache, self._rotated(self.k_norm(self.wk(x)), cos, sin), batch.slots)
        q = self._rotated(self.wq_b(q_latent).view(-1, self.heads, self.width), cos[:, None], sin[:, None])
        weights = self.weights_proj(x).float()
        if cache.keys.dtype == torch.uint8:
            q, scale = quantize(q, floor=1e-4, ue8m0=True)
            weights = weights * scale.squeeze(-1)
        weights = weights * self.width**-0.5 * self.heads**-0.5
        block = cache.keys.shape[1]
        logits = index_logits(q, weights, cache.keys, batch.lengths, batch.tables, block=block)
        indices = index_topk(logits, batch.lengths, k=self.topk)
        assert isinstance(indices, torch.Tensor)
        return slots_of(indices, batch.tables, block)

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x [..., 128]`` with its first 64 values turned, in halves: unlike those of the attention."""
        return torch.cat([rotate_halves(x[..., : self.rotary], cos, sin), x[..., self.rotary :]], -1)
