"""Cosines and sines of a rotary embedding, from frequencies or from rows of a cache.

The operands of the step: the positions (width 1, or width 3 for the three position rows of mrope), then
the table. For ``source="inv_freq"`` the table is one value of width H. For ``source="cache"`` it is the
cache row that a load with ``Operand.index`` has gathered at the position (width 2H), or three such rows,
one for each position row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from kernelweld.codegen.emitters.contract import Emitter
from kernelweld.codegen.layout import Alignment, Span, cuts
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.spelling import is_float, literal
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile, combine, rounded_to
from kernelweld.ir.rope_table import RopeTable

_PLACES = {"halves": 2, "pairs": 2, "half": 1}


def _tables(step: Apply) -> list[Value]:
    return [v for v in step.ins[1:] if v is not None]


def _frequencies(step: Apply, word: RopeTable) -> int:
    width = _tables(step)[0].width
    return width if word.source == "inv_freq" else width // 2


def _starts(word: RopeTable, count: int) -> list[tuple[int, int]]:
    """(start, step) of every place in the output that frequency ``k`` is written to."""
    return {"halves": [(0, 1), (count, 1)], "pairs": [(0, 2), (1, 2)], "half": [(0, 1)]}[word.layout]


def align_rope_table(step: Apply) -> Sequence[Alignment]:
    word = cast(RopeTable, step.word)
    count = _frequencies(step, word)
    outs = [Span(out.name, *start) for out in step.outs for start in _starts(word, count)]
    reads = [0] if word.source == "inv_freq" else [0, count]
    tables = [Span(table.name, start) for table in _tables(step) for start in reads]
    positions = step.ins[0]
    single = (
        [Alignment(1, (Span(positions.name, i),)) for i in range(3)]
        if positions and positions.width == 3
        else []
    )
    return (Alignment(count, (*outs, *tables)), *single)


def emit_rope_table(scope: Scope, step: Apply) -> None:
    """cos and sin of position × frequency, scaled and rounded, or the gathered cache row, in the asked
    layout.
    """
    word = cast(RopeTable, step.word)
    count = _frequencies(step, word)
    for cut in cuts(scope.frame.partitions, align_rope_table(step)[0]):
        pair = (
            _computed(scope, step, word, cut)
            if word.source == "inv_freq"
            else _gathered(scope, step, word, cut)
        )
        for out, tile in zip(step.outs, pair, strict=True):
            places = [cut.image(*start) for start in _starts(word, count)]
            tile = rounded_to(tile, word.dtype)
            if tile.text.isidentifier():
                scope.bind(out, places[0], tile)
            else:
                tile = scope.define(out, places[0], tile)
            for place in places[1:]:
                scope.bind(out, place, tile)


def _computed(scope: Scope, step: Apply, word: RopeTable, cut: Piece) -> tuple[Tile, Tile]:
    frequency = scope.tile(_tables(step)[0], cut)
    position = _position(scope, step, word, cut)
    angle = scope.let("angle", combine("{} * {}", position, frequency))
    scale = "" if word.scaling == 1.0 else f" * {literal(word.scaling)}"
    cos, sin = (replace(angle, text=f"tl.{name}({angle.text}){scale}") for name in ("cos", "sin"))
    return cos, sin


def _position(scope: Scope, step: Apply, word: RopeTable, cut: Piece) -> Tile:
    positions = step.ins[0]
    if positions is None:
        raise Refused("rope_table needs positions")
    pieces = [WHOLE] if word.section_order == "none" else [Piece(i, 1) for i in range(3)]
    tiles = [scope.tile(positions, piece) for piece in pieces]
    if not is_float(positions.dtype):
        tiles = [replace(t, text=f"{t.text}.to(tl.float32)") for t in tiles]
    return _chosen(scope, word, tiles, cut)


def _gathered(scope: Scope, step: Apply, word: RopeTable, cut: Piece) -> tuple[Tile, Tile]:
    count = _frequencies(step, word)
    rows = [[scope.tile(table, cut.image(start, 1)) for table in _tables(step)] for start in (0, count)]
    return _chosen(scope, word, rows[0], cut), _chosen(scope, word, rows[1], cut)


def _chosen(scope: Scope, word: RopeTable, tiles: Sequence[Tile], cut: Piece) -> Tile:
    """For every frequency the tile of its position row (``RopeTable.rows``)."""
    if word.section_order == "none":
        return tiles[0]
    if len(tiles) != 3:
        raise Refused(f"mrope sections need three position rows, not {len(tiles)}")
    t, h, w = (tile.text for tile in tiles)
    index = _index(scope, cut)
    s = word.sections
    if word.section_order == "plain":
        text = f"tl.where({index} < {s[0]}, {t}, tl.where({index} < {s[0] + s[1]}, {h}, {w}))"
    else:
        in_h = f"({index} % 3 == 1) & ({index} < {3 * s[1]})"
        in_w = f"({index} % 3 == 2) & ({index} < {3 * s[2]})"
        text = f"tl.where({in_h}, {h}, tl.where({in_w}, {w}, {t}))"
    chosen = Tile(text, any(tile.rows for tile in tiles), max(cut.count, *(tile.count for tile in tiles)))
    return scope.let("chosen", chosen)


def _index(scope: Scope, cut: Piece) -> str:
    """The frequency numbers of a cut: ``[1, B]``."""
    text = scope.lane(cut.count)
    text = f"{text} * {cut.step}" if cut.step > 1 else text
    text = f"{text} + {cut.start}" if cut.start else text
    return text if text.isidentifier() else scope.shared("frequency", text)


ROPE_TABLE = Emitter(align_rope_table, emit_rope_table)
