"""RMS, layer and L2 norms."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kernelweld.codegen.emitters.activations import activation
from kernelweld.codegen.emitters.contract import Emitter, same_positions
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.reductions import row_sum
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.spelling import literal
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile, add, combine, multiply, rounded_to
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.rms_norm import RMSNorm

_AT_LEAST = "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)"


def _operand(step: Apply, index: int) -> Value:
    value = step.ins[index]
    if value is None:
        raise Refused(f"{step.word.kind} needs its operand `{step.word.operands[index]}`")
    return value


def _elements(scope: Scope, step: Apply) -> int:
    """How many elements the reductions of ``step`` cover."""
    return step.outs[0].width * (scope.frame.task.heads if step.over_heads else 1)


def _squares(tiles: list[Tile]) -> list[Tile]:
    return [combine("{0} * {0}", t, clean=t.clean) for t in tiles]


def _mean(scope: Scope, step: Apply, total: Tile) -> Tile:
    """The mean from the sum: a product with 1 / N, as torch computes it on a GPU."""
    return combine(f"{{}} * (1 / {_elements(scope, step)})", total)


def _rstd(scope: Scope, step: Apply, rows: list[Tile], eps: float) -> Tile:
    """1 / sqrt(mean(rows²) + eps), named."""
    out = step.outs[0].name
    total = row_sum(scope, f"{out}_square_sum", _squares(rows), step.over_heads)
    mean = _mean(scope, step, total)
    return scope.let(f"{out}_rstd", replace(mean, text=f"tl.rsqrt({mean.text} + {literal(eps)})"))


def emit_rms_norm(scope: Scope, step: Apply) -> None:
    """h = x [* act(gate)]; n = h * rsqrt(mean(h²) + eps); s = n [* w]; y = s [* act(gate)]."""
    word, out = cast(RMSNorm, step.word), step.outs[0]
    _, weight, gate = step.ins
    pieces = scope.pieces(out)
    rows = [_gated_input(scope, step, word, piece) for piece in pieces]
    rstd = _rstd(scope, step, rows, word.eps)
    for piece, row in zip(pieces, rows, strict=True):
        y = scope.stage(out, piece, "unit", multiply(row, rstd), word.normed_dtype)
        if weight is not None:
            w = scope.tile(weight, piece)
            y = multiply(y, combine("{} + 1.0", w) if word.scale == "1+w" else w)
        y = scope.stage(out, piece, "scaled", y, word.scaled_dtype)
        if gate is not None and not word.gate_first:
            y = multiply(y, activation(word.gate, scope.tile(gate, piece)))
        scope.result(out, piece, y, word.dtype)


def _gated_input(scope: Scope, step: Apply, word: RMSNorm, piece: Piece) -> Tile:
    x, gate = scope.tile(_operand(step, 0), piece), step.ins[2]
    if gate is None or not word.gate_first:
        return x
    g = scope.tile(gate, piece)
    gated = multiply(x, activation(word.gate, g), clean=x.clean and g.clean)
    return scope.let(f"{step.outs[0].name}_gated", gated)


def emit_layer_norm(scope: Scope, step: Apply) -> None:
    """n = (x - mean) * rsqrt(var + eps); s = n [* weight]; y = s [+ bias].

    The variance is taken in a second pass over the registers.
    """
    word, out = cast(LayerNorm, step.word), step.outs[0]
    _, weight, bias = step.ins
    pieces = scope.pieces(out)
    rows = [scope.tile(_operand(step, 0), piece) for piece in pieces]
    total = row_sum(scope, f"{out.name}_sum", rows, step.over_heads)
    mean = scope.let(f"{out.name}_mean", _mean(scope, step, total))
    centred = [scope.let(f"{out.name}_centred", add(x, mean, "-")) for x in rows]
    rstd = _rstd(scope, step, centred, word.eps)
    for piece, x in zip(pieces, centred, strict=True):
        y = scope.stage(out, piece, "unit", multiply(x, rstd), word.normed_dtype)
        y = multiply(y, scope.tile(weight, piece)) if weight is not None else y
        y = scope.stage(out, piece, "scaled", y, word.scaled_dtype)
        y = add(y, scope.tile(bias, piece)) if bias is not None else y
        scope.result(out, piece, y, word.dtype)


def emit_l2_norm(scope: Scope, step: Apply) -> None:
    """x divided by its Euclidean norm; eps inside the root, added to the norm, or as its lower bound."""
    word, out = cast(L2Norm, step.word), step.outs[0]
    pieces = scope.pieces(out)
    rows = [scope.tile(_operand(step, 0), piece) for piece in pieces]
    total = row_sum(scope, f"{out.name}_square_sum", _squares(rows), step.over_heads)
    eps = literal(word.eps)
    if word.eps_place == "inside":
        factor, divided = combine(f"tl.rsqrt({{}} + {eps})", total), "{} * {}"
    else:
        bound = f"{{}} + {eps}" if word.eps_place == "outside" else _AT_LEAST.format("{}", eps)
        norm = rounded_to(combine("tl.sqrt_rn({})", total), word.norm_dtype)
        factor, divided = rounded_to(combine(bound, norm), word.norm_dtype), "tl.div_rn({}, {})"
    factor = scope.let(f"{out.name}_norm", factor)
    for piece, x in zip(pieces, rows, strict=True):
        scope.define(out, piece, rounded_to(combine(divided, x, factor), word.dtype))


RMS_NORM = Emitter(same_positions, emit_rms_norm)
LAYER_NORM = Emitter(same_positions, emit_layer_norm)
L2_NORM = Emitter(same_positions, emit_l2_norm)
