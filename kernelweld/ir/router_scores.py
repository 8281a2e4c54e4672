"""``router_scores``: how well each expert fits each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import FLOATS, check_dtype, check_shape
from kernelweld.ir.word import Word, rounded

SCORINGS = ("sigmoid", "softmax")


@dataclass(frozen=True)
class RouterScores(Word):
    """Sigmoid or softmax over experts of a router's logits, in float32.

    ``y = scoring(x @ weight.T)``, the product accumulated in float32 and rounded to ``logits_dtype``.

    Shapes: ``x [M, D]``, ``weight [E, D]``; out ``[M, E]`` float32. Any float dtype up to 32 bits. Errors:
    BadOperand for another shape or dtype, or a scoring of another name. Source: DeepSeek-V3, arXiv
    2412.19437, equation 15 (sigmoid); Shazeer et al. 2017, arXiv 1701.06538 (softmax).
    """

    kind = "router_scores"
    operands = ("x", "weight")
    is_row: ClassVar[bool] = False

    scoring: str
    logits_dtype: torch.dtype = torch.float32

    def check(self, *tensors: torch.Tensor | None) -> None:
        x, weight = tensors
        assert x is not None and weight is not None
        for name, operand in (("x", x), ("weight", weight)):
            check_dtype(self.kind, name, operand, FLOATS)
            if operand.dim() != 2:
                raise BadOperand(self.kind, name, f"{operand.dim()} dimensions", "a matrix")
        check_shape(self.kind, "weight", weight, (weight.shape[0], x.shape[1]))
        if self.scoring not in SCORINGS:
            raise BadOperand(self.kind, "scoring", repr(self.scoring), " or ".join(SCORINGS))

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, weight = tensors
        assert x is not None and weight is not None
        return self.scored(F.linear(x.float(), weight.float()))

    def scored(self, product: torch.Tensor) -> torch.Tensor:
        """The scores of a product [M, E] in float32."""
        logits = rounded(product, self.logits_dtype)
        return logits.sigmoid() if self.scoring == "sigmoid" else logits.softmax(-1)
