"""Gated products and the residual sum."""

from __future__ import annotations

from typing import cast

from kernelweld.codegen.emitters.activations import activation
from kernelweld.codegen.emitters.contract import Emitter, same_positions
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.spelling import rounded
from kernelweld.codegen.task import Apply, Value
from kernelweld.ir.gate_mul import GateMul
from kernelweld.ir.residual_add import ResidualAdd


def _two(step: Apply) -> tuple[Value, Value]:
    first, second = step.ins
    if first is None or second is None:
        raise Refused(f"{step.word.kind} needs both operands")
    return first, second


def emit_gate_mul(scope: Scope, step: Apply) -> None:
    """y = act(gate) rounded to act_dtype, times up, rounded to dtype."""
    word, out = cast(GateMul, step.word), step.outs[0]
    gate_value, up_value = _two(step)
    for piece in scope.pieces(out):
        gate, up = scope.tile(gate_value, piece), scope.tile(up_value, piece)
        active = rounded(activation(scope, word.act, gate.text), word.act_dtype)
        scope.define(out, piece, rounded(f"{active} * {up.text}", word.dtype), [gate, up])


def emit_residual_add(scope: Scope, step: Apply) -> None:
    """y = x + residual, rounded once."""
    word, out = cast(ResidualAdd, step.word), step.outs[0]
    x_value, residual_value = _two(step)
    for piece in scope.pieces(out):
        x, residual = scope.tile(x_value, piece), scope.tile(residual_value, piece)
        text = rounded(f"{x.text} + {residual.text}", word.dtype)
        scope.define(out, piece, text, [x, residual], x.clean and residual.clean)


GATE_MUL = Emitter(same_positions, emit_gate_mul)
RESIDUAL_ADD = Emitter(same_positions, emit_residual_add)
