"""``e8m0``: the byte that stands for a power of two in the scales of MX formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.operands import check_dtype
from kernelweld.ir.word import Word


@dataclass(frozen=True)
class E8M0(Word):
    """The biased exponent of each scale, as one byte.

    Formula, on the bits of float32: ``code = bits >> 23``, so 2**-127 is 0, 1 is 127 and 2**127 is 254; what
    is not a number, or infinite, is 255.

    Shapes: ``scale [...]`` in float32, a power of two of 2**-127 or more, out ``[...]`` in uint8.
    Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.4.1.
    """

    kind = "e8m0"
    operands = ("scale",)

    def check(self, *tensors: torch.Tensor | None) -> None:
        (scale,) = tensors
        assert scale is not None
        check_dtype(self.kind, "scale", scale, (torch.float32,))

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        (scale,) = tensors
        assert scale is not None
        return (scale.view(torch.int32) >> 23).to(torch.uint8)
