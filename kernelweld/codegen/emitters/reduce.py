"""Reductions of the last dimension without a name of their own."""

from __future__ import annotations

from kernelweld.codegen.emitters.contract import Emitter, no_alignment
from kernelweld.codegen.reductions import row_extreme, row_sum
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.spelling import is_float
from kernelweld.codegen.task import Reduce
from kernelweld.codegen.tile import combine, rounded_to


def emit_reduce(scope: Scope, step: Reduce) -> None:
    """sum, mean, amax or amin of every row, accumulated in float32 and rounded once."""
    if not is_float(step.value.dtype):
        raise Refused(f"row reduction `{step.name}` of integers is not generated")
    tiles = [scope.tile(step.value, piece) for piece in scope.pieces(step.value)]
    if step.name in ("amax", "amin"):
        total = row_extreme(scope, step.out.name, tiles, step.name == "amax", step.over_heads)
    elif step.name in ("sum", "mean"):
        total = row_sum(scope, f"{step.out.name}_sum", tiles, step.over_heads)
    else:
        raise Refused(f"row reduction `{step.name}` is not generated")
    if step.name == "mean":
        elements = step.value.width * (scope.frame.task.heads if step.over_heads else 1)
        total = combine(f"{{}} * (1 / {elements})", total)
    total = rounded_to(total, step.out.dtype)
    if total.text.isidentifier():
        scope.bind(step.out, WHOLE, total)
    else:
        scope.define(step.out, WHOLE, total)


REDUCE = Emitter(no_alignment, emit_reduce)
