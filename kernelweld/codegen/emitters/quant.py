"""Scales of rows, and their codes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kernelweld.codegen.emitters.contract import Emitter, same_positions
from kernelweld.codegen.reductions import row_magnitude
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.spelling import literal
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile, combine
from kernelweld.ir.quant import Quant
from kernelweld.ir.quant_scale import QuantScale, inverse

_NAN = "propagate_nan=tl.PropagateNan.ALL"
_AT_LEAST = f"tl.maximum({{}}, {{}}, {_NAN})"
_AT_MOST = f"tl.minimum({{}}, {{}}, {_NAN})"

#: Adding and subtracting 1.5 * 2**23 rounds to a whole number, half to even.
_WHOLE = "{0} + 12582912.0 - 12582912.0"


def emit_quant_scale(scope: Scope, step: Apply) -> None:
    """s = max(min(amax(|x|), upper), eps) / limit, then the next power of two."""
    word, out = cast(QuantScale, step.word), step.outs[0]
    x, upper = step.ins
    if x is None:
        raise Refused("quant_scale needs its operand `x`")
    tiles = [scope.tile(x, piece) for piece in scope.pieces(x)]
    amax = row_magnitude(scope, f"{out.name}_amax", tiles)
    if upper is not None:
        amax = combine(_AT_MOST, amax, scope.tile(upper, WHOLE))
    amax = _bounded(amax, word, "amax")
    if word.inverse_limit:
        scale = combine(f"{{}} * {literal(inverse(word.limit))}", amax)
    else:
        scale = combine(f"tl.div_rn({{}}, {literal(word.limit)})", amax)
    scale = _bounded(scale, word, "scale")
    if word.format == "ue8m0":
        scale = combine("next_power_of_two({})", scale)
    scope.define(out, WHOLE, scale)


def _bounded(tile: Tile, word: QuantScale, place: str) -> Tile:
    if word.eps_place != place:
        return tile
    return replace(tile, text=_AT_LEAST.format(tile.text, literal(word.eps)))


def emit_quant(scope: Scope, step: Apply) -> None:
    """codes = clamp(x / s), rounded by the store: e4m3 by the conversion, int8 here."""
    word, out = cast(Quant, step.word), step.outs[0]
    x, scale = _both(step)
    factor = scope.tile(scale, WHOLE)
    if word.operation == "reciprocal":
        factor = scope.let(f"{out.name}_inverse", combine("tl.div_rn(1.0, {})", factor))
    template = "tl.div_rn({}, {})" if word.operation == "divide" else "{} * {}"
    for piece in scope.pieces(out):
        scaled = combine(template, scope.tile(x, piece), factor)
        low, high = literal(word.low), literal(word.high)
        text = _AT_MOST.format(_AT_LEAST.format(scaled.text, low), high)
        if not word.dtype.is_floating_point:
            text = _WHOLE.format(text)
        scope.define(out, piece, replace(scaled, text=text))


def _both(step: Apply) -> tuple[Value, Value]:
    x, scale = step.ins
    if x is None or scale is None:
        raise Refused("quant needs both operands")
    return x, scale


QUANT_SCALE = Emitter(same_positions, emit_quant_scale)
QUANT = Emitter(same_positions, emit_quant)
