"""Rows of scores that top-k kernels have got wrong, by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Scores = Callable[[torch.Tensor], torch.Tensor]


def _special(noise: torch.Tensor) -> torch.Tensor:
    """NaN of both signs, both infinities, both zeros and subnormals, among ordinary scores."""
    values = torch.tensor([math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1.4e-45, -1.4e-45, 3e38, -3e38])
    nan = torch.tensor([0x7FC00000, -0x400000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    table = torch.cat([values, nan]).to(noise.device)
    chosen = torch.randint(0, 2 * len(table), noise.shape, device=noise.device)
    return torch.where(chosen < len(table), table[chosen % len(table)], noise)


def _last_bits(noise: torch.Tensor) -> torch.Tensor:
    """Scores that differ in the last bits only: half-precision keys take them for one."""
    return (0x42C80000 + (noise * 300).int()).view(torch.float32)


def apart(noise: torch.Tensor, inside: float, outside: float, groups: int = 512) -> torch.Tensor:
    """Evenly spaced groups of 8 neighbours, as a sample takes them, unlike all else."""
    width = noise.shape[-1]
    column = torch.arange(width, device=noise.device)
    return noise + torch.where(column % max(16, width // groups) < 8, inside, outside)


#: From standard normal noise ``[R, L]`` to scores.
SCORES: dict[str, Scores] = {
    "normal": lambda noise: noise,
    "ascending": lambda noise: noise.sort().values,
    "descending": lambda noise: noise.sort(descending=True).values,
    "same": lambda noise: torch.full_like(noise, 0.7),
    "ties": lambda noise: (noise * 8).round(),
    "half zeros": lambda noise: noise.clamp(min=0),
    "two values": lambda noise: (noise > 0.5).float(),
    "last bits": _last_bits,
    "narrow": lambda noise: 100 + noise * 1e-3,
    "far tails": lambda noise: noise * noise.abs() ** 6 * torch.exp(4 * noise),
    "special": _special,
    "masked": lambda noise: torch.where(noise > 1, noise, -math.inf),
    "all NaN": lambda noise: torch.full_like(noise, math.nan),
    "sampled high": lambda noise: apart(noise, 50, 0),
    "sampled low": lambda noise: apart(noise, 0, 50),
}

#: Lengths at the borders of what kernels tell apart, for k = 2048.
LENGTHS = [
    *(0, 1, 10, 100, 2047, 2048, 2049, 2050, 2500, 3000, *range(2055, 2064)),
    *(border + step for border in (4096, 8192, 16384, 32768, 131072) for step in (-1, 0, 1)),
    *(163840, 262144, 262151),
]
