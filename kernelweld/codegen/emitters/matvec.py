"""The product of one row and a matrix: each row of the weight times the row, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kernelweld.codegen.emitters.contract import Emitter, equal_positions
from kernelweld.codegen.layout import Alignment
from kernelweld.codegen.reductions import row_sum
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import combine, rounded_to
from kernelweld.ir.matvec import MatVec


def align_matvec(step: Apply) -> Sequence[Alignment]:
    """Element ``k`` of the weight's row meets element ``k`` of the row."""
    return equal_positions(*step.ins)


def emit_matvec(scope: Scope, step: Apply) -> None:
    """y = sum(weight * x), accumulated in float32 and rounded once."""
    word, out = cast(MatVec, step.word), step.outs[0]
    weight, x = cast("tuple[Value, Value]", step.ins)
    pairs = [(scope.tile(weight, piece), scope.tile(x, piece)) for piece in scope.pieces(weight)]
    products = [
        scope.let(f"{out.name}_product", combine("{} * {}", w, row, clean=w.clean and row.clean))
        for w, row in pairs
    ]
    total = row_sum(scope, f"{out.name}_sum", products, step.over_heads)
    scope.define(out, WHOLE, rounded_to(total, word.dtype))


MATVEC = Emitter(align_matvec, emit_matvec)
