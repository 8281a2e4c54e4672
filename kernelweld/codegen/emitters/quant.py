"""Scales of rows, and their codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

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

#: The quotient after one step of correction. For values of 11 significant bits its code is that of the exact
#: quotient: none of them over a float32 lies so near a tie of two codes that the remaining error decides (all
#: values over all 2**23 significands of scales were compared, with the inverse up to one unit off). A second
#: step, with an inverse that is rounded once, makes the quotient exact:
#: Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990.
_CORRECTED = "corrected({}, {}, {}, {})"

#: Limits by which a magnitude is divided in three operations with the same bits as a division: compared for
#: all 2**23 significands. Each has few bits, so no scale of a value of 11 bits has a significand of ones
#: alone: only of such numbers can ``reciprocal`` be so far off that a code is another one.
_LIMITS = (448.0, 240.0, 57344.0, 127.0)

#: The largest code of each type.
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}

#: Adding and subtracting 1.5 * 2**23 rounds to a whole number, half to even.
_WHOLE = "{0} + 12582912.0 - 12582912.0"


def emit_quant_scale(scope: Scope, step: Apply) -> None:
    """s = max(min(amax(|x|), upper), eps) / limit, then the next power of two."""
    word, out = cast(QuantScale, step.word), step.outs[0]
    x, upper, whole = (*step.ins, None)[:3]
    if x is None:
        raise Refused("quant_scale needs its operand `x`")
    tiles = [scope.tile(x, piece) for piece in scope.pieces(x)]
    amax = row_magnitude(scope, f"{out.name}_amax", tiles)
    if upper is not None:
        amax = combine(_AT_MOST, amax, scope.tile(upper, WHOLE))
    amax = _bounded(amax, word, "amax")
    if word.inverse_limit:
        scale = combine(f"{{}} * {literal(inverse(word.limit))}", amax)
    elif _has_normal_quotients(word):
        limit = f"{literal(word.limit)}, {literal(inverse(word.limit))}"
        scale = combine(f"divided({{}}, {limit})", scope.let(f"{out.name}_bounded", amax))
    else:
        scale = combine(f"tl.div_rn({{}}, {literal(word.limit)})", amax)
    scale = _bounded(scale, word, "scale")
    if whole is not None:
        template = "{} * {}" if word.apply == "multiply" else "tl.div_rn({}, {})"
        scale = combine(template, scale, scope.tile(whole, WHOLE))
    scope.define(out, WHOLE, _formatted(scope, out, word, scale))


def _formatted(scope: Scope, out: Value, word: QuantScale, scale: Tile) -> Tile:
    """The scale as its format has it, in float32."""
    if word.format == "fp32":
        return scale
    if word.format == "e4m3":
        bounded = _AT_MOST.format(_AT_LEAST.format(scale.text, literal(word.low)), literal(word.high))
        return replace(scale, text=f"{bounded}.to(tl.float8e4nv).to(tl.float32)")
    return _power(scope, out, word, scale)


def _power(scope: Scope, out: Value, word: QuantScale, scale: Tile) -> Tile:
    """The power of two at ``scale``, within its range."""
    template = "next_power_of_two({})" if word.format == "ue8m0" else "power_of_two_below({})"
    if not word.high:
        return combine(template, scale)
    scale = scope.let(f"{out.name}_quotient", scale)
    low, high = literal(word.low), literal(word.high)
    above = f"tl.where({{0}} <= {low}, {low}, {template.format('{0}')})"
    return replace(scale, text=_AT_MOST.format(above.format(scale.text), high))


def emit_e8m0(scope: Scope, step: Apply) -> None:
    """code = bits >> 23."""
    (scale,), (out,) = step.ins, step.outs
    if scale is None:
        raise Refused("e8m0 needs its operand `scale`")
    for piece in scope.pieces(out):
        scope.define(out, piece, combine("({}.to(tl.int32, bitcast=True) >> 23)", scope.tile(scale, piece)))


def emit_e4m3(scope: Scope, step: Apply) -> None:
    """The scale itself: its store converts it, without rounding."""
    (scale,), (out,) = step.ins, step.outs
    if scale is None:
        raise Refused("e4m3 needs its operand `scale`")
    for piece in scope.pieces(out):
        scope.bind(out, piece, scope.tile(scale, piece))


def _bounded(tile: Tile, word: QuantScale, place: str) -> Tile:
    if word.eps_place != place:
        return tile
    return replace(tile, text=_AT_LEAST.format(tile.text, literal(word.eps)))


def emit_quant(scope: Scope, step: Apply) -> None:
    """codes = clamp(x / s), rounded by the store: e4m3 by the conversion, int8 here."""
    word, out = cast(Quant, step.word), step.outs[0]
    x, scale = step.ins
    if x is None:
        raise Refused("quant needs its operand `x`")
    own = None if word.operation == "multiply" else _ordinary_scale(scope, x, scale)
    factor = Tile(_number(word), False, 1) if scale is None else scope.tile(scale, WHOLE)
    divide = _division(scope, out, x, factor, word, own)
    for piece in scope.pieces(out):
        scaled = divide(scope.tile(x, piece))
        text = scaled.text
        if own is None or not _reaches(word, own):
            text = _AT_MOST.format(_AT_LEAST.format(text, literal(word.low)), literal(word.high))
        if not word.dtype.is_floating_point:
            text = _WHOLE.format(text)
        scope.define(out, piece, replace(scaled, text=text))


def _number(word: Quant) -> str:
    """The scale that the word itself has, in float32."""
    return literal(float(torch.tensor(word.number)))


def _ordinary_scale(scope: Scope, x: Value, scale: Value | None) -> QuantScale | None:
    """The word of ``scale`` if it was taken from all of ``x`` and has a lower bound.

    Then no quotient exceeds its limit by more than roundings, every finite scale has a normal reciprocal, and
    no correction of a quotient that has a code underflows.
    """
    for step in scope.frame.task.steps:
        if isinstance(step, Apply) and scale in step.outs and isinstance(step.word, QuantScale):
            return (
                step.word if step.ins[0] == x and not any(step.ins[1:]) and _is_ordinary(step.word) else None
            )
    return None


def _is_ordinary(word: QuantScale) -> bool:
    if word.high:  # a power of two whose inverse is a number
        return word.format != "fp32" and word.low >= 2.0**-127 and word.high <= 2.0**127
    return _has_normal_quotients(word)


def _has_normal_quotients(word: QuantScale) -> bool:
    least = {"amax": word.eps / word.limit, "scale": word.eps}.get(word.eps_place, 0.0)
    return least >= 2.0**-80 and word.limit in _LIMITS and not _is_all_ones(word.eps, least)


def _is_all_ones(*numbers: float) -> bool:
    """Whether the float32 of a number has a significand of ones alone."""
    bits = torch.tensor(numbers).view(torch.int32) & 0x7FFFFF
    return bool((bits == 0x7FFFFF).any())


def _reaches(word: Quant, own: QuantScale) -> bool:
    """Whether quotients up to the limit, and a rounding above it, need no bound: their codes are those of the
    limit. A scale that is rounded down, or kept in a range, has larger ones.
    """
    if own.high or own.format == "ue8m0_floor":
        return False
    return word.low <= -own.limit and own.limit <= min(word.high, _LARGEST[word.dtype])


def _division(
    scope: Scope, out: Value, x: Value, scale: Tile, word: Quant, own: QuantScale | None
) -> Callable[[Tile], Tile]:
    """How an element becomes a quotient. One reciprocal serves a row: a division for each element would cost
    as much as all else.
    """
    if word.operation == "multiply":
        return lambda element: combine("{} * {}", element, scale)
    exact = word.operation == "divide"
    if exact and own is None:
        return lambda element: combine("tl.div_rn({}, {})", element, scale)
    if not exact or own is None:
        inverse = scope.let(f"{out.name}_inverse", combine("tl.div_rn(1.0, {})", scale))
        return lambda element: combine("{} * {}", element, inverse)
    finite = scope.let(f"{out.name}_finite", combine("finite_or_zero({})", scale))
    inverse = scope.let(f"{out.name}_inverse", _inverse(x, own, scale, finite))
    if own.format != "fp32":  # the inverse of a power of two is exact
        return lambda element: combine("{} * {}", element, inverse)

    def corrected(element: Tile) -> Tile:
        first = scope.let(f"{out.name}_near", combine("{} * {}", element, inverse))
        better = combine(_CORRECTED, first, element, finite, inverse)
        if x.dtype != torch.float32:
            return better
        return combine(_CORRECTED, scope.let(f"{out.name}_nearer", better), element, finite, inverse)

    return corrected


def _inverse(x: Value, own: QuantScale, scale: Tile, finite: Tile) -> Tile:
    """``1 / scale``, rounded once where that matters: to the second correction of a float32 quotient."""
    if x.dtype == torch.float32 and own.format == "fp32":
        return combine("tl.div_rn(1.0, {})", scale)
    return combine("reciprocal({}, {})", scale, finite)


QUANT_SCALE = Emitter(same_positions, emit_quant_scale)
E8M0_BYTE = Emitter(same_positions, emit_e8m0)
E4M3_NUMBER = Emitter(same_positions, emit_e4m3)
QUANT = Emitter(same_positions, emit_quant)
