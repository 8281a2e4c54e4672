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
    waiting: int = 16

    def tiles(self, experts: int) -> int:
        """Tiles of experts."""
        return ceil(experts / self.block_e)

    def splits(self, width: int) -> int:
        """Parts of K."""
        return ceil(width / (self.block_k * self.steps))


#: The most rows for which one launch is faster than the library's GEMM and a choice of its own.
MOST_ROWS = 64

#: By width, experts and whether the weights are bfloat16: the largest number of rows for each configuration.
_MEASURED: Mapping[tuple[int, int, bool], tuple[tuple[int, Config], ...]] = MappingProxyType({})


def config_for(rows: int, width: int, experts: int, dtype: torch.dtype) -> Config | None:
    """The configuration for ``rows`` rows, None where the library's GEMM is to be used."""
    known = _MEASURED.get((width, experts, dtype == torch.bfloat16))
    if known is None:
        return _default(rows, width, experts) if rows <= MOST_ROWS else None
    return next((config for most, config in known if rows <= most), None)


def _default(rows: int, width: int, experts: int) -> Config:
    """Between one and two programs for each of some 130 multiprocessors."""
    block_e = 4 if rows <= 4 else 32
    block_k = 1024 if rows <= 4 else 256
    splits = max(160 * block_e // experts, 1)
    return Config(block_e, block_k, steps=max(ceil(width / block_k / splits), 1), dot=rows > 4)
