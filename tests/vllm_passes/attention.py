"""What stands before attention in vLLM's models: split, norms a head, rotation, the write to the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from graphs import bf16, rand
from spellings import NORMS
from torch import Tensor, nn

#: How a rotation is spelled: an operator in place, or plain torch.
Turn = Literal["custom", "flashinfer", "native"]
#: How queries, keys and values are parts of the projections.
Parts = Literal["split", "scattered", "slices", "overlapping"]
EPS, PLACES = 1e-6, 32


@dataclass(frozen=True)
class Geometry:
    """Heads of queries, of keys, their size, and how much of each is turned."""

    heads: int
    kv_heads: int
    size: int
    rotary_dim: int
    is_neox: bool = True

    @property
    def widths(self) -> list[int]:
        """Of queries, keys and values in a row of the projections."""
        return [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]


class QueriesAndKeys(nn.Module):
    """Rotated queries and keys, and values; with ``layer`` also the dummy of their write to its cache."""

    def __init__(
        self,
        geometry: Geometry,
        norm: str | None = "ir",
        turn: Turn = "custom",
        parts: Parts = "split",
        layer: str | None = None,
        dtype: torch.dtype = bf16,
    ) -> None:
        super().__init__()
        self.geometry, self.norm, self.turn = geometry, norm, turn
        self.parts, self.layer = parts, layer
        self.q_weight = nn.Parameter(torch.rand(geometry.size).to(dtype) + 0.5)
        self.k_weight = nn.Parameter(torch.rand(geometry.size).to(dtype) + 0.5)
        angles = torch.rand(PLACES, geometry.rotary_dim // 2) * 6
        cache = torch.cat([angles.cos(), angles.sin()], -1)
        self.register_buffer("cache", cache if turn == "flashinfer" else cache.to(dtype))

    def inputs(self, tokens: int = 5) -> list[Tensor]:
        x = torch.randn(tokens, sum(self.geometry.widths)).to(self.q_weight.dtype)
        return [x, torch.arange(tokens) * 3 % PLACES]

    def forward(self, qkv: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        g = self.geometry
        qkv = qkv.clone()  # else a rotation in place would write to the input
        q, k, v = _parts(qkv, g.widths, self.parts)
        if self.norm is not None:
            normalise = NORMS[self.norm][0]
            q = normalise(q.view(-1, g.heads, g.size), self.q_weight, EPS).view(-1, g.widths[0])
            k = normalise(k.view(-1, g.kv_heads, g.size), self.k_weight, EPS).view(-1, g.widths[1])
        q, k = self.turned(positions, q, k)
        q, k = q.view(-1, g.heads, g.size), k.view(-1, g.kv_heads, g.size)
        v = v.view(-1, g.kv_heads, g.size)
        if self.layer is None:
            return q, k, v
        return q, k, v, torch.ops.vllm.unified_kv_cache_update(k, v, self.layer)

    def turned(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        g = self.geometry
        if self.turn == "native":
            cos, sin = self.tables(positions)
            heads = q.view(-1, g.heads, g.size), k.view(-1, g.kv_heads, g.size)
            turned = [turn_heads(x, cos, sin, g.rotary_dim, g.is_neox) for x in heads]
            return turned[0].view(q.shape), turned[1].view(k.shape)
        custom, flashinfer = torch.ops._C.rotary_embedding, torch.ops.vllm.flashinfer_rotary_embedding
        operator = custom if self.turn == "custom" else flashinfer
        operator(positions, q, k, g.size, self.cache, g.is_neox)
        return q, k

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each token, for all heads."""
        cos, sin = self.cache.index_select(0, positions).chunk(2, -1)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)


class Interleaved(QueriesAndKeys):
    """Positions of time, height and width take turns along a head."""

    def inputs(self, tokens: int = 5) -> list[Tensor]:
        return [*super().inputs(tokens)[:1], torch.arange(3 * tokens).view(3, tokens)]

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        tables = []
        for table in self.cache[positions].chunk(2, -1):
            mixed, third = table[0].clone(), table.shape[-1] // 3
            for axis in (1, 2):
                mixed[..., axis : 3 * third : 3] = table[axis, ..., axis : 3 * third : 3]
            tables.append(mixed.unsqueeze(-2))
        return tables[0], tables[1]


def turn_heads(x: Tensor, cos: Tensor, sin: Tensor, width: int, is_neox: bool) -> Tensor:
    """The first ``width`` of each head turned, in plain torch."""
    part, rest = x[..., :width], x[..., width:]
    a, b = part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])
    left, right = a * cos - b * sin, b * cos + a * sin
    turned = torch.cat([left, right], -1) if is_neox else torch.stack([left, right], -1).flatten(-2)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def _parts(qkv: Tensor, widths: list[int], how: Parts) -> tuple[Tensor, Tensor, Tensor]:
    if how == "split":
        q, k, v = qkv.split(widths, -1)
        return q, k, v
    if how == "scattered":
        return qkv.split(widths, -1)[0], qkv.split(widths, -1)[1], qkv.split(widths, -1)[2]
    start, end = widths[0], widths[0] + widths[1]
    back = 64 if how == "overlapping" else 0
    return qkv[:, :start], qkv[:, start - back : end - back], qkv[:, end:]


def latent(is_neox: bool, turn: Turn, kind: str = "auto") -> tuple[Callable[..., object], list[Tensor]]:
    """Queries and a latent of MLA in small: heads of 8 and 16 turned, a latent of 32 and 16 turned."""
    angles = torch.rand(PLACES, 8) * 6
    cache = torch.cat([angles.cos(), angles.sin()], -1).to(bf16)

    def before(x: Tensor, positions: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        q_c, rest = x.split([32, 48], -1)
        kv_c, k_pe = rest.split([32, 16], -1)
        q, k_pe = (q_c @ w).view(-1, 4, 24), k_pe.unsqueeze(1)
        if turn == "custom":
            q_pe, k_pe = q[..., 8:].contiguous(), k_pe.contiguous()
            torch.ops._C.rotary_embedding(positions, q_pe, k_pe, 16, cache, is_neox)
        else:
            cos, sin = (t.unsqueeze(-2) for t in cache.index_select(0, positions).chunk(2, -1))
            q_pe, k_pe = (turn_heads(t, cos, sin, 16, is_neox) for t in (q[..., 8:], k_pe))
        q[..., 8:] = q_pe
        dummy = torch.ops.vllm.unified_mla_kv_cache_update(kv_c, k_pe, "layer 0", kind, torch.ones(1))
        return q, kv_c, k_pe, dummy

    return before, [rand(5, 80), torch.arange(5), rand(32, 96) * 0.2]
