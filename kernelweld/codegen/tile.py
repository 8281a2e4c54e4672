"""A piece of a value in registers, as the generated source names it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernelweld.codegen.spelling import grouped, rounded


@dataclass(frozen=True)
class Tile:
    """``text`` is an expression that holds ``count`` features, padded to a power of two, for each row.

    Every tile has two axes in the source. ``rows`` is False when it is the same for all rows (a weight): its
    first extent is then 1. ``clean``: padding lanes hold zeros, so sums need no mask.
    """

    text: str
    rows: bool
    count: int
    clean: bool = False


def combine(template: str, *tiles: Tile, clean: bool = False) -> Tile:
    """The expression ``template`` over ``tiles``, one ``{}`` for each, in their common shape."""
    text = template.format(*(grouped(tile.text) for tile in tiles))
    return Tile(text, any(t.rows for t in tiles), max(t.count for t in tiles), clean)


def rounded_to(tile: Tile, dtype: torch.dtype) -> Tile:
    """``tile`` rounded to ``dtype`` and widened again; unchanged for float32."""
    return replace(tile, text=rounded(tile.text, dtype))


def padded(count: int) -> int:
    """The smallest power of two that holds ``count`` elements."""
    return 1 << (count - 1).bit_length()
