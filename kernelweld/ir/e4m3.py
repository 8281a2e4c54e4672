"""``e4m3``: the byte that stands for a scale of NVFP4."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.operands import check_dtype
from kernelweld.ir.word import Word


@dataclass(frozen=True)
class E4M3(Word):
    """Each scale as a number of e4m3, which it is already: no rounding.

    Shapes: ``scale [...]`` in float32, a number of e4m3 or NaN, out ``[...]`` in float8_e4m3fn.
    Source: the scales of blocks in NVFP4, as cuBLAS and CUTLASS read them.
    """

    kind = "e4m3"
    operands = ("scale",)

    def check(self, *tensors: torch.Tensor | None) -> None:
        (scale,) = tensors
        assert scale is not None
        check_dtype(self.kind, "scale", scale, (torch.float32,))

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        (scale,) = tensors
        assert scale is not None
        return scale.to(torch.float8_e4m3fn)
