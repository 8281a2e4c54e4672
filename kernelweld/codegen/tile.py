"""A piece of a value in registers, as the generated source names it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernelweld.codegen.spelling import grouped, rounded


@dataclass(frozen=True)
class Tile:
    """``text`` is an expression that holds ``count`` features, padded to a power of two, for each row.

    Every tile has two axes in the source. ``rows`` is False when it is the same for all rows (a weight): its
    first extent is then 1. ``clean``: padding lanes hold zeros, so sums need no mask. ``product``: the last
    operation is a multiplication, which a compiler may fuse into a sum. ``dtype`` is what it was rounded to.
    """

    text: str
    rows: bool
    count: int
    clean: bool = False
    product: bool = False
    dtype: torch.dtype = torch.float32


def combine(template: str, *tiles: Tile, clean: bool = False) -> Tile:
    """The expression ``template`` over ``tiles``, one ``{}`` for each, in their common shape."""
    text = template.format(*(grouped(tile.text) for tile in tiles))
    return Tile(text, any(t.rows for t in tiles), max(t.count for t in tiles), clean)


def multiply(a: Tile, b: Tile, clean: bool = False) -> Tile:
    """``a * b``."""
    return replace(combine("{} * {}", a, b, clean=clean), product=True)


def add(a: Tile, b: Tile, sign: str = "+", clean: bool = False) -> Tile:
    """``a + b`` or ``a - b``, with rounded products kept out of a fused multiply-add."""
    return combine(f"{{}} {sign} {{}}", unfused(a), unfused(b), clean=clean)


def unfused(tile: Tile) -> Tile:
    """``tile`` as a compiler cannot fuse it into a sum, when it is a product rounded to bfloat16.

    Float32 products may be fused: that rounds less. Float16 roundings are safe by themselves.
    """
    if not tile.product or tile.dtype != torch.bfloat16:
        return tile
    return replace(tile, text=f"unfused_bf16({tile.text})", product=False)


def rounded_to(tile: Tile, dtype: torch.dtype) -> Tile:
    """``tile`` rounded to ``dtype`` and widened again; unchanged for float32."""
    return tile if dtype == torch.float32 else replace(tile, text=rounded(tile.text, dtype), dtype=dtype)


def padded(count: int) -> int:
    """The smallest power of two that holds ``count`` elements."""
    return 1 << (count - 1).bit_length()
