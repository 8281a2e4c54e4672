"""Gated products and the residual sum."""

from __future__ import annotations

from typing import cast

from kernelweld.codegen.emitters.activations import activation
from kernelweld.codegen.emitters.contract import Emitter, same_positions
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.task import Apply, Value
from kernelweld.codegen.tile import add, multiply, rounded_to
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
    gate, up = _two(step)
    for piece in scope.pieces(out):
        active = activation(word.act, scope.tile(gate, piece))
        active = scope.stage(out, piece, "active", active, word.act_dtype)
        scope.define(out, piece, rounded_to(multiply(active, scope.tile(up, piece)), word.dtype))


def emit_residual_add(scope: Scope, step: Apply) -> None:
    """y = x + residual, rounded once."""
    word, out = cast(ResidualAdd, step.word), step.outs[0]
    for piece in scope.pieces(out):
        x, residual = (scope.tile(value, piece) for value in _two(step))
        total = add(x, residual, clean=x.clean and residual.clean)
        scope.define(out, piece, rounded_to(total, word.dtype))


GATE_MUL = Emitter(same_positions, emit_gate_mul)
RESIDUAL_ADD = Emitter(same_positions, emit_residual_add)
