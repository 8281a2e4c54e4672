"""RMS, layer and L2 norms."""

from __future__ import annotations

from typing import cast

from kernelweld.codegen.emitters.activations import activation
from kernelweld.codegen.emitters.contract import Emitter, same_positions
from kernelweld.codegen.layout import Partition
from kernelweld.codegen.reductions import row_sum
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.spelling import grouped, literal, rounded
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import Tile
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.rms_norm import RMSNorm


def _operand(step: Apply, index: int) -> Value:
    value = step.ins[index]
    if value is None:
        raise Refused(f"{step.word.kind} needs its operand `{step.word.operands[index]}`")
    return value


def _elements(scope: Scope, step: Apply) -> int:
    """How many elements the reductions of ``step`` cover."""
    return step.outs[0].width * (scope.frame.task.heads if step.over_heads else 1)


def _squares(tiles: list[Tile]) -> list[Tile]:
    return [Tile(f"{t.text} * {t.text}", t.rows, t.count, t.clean) for t in tiles]


def emit_rms_norm(scope: Scope, step: Apply) -> None:
    """h = x [* act(gate)]; n = h * rsqrt(mean(h²) + eps); s = n [* w]; y = s [* act(gate)]."""
    word, out = cast(RMSNorm, step.word), step.outs[0]
    pieces = scope.pieces(out)
    rows = _gated_input(scope, step, word, pieces)
    squares = row_sum(scope, f"{out.name}_square_sum", _squares(rows), step.over_heads)
    mean = f"{squares.text} * (1 / {_elements(scope, step)})"
    rstd = scope.let(f"{out.name}_rstd", Tile(f"tl.rsqrt({mean} + {literal(word.eps)})", squares.rows, 1))
    for piece, row in zip(pieces, rows, strict=True):
        uses = [row, rstd]
        text = rounded(f"{row.text} * {rstd.text}", word.normed_dtype)
        if step.ins[1] is not None:
            weight = scope.tile(step.ins[1], piece)
            uses.append(weight)
            factor = f"({weight.text} + 1.0)" if word.scale == "1+w" else weight.text
            text = f"{text} * {factor}"
        text = rounded(text, word.scaled_dtype)
        if step.ins[2] is not None and not word.gate_first:
            gate = scope.tile(step.ins[2], piece)
            uses.append(gate)
            text = f"{text} * {grouped(activation(scope, word.gate, gate.text))}"
        scope.define(out, piece, rounded(text, word.dtype), uses)


def _gated_input(scope: Scope, step: Apply, word: RMSNorm, pieces: Partition) -> list[Tile]:
    rows = [scope.tile(_operand(step, 0), piece) for piece in pieces]
    gate = step.ins[2]
    if gate is None or not word.gate_first:
        return rows
    gates = [scope.tile(gate, piece) for piece in pieces]
    return [
        scope.let(
            f"{step.outs[0].name}_gated",
            Tile(
                f"{x.text} * {grouped(activation(scope, word.gate, g.text))}",
                x.rows or g.rows,
                max(x.count, g.count),
                x.clean and g.clean,
            ),
        )
        for x, g in zip(rows, gates, strict=True)
    ]


def emit_layer_norm(scope: Scope, step: Apply) -> None:
    """n = (x - mean) * rsqrt(var + eps); s = n [* weight]; y = s [+ bias]; the variance in a second
    pass over registers.
    """
    word, out = cast(LayerNorm, step.word), step.outs[0]
    scale, over_heads = f"(1 / {_elements(scope, step)})", step.over_heads
    pieces = scope.pieces(out)
    rows = [scope.tile(_operand(step, 0), piece) for piece in pieces]
    total = row_sum(scope, f"{out.name}_sum", rows, over_heads)
    mean = scope.let(f"{out.name}_mean", Tile(f"{total.text} * {scale}", total.rows, 1))
    centred = [
        scope.let(f"{out.name}_centred", Tile(f"{x.text} - {mean.text}", x.rows or mean.rows, x.count))
        for x in rows
    ]
    squares = row_sum(scope, f"{out.name}_square_sum", _squares(centred), over_heads)
    spread = f"tl.rsqrt({squares.text} * {scale} + {literal(word.eps)})"
    rstd = scope.let(f"{out.name}_rstd", Tile(spread, squares.rows, 1))
    for piece, x in zip(pieces, centred, strict=True):
        uses = [x, rstd]
        text = rounded(f"{x.text} * {rstd.text}", word.normed_dtype)
        for operand, sign in zip(step.ins[1:], "*+", strict=True):
            if operand is not None:
                uses.append(scope.tile(operand, piece))
                text = f"{text} {sign} {uses[-1].text}"
            text = rounded(text, word.scaled_dtype if sign == "*" else word.dtype)
        scope.define(out, piece, text, uses)


def emit_l2_norm(scope: Scope, step: Apply) -> None:
    """x divided by its Euclidean norm; eps inside the root, added to the norm, or as its lower bound."""
    word, out = cast(L2Norm, step.word), step.outs[0]
    pieces = scope.pieces(out)
    rows = [scope.tile(_operand(step, 0), piece) for piece in pieces]
    squares = row_sum(scope, f"{out.name}_square_sum", _squares(rows), step.over_heads)
    eps = literal(word.eps)
    if word.eps_place == "inside":
        factor = scope.let(f"{out.name}_rnorm", Tile(f"tl.rsqrt({squares.text} + {eps})", squares.rows, 1))
        texts = [f"{x.text} * {factor.text}" for x in rows]
    else:
        norm = rounded(f"tl.sqrt_rn({squares.text})", word.norm_dtype)
        bounded = f"{norm} + {eps}" if word.eps_place == "outside" else _at_least(norm, eps)
        bounded = rounded(bounded, word.norm_dtype)
        factor = scope.let(f"{out.name}_norm", Tile(bounded, squares.rows, 1))
        texts = [f"tl.div_rn({x.text}, {factor.text})" for x in rows]
    for piece, x, text in zip(pieces, rows, texts, strict=True):
        scope.define(out, piece, rounded(text, word.dtype), [x, factor], clean=False)


def _at_least(text: str, bound: str) -> str:
    return f"tl.maximum({grouped(text)}, {bound}, propagate_nan=tl.PropagateNan.ALL)"


RMS_NORM = Emitter(same_positions, emit_rms_norm)
LAYER_NORM = Emitter(same_positions, emit_layer_norm)
L2_NORM = Emitter(same_positions, emit_l2_norm)
