"""How ``route`` is launched: the tile of experts and part of K of a program, by measurement on an H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

import torch


@dataclass(frozen=True)
class Config:
    """A program multiplies ``block_e`` experts by ``steps`` blocks of ``block_k`` columns. ``dot``: on the
    tensor cores; otherwise as products and a sum, for few rows. At most ``waiting`` programs choose.
    """

    block_e: int
    block_k: int
    steps: int = 1
    warps: int = 4
    dot: bool = False
    waiting: int = 32

    def tiles(self, experts: int) -> int:
        """Tiles of experts."""
        return ceil(experts / self.block_e)

    def splits(self, width: int) -> int:
        """Parts of K."""
        return ceil(width / (self.block_k * self.steps))


#: The most rows for which one launch is faster than the library's GEMM and a choice of its own.
MOST_ROWS = 32

Measured = tuple[tuple[int, Config], ...]


def products(block_e: int, width: int, parts: int, *, wide: bool = False, warps: int = 1) -> Config:
    """Products and a sum over one of ``parts`` parts of ``width``. A thread takes 16 bytes of weights at a
    time: 8 values, or 4 of ``wide`` weights, which are float32.
    """
    block_k = (128 if wide else 256) * warps
    return Config(block_e, block_k, max(ceil(width / block_k / parts), 1), warps)


def dot(block_e: int, block_k: int, steps: int, warps: int = 4) -> Config:
    """On the tensor cores."""
    return Config(block_e, block_k, steps, warps, dot=True)


#: By width, experts and whether the weights are bfloat16: the largest number of rows for each configuration.
#: Measured on an H200: ``benchmarks/results/router.json``.
_MEASURED: Mapping[tuple[int, int, bool], Measured] = MappingProxyType(
    {
        (7168, 256, True): (
            (4, Config(2, 256, 7, warps=1)),
            (8, dot(16, 256, 4, warps=2)),
            (32, dot(16, 256, 2, warps=2)),
        ),
        (3072, 256, False): (
            (4, Config(2, 128, 6, warps=1)),
            (16, Config(2, 128, 8, warps=1)),
            (32, dot(32, 256, 1)),
        ),
        (4096, 512, True): (
            (1, Config(4, 256, 4, warps=1)),
            (4, Config(2, 256, 4, warps=1)),
            (32, dot(32, 256, 2)),
        ),
        (7168, 384, True): (
            (1, Config(4, 256, 7, warps=1)),
            (4, Config(2, 256, 7, warps=1)),
            (32, dot(32, 256, 3)),
        ),
        (6144, 256, True): (
            (1, Config(2, 256, 6, warps=1)),
            (4, Config(1, 256, 6, warps=1)),
            (16, dot(16, 256, 2, warps=2)),
            (32, dot(16, 256, 4, warps=2)),
        ),
        (6144, 128, False): (
            (1, Config(1, 128, 12, warps=1)),
            (4, Config(2, 128, 12, warps=1)),
            (16, Config(2, 128, 8, warps=1)),
            (32, dot(32, 256, 1)),
        ),
        (7168, 256, False): (
            (1, Config(1, 128, 14, warps=1)),
            (4, Config(2, 128, 14, warps=1)),
            (16, Config(2, 128, 8, warps=1)),
        ),
        (6144, 128, True): (
            (1, Config(2, 256, 6, warps=1)),
            (4, Config(4, 256, 6, warps=1)),
            (16, dot(16, 256, 2, warps=2)),
        ),
        (3072, 256, True): (
            (1, Config(4, 256, 3, warps=1)),
            (4, Config(2, 256, 3, warps=1)),
            (16, dot(16, 256, 2, warps=2)),
        ),
    }
)


def config_for(rows: int, width: int, experts: int, dtype: torch.dtype) -> Config | None:
    """The configuration for ``rows`` rows, None where the library's GEMM is to be used."""
    known = _MEASURED.get((width, experts, dtype == torch.bfloat16))
    if known is None:
        known = _default(width, experts, wide=dtype != torch.bfloat16)
    return next((config for most, config in known if rows <= most), None)


def _default(width: int, experts: int, *, wide: bool) -> Measured:
    """For a router that was not measured: some programs for each of about 130 multiprocessors."""
    parts = max(ceil(width / (1024 if wide else 2048)), 4)
    few = products(2 if experts <= 384 else 4, width, parts, wide=wide)
    steps = max(ceil(width / 256 / max(160 * 32 // experts, 1)), 1)
    return ((16, few),) if wide else ((4, few), (MOST_ROWS, dot(32, 256, steps)))
