"""Reductions over all pieces of a row, and over its heads: masked, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from kernelweld.codegen.scope import Scope
from kernelweld.codegen.spelling import grouped
from kernelweld.codegen.tile import Tile, padded


def row_sum(scope: Scope, name: str, tiles: Iterable[Tile], over_heads: bool = False) -> Tile:
    """A named column ``[R, 1]``: the sum of ``tiles`` in each row and, with ``over_heads``, over all heads.

    Tiles of one padded size are added first, so each size costs one reduction across threads.
    """
    by_size = sorted(tiles, key=lambda t: padded(t.count))
    sums = [
        _sum_of_equals(scope, list(group)) for _, group in groupby(by_size, key=lambda t: padded(t.count))
    ]
    column = Tile(" + ".join(t.text for t in sums), any(t.rows for t in sums), 1)
    if over_heads and scope.frame.task.heads > 1:
        column = _sum_of_heads(scope, column)
    return scope.let(name, column)


def row_extreme(
    scope: Scope, name: str, tiles: Sequence[Tile], largest: bool, over_heads: bool = False
) -> Tile:
    """A named column ``[R, 1]``: the largest (or smallest) element of each row; NaN where the row
    holds one, as in torch.
    """
    function, pick = ("tl.max", "tl.maximum") if largest else ("tl.min", "tl.minimum")
    worst = 'float("-inf")' if largest else 'float("inf")'
    parts = [_along_features(function, _masked(scope, t, worst)) for t in tiles]
    text = parts[0].text
    for part in parts[1:]:
        text = f"{pick}({text}, {part.text})"
    column = Tile(text, any(t.rows for t in parts), 1)
    if over_heads and column.rows:
        masked = _where(scope.in_heads(), column.text, worst)
        column = Tile(f"{function}({masked}, axis=0, keep_dims=True)", False, 1)
    best = scope.let(name, column)
    poison = [replace(t, text=f"tl.where({t.text} == {t.text}, 0.0, {t.text})") for t in tiles]
    nan = row_sum(scope, f"{name}_nan", poison, over_heads)
    return scope.let(name, Tile(f"{best.text} + {nan.text}", best.rows, 1))


def row_magnitude(scope: Scope, name: str, tiles: Sequence[Tile]) -> Tile:
    """A named column ``[R, 1]``: the largest magnitude of each row; NaN where the row holds one.

    Without their sign the bits of floats are integers in the order of the magnitudes, with NaN above all.
    """
    by_size = sorted(tiles, key=lambda t: padded(t.count))
    parts = [
        _along_features("tl.max", _largest_bits(scope, list(group)))
        for _, group in groupby(by_size, key=lambda t: padded(t.count))
    ]
    largest = _larger(parts)
    return scope.let(name, replace(largest, text=f"{grouped(largest.text)}.to(tl.float32, bitcast=True)"))


def _largest_bits(scope: Scope, tiles: Sequence[Tile]) -> Tile:
    """The larger magnitude of ``tiles`` at each place, as an integer."""
    masked = [grouped(_masked(scope, tile, "0.0").text) for tile in tiles]
    bits = [f"({text}.to(tl.int32, bitcast=True) & 0x7FFFFFFF)" for text in masked]
    return _larger([replace(tile, text=text) for tile, text in zip(tiles, bits, strict=True)])


def _larger(tiles: Sequence[Tile]) -> Tile:
    text = tiles[0].text
    for tile in tiles[1:]:
        text = f"tl.maximum({text}, {tile.text})"
    return Tile(text, any(t.rows for t in tiles), max(t.count for t in tiles))


def _sum_of_equals(scope: Scope, tiles: Sequence[Tile]) -> Tile:
    masked = [_masked(scope, tile, "0.0") for tile in tiles]
    text = " + ".join(t.text for t in masked)
    return _along_features("tl.sum", Tile(text, any(t.rows for t in masked), max(t.count for t in masked)))


def _along_features(function: str, tile: Tile) -> Tile:
    if tile.count == 1:
        return tile
    return Tile(f"{function}({tile.text}, axis=1, keep_dims=True)", tile.rows, 1)


def _masked(scope: Scope, tile: Tile, filler: str) -> Tile:
    if tile.clean and filler == "0.0":
        return tile
    return replace(tile, text=_where(scope.in_columns(tile.count), tile.text, filler))


def _where(mask: str | None, text: str, filler: str) -> str:
    return text if mask is None else f"tl.where({mask}, {text}, {filler})"


def _sum_of_heads(scope: Scope, column: Tile) -> Tile:
    if not column.rows:
        return Tile(f"({column.text}) * {scope.frame.task.heads}", False, 1)
    masked = _where(scope.in_heads(), column.text, "0.0")
    return Tile(f"tl.sum({masked}, axis=0, keep_dims=True)", False, 1)
