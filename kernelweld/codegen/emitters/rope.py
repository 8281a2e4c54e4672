"""Rotary embedding: both elements of a pair are whole pieces of one row, so turning them moves no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kernelweld.codegen.emitters.contract import Emitter
from kernelweld.codegen.layout import Alignment, Span, cuts
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile, add, multiply, rounded_to
from kernelweld.ir.rope import Rope


def _values(step: Apply) -> tuple[Value, Value, Value, Value]:
    x, cos, sin = step.ins
    if x is None or cos is None or sin is None:
        raise Refused("rope needs x, cos and sin")
    return step.outs[0], x, cos, sin


def _pair_starts(style: str, first: int, half: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(start, step) of the first and of the second elements of ``half`` pairs that begin at ``first``."""
    return ((first, 1), (first + half, 1)) if style == "neox" else ((first, 2), (first + 1, 2))


def _views(step: Apply, word: Rope) -> dict[str, Span]:
    """Where pair ``k`` lies in every value: ``a, b`` in x; ``ya, yb`` in the output; cosines and sines
    of both.
    """
    out, x, cos, sin = _values(step)
    half = word.rotary_dim // 2
    written = "interleaved" if word.style == "interleaved" else "neox"
    tables = {"half": ((0, 1), (0, 1)), "halves": ((0, 1), (half, 1)), "pairs": ((0, 2), (1, 2))}[word.table]
    places = {
        "": (x, _pair_starts(word.style, word.offset, half)),
        "y": (out, _pair_starts(written, word.offset, half)),
        "cos_": (cos, tables),
        "sin_": (sin, tables),
    }
    return {
        f"{prefix}{which}": Span(value.name, *start)
        for prefix, (value, starts) in places.items()
        for which, start in zip("ab", starts, strict=True)
    }


def _copied(step: Apply, word: Rope) -> list[Alignment]:
    """The parts before and after the rotary part, which go through unchanged."""
    out, x, _, _ = _values(step)
    end = word.offset + word.rotary_dim
    bounds = [(0, word.offset), (end, out.width - end)]
    return [Alignment(n, (Span(x.name, s), Span(out.name, s))) for s, n in bounds]


def _pairs(step: Apply, word: Rope) -> Alignment:
    return Alignment(word.rotary_dim // 2, tuple(_views(step, word).values()))


def align_rope(step: Apply) -> Sequence[Alignment]:
    word = cast(Rope, step.word)
    return (_pairs(step, word), *_copied(step, word))


def emit_rope(scope: Scope, step: Apply) -> None:
    """a' = a cos_a - b sin_a; b' = b cos_b + a sin_b; the rest of the row is renamed."""
    word = cast(Rope, step.word)
    values = {v.name: v for v in _values(step)}
    views = _views(step, word)
    for cut in cuts(scope.frame.partitions, _pairs(step, word)):
        tiles = {
            key: scope.tile(values[s.value], cut.image(s.start, s.step))
            for key, s in views.items()
            if not key.startswith("y")
        }
        _turn(scope, step, word, tiles, views, cut)
    for alignment in _copied(step, word):
        for cut in cuts(scope.frame.partitions, alignment):
            _copy(scope, step, word, cut.image(alignment.spans[0].start, 1))


def _turn(
    scope: Scope, step: Apply, word: Rope, tiles: dict[str, Tile], views: dict[str, Span], cut: Piece
) -> None:
    a, b, minus, plus = tiles["a"], tiles["b"], *(("+", "-") if word.inverse else ("-", "+"))
    rotations = {"ya": (a, "cos_a", minus, b, "sin_a"), "yb": (b, "cos_b", plus, a, "sin_b")}
    for key, (own, cos, sign, other, sin) in rotations.items():
        out, place = step.outs[0], cut.image(views[key].start, views[key].step)
        left = multiply(own, tiles[cos])
        right = multiply(other, tiles[sin])
        left = scope.stage(out, place, "cos", left, word.product_dtype)
        right = scope.stage(out, place, "sin", right, word.product_dtype)
        scope.define(out, place, rounded_to(add(left, right, sign), word.dtype))


def _copy(scope: Scope, step: Apply, word: Rope, piece: Piece) -> None:
    out, x, _, _ = _values(step)
    tile = scope.tile(x, piece)
    if x.dtype == word.dtype:
        scope.bind(out, piece, tile)
    else:
        scope.define(out, piece, rounded_to(tile, word.dtype))


ROPE = Emitter(align_rope, emit_rope)
