"""What two welds of DeepSeek-V3.2's attention path hold, in the torch of the model, with inputs.

Both look up the rotary tables by position themselves, as the kernels that vLLM fused by hand do.
"""

from __future__ import annotations

from functools import cache

import torch
from chains import DEVICE, E4M3, Inputs, Tensor
from torch import nn

from kernelweld.models.caches import PAGE, Cache, write_keys, write_latent
from kernelweld.models.config import Config
from kernelweld.models.norm import RMSNorm
from kernelweld.models.quant import LIMIT, quantize
from kernelweld.models.rope import rotate_halves, rotate_pairs, table

CONFIG, HEADS, POSITIONS = Config(), 16, 8192
RANK, ROPE, NOPE = CONFIG.kv_lora_rank, CONFIG.qk_rope_head_dim, CONFIG.qk_nope_head_dim
Q_RANK, INDEX_HEADS, INDEX = CONFIG.q_lora_rank, CONFIG.index_n_heads, CONFIG.index_head_dim
EPS = 1e-6


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x [..., 128]`` of the indexer with its first 64 values turned, in halves."""
    return torch.cat([rotate_halves(x[..., :ROPE], cos, sin), x[..., ROPE:]], -1)


class Latents(nn.Module):
    """From the merged projections to the normed query latent and the rows of both caches."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm = RMSNorm(Q_RANK, EPS, torch.bfloat16)
        self.kv_norm = RMSNorm(RANK, EPS, torch.bfloat16)
        self.k_norm = nn.LayerNorm(INDEX, eps=EPS, dtype=torch.bfloat16)
        for weight in self.parameters():
            nn.init.uniform_(weight, 1.0, 1.5)  # keys within one power of two: few scales near the next

    def forward(
        self,
        latents: Tensor,
        keys: Tensor,
        down: Tensor,
        light: Tensor,
        rows: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Caches ``latents [pages, 64, 576]`` and ``keys [pages, 64, 132]``, ``down [T, 2112]``, ``light [T,
        192]`` (index key, then weights), ``rows`` the rotary table; ``[T, 1536]``.
        """
        caches, (cos, sin) = Cache(latents, keys), rows[positions].chunk(2, -1)
        q, latent, k_pe = down.split([Q_RANK, RANK, ROPE], -1)
        write_latent(caches, self.kv_norm(latent), rotate_pairs(k_pe, cos, sin), slots)
        write_keys(caches, rotated(self.k_norm(light[:, :INDEX]), cos, sin), slots)
        normed: Tensor = self.q_norm(q)
        return normed


class Queries(nn.Module):
    """Queries of the attention, ``apart``, ``joined`` or in ``e4m3``, and those of the indexer."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(
        self,
        q: Tensor,
        absorbed: Tensor,
        index_q: Tensor,
        light: Tensor,
        rows: Tensor,
        positions: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``q [T, 16 * 192]``, ``absorbed [16, T, 512]``, ``index_q [T, 64 * 128]``, ``scale [1]`` of the
        queries in e4m3; queries, codes ``[T, 64, 128]`` and weights ``[T, 64]`` of the index queries.
        """
        cos, sin = (half[:, None] for half in rows[positions].chunk(2, -1))
        queries = rotate_pairs(q.view(-1, HEADS, NOPE + ROPE)[..., NOPE:], cos, sin)
        if self.form != "apart":
            queries = torch.cat([absorbed.transpose(0, 1), queries], -1)
        if self.form == "e4m3":
            queries = (queries.float() / scale).clamp(-LIMIT, LIMIT).to(E4M3)
        turned = rotated(index_q.view(-1, INDEX_HEADS, INDEX), cos, sin)
        codes, scales = quantize(turned, floor=1e-4, ue8m0=True)
        weights = light[:, INDEX:].float() * scales.squeeze(-1)
        return queries, codes, weights * INDEX**-0.5 * INDEX_HEADS**-0.5


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


@cache
def rotary() -> Tensor:
    """The model's rotary table: one for all calls."""
    return table(CONFIG.rope, ROPE, POSITIONS, torch.bfloat16).to(DEVICE)


def positions_of(tokens: int) -> Tensor:
    """A position of each token."""
    return torch.randint(POSITIONS, (tokens,), device=DEVICE)


def latent_inputs(tokens: int) -> Inputs:
    """Arguments of ``Latents``; caches have twice as many rows as there are tokens."""
    pages = -(-2 * tokens // PAGE)
    latents = torch.zeros(pages, PAGE, RANK + ROPE, dtype=torch.bfloat16, device=DEVICE)
    keys = torch.zeros(pages, PAGE, INDEX + 4, dtype=torch.uint8, device=DEVICE)
    slots = torch.randperm(pages * PAGE, device=DEVICE)[:tokens]
    down, light = _random(tokens, Q_RANK + RANK + ROPE), _random(tokens, INDEX + INDEX_HEADS)
    return latents, keys, down, light, rotary(), positions_of(tokens), slots


def query_inputs(tokens: int) -> Inputs:
    """Arguments of ``Queries``."""
    q, absorbed = _random(tokens, HEADS * (NOPE + ROPE)), _random(HEADS, tokens, RANK)
    index_q, light = _random(tokens, INDEX_HEADS * INDEX), _random(tokens, INDEX + INDEX_HEADS)
    scale = torch.full((1,), 0.02, device=DEVICE)
    return q, absorbed, index_q, light, rotary(), positions_of(tokens), scale
