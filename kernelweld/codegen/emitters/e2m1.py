"""Codes of four bits, two in a byte: even and odd elements are pieces of a row that meet without moving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from kernelweld.codegen.emitters.contract import Emitter
from kernelweld.codegen.layout import Alignment, Span, cuts
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile, combine
from kernelweld.ir.e2m1 import E2M1

#: What becomes of a number before it is converted, by the sign that zeros have. The conversion keeps it.
_ZEROS = {"signed": "{0}", "negative": "{0} + 0.0", "plain": "tl.where(tl.abs({0}) <= 0.25, 0.0, {0})"}


def _values(step: Apply) -> tuple[Value, Value, Value]:
    x, scale = step.ins[:2]
    if x is None or scale is None:
        raise Refused("e2m1 needs its operands `x` and `scale`")
    return step.outs[0], x, scale


def align_e2m1(step: Apply) -> Sequence[Alignment]:
    """Byte ``k`` meets elements ``2 k`` and ``2 k + 1``."""
    out, x, _ = _values(step)
    if x.width != 2 * out.width:
        raise Refused(f"value `{x.name}` of width {x.width} does not give {out.width} bytes")
    return (Alignment(out.width, (Span(out.name), Span(x.name, 0, 2), Span(x.name, 1, 2))),)


def emit_e2m1(scope: Scope, step: Apply) -> None:
    """byte = code(even) | code(odd) << 4."""
    word, (out, x, scale) = cast(E2M1, step.word), _values(step)
    template = "tl.div_rn({}, {})" if word.operation == "divide" else "{} * {}"
    factor = _factor(scope, step, word, scope.tile(scale, WHOLE))
    for cut in cuts(scope.frame.partitions, align_e2m1(step)[0]):
        pair = [combine(template, scope.tile(x, cut.image(k, 2)), factor) for k in (0, 1)]
        if word.zeros != "signed":
            pair = [
                replace(t, text=_ZEROS[word.zeros].format(scope.let(f"{out.name}_y", t).text)) for t in pair
            ]
        scope.define(out, cut, combine("e2m1_pairs({}, {})", *pair))


def _factor(scope: Scope, step: Apply, word: E2M1, scale: Tile) -> Tile:
    """What every element of a block is multiplied with, or divided by."""
    if not word.reads_tensor_scale:
        return scale
    whole, name = step.ins[2], step.outs[0].name
    if whole is None:
        raise Refused("e2m1 needs its operand `tensor_scale`")
    if word.operation == "quotient":
        inverse = scope.let(f"{name}_inverse", combine("tl.div_rn(1.0, {})", scope.tile(whole, WHOLE)))
        return scope.let(f"{name}_factor", combine("tl.div_rn({}, {})", inverse, scale))
    inverse = scope.let(f"{name}_inverse", combine("reciprocal_or_zero({})", scope.tile(whole, WHOLE)))
    product = combine("{} * {}", scale, inverse)
    return scope.let(f"{name}_factor", combine("reciprocal_or_zero({})", product))


E2M1_PAIRS = Emitter(align_e2m1, emit_e2m1)
