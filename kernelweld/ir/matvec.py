"""``matvec``: one row times a matrix, or one row a batch times a matrix a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import FLOATS, check_dtype, check_shape
from kernelweld.ir.word import Word


@dataclass(frozen=True)
class MatVec(Word):
    """The product of one row and a matrix: a linear layer at one token, an absorbed projection of each head.

    Formula, in float32: ``y[n] = sum(weight[n, k] * x[k])``, rounded to ``dtype`` once.

    Shapes: ``weight [..., N, K]``, or ``[..., K, N]`` with ``transposed``; ``x [..., 1, K]``; out
    ``[..., 1, N]``. Any floats.
    """

    kind = "matvec"
    operands = ("weight", "x")

    transposed: bool = False
    dtype: torch.dtype = torch.float32

    def check(self, *tensors: torch.Tensor | None) -> None:
        weight, x = tensors
        assert weight is not None and x is not None
        check_dtype(self.kind, "weight", weight, FLOATS)
        check_dtype(self.kind, "x", x, FLOATS)
        if weight.dim() < 2:
            raise BadOperand(self.kind, "weight", f"{weight.dim()} dimensions", "two or more")
        depth = weight.shape[-2 if self.transposed else -1]
        check_shape(self.kind, "x", x, (*weight.shape[:-2], 1, depth))

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        weight, x = tensors
        assert weight is not None and x is not None
        rows = weight.mT if self.transposed else weight
        return (rows.float() * x.float()).sum(-1).unsqueeze(-2).to(self.dtype)
