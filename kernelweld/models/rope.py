"""Rotary position embedding: a table of cosines and sines, and the two ways in which values are paired."""

from __future__ import annotations

import math

import torch

from kernelweld.models.config import RopeScaling


def inverse_frequencies(scaling: RopeScaling, dim: int) -> torch.Tensor:
    """``[dim / 2]`` float32: the angle of each pair at position 1.

    With YaRN slow pairs turn ``factor`` times slower, fast ones as before, and those in between by a ramp.
    """
    powers = scaling.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if scaling.factor <= 1:
        return 1.0 / powers
    low = max(math.floor(_pair_with(scaling, dim, scaling.beta_fast)), 0)
    high = min(math.ceil(_pair_with(scaling, dim, scaling.beta_slow)), dim - 1)
    places = torch.arange(dim // 2, dtype=torch.float32)
    fast = 1 - ((places - low) / (high - low or 0.001)).clamp(0, 1)
    return 1.0 / (scaling.factor * powers) * (1 - fast) + 1.0 / powers * fast


def _pair_with(scaling: RopeScaling, dim: int, turns: float) -> float:
    """The index of the pair that makes ``turns`` turns within the original positions."""
    span = scaling.original_positions / (turns * 2 * math.pi)
    return dim * math.log(span) / (2 * math.log(scaling.theta))


def table(scaling: RopeScaling, dim: int, positions: int, dtype: torch.dtype) -> torch.Tensor:
    """``[positions, dim]``: cosines of each pair in the first half of a row, sines in the second."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse_frequencies(scaling, dim)
    return (torch.cat([angles.cos(), angles.sin()], -1) * scaling.table_scale).to(dtype)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x [..., D]`` with value ``i`` of the first half paired with ``i`` of the second (GPT-NeoX)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x [..., D]`` with values ``2i`` and ``2i + 1`` paired. The turned pairs lie in halves, in queries
    and keys alike, so that their products agree.
    """
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
