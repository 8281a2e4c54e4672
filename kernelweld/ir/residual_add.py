"""``residual_add``: the sum that a transformer layer both normalises and carries on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.word import Word


@dataclass(frozen=True)
class ResidualAdd(Word):
    """``x + residual`` in float32, rounded once to ``dtype``; the rounded sum is kept and normalised.

    Shapes: both ``[..., N]``, equal. Rounding: once, to ``dtype``.
    """

    kind = "residual_add"
    operands = ("x", "residual")

    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, residual = tensors
        assert x is not None and residual is not None
        return (x.float() + residual.float()).to(self.dtype)
