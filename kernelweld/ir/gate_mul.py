"""``gate_mul``: an activation of one tensor times another (SwiGLU, sigmoid output gates)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.activations import ACTIVATIONS
from kernelweld.ir.word import Word, rounded


@dataclass(frozen=True)
class GateMul(Word):
    """``act(gate) * up``.

    Formula, in float32: ``a = act(float(gate))`` rounded to ``act_dtype``; ``y = a * float(up)`` rounded
    to ``dtype``. ``act`` is ``silu``, ``sigmoid`` or ``gelu_tanh``. A packed input (halves of one tensor,
    or gate and value interleaved per head) is two strided views of one tensor; the word is the same.

    Shapes: ``gate`` and ``up`` broadcast against each other (a ``[T, 1]`` gate scales whole rows).
    """

    kind = "gate_mul"
    operands = ("gate", "up")

    act: str = "silu"
    act_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        gate, up = tensors
        assert gate is not None and up is not None
        return (rounded(ACTIVATIONS[self.act](gate.float()), self.act_dtype) * up.float()).to(self.dtype)
