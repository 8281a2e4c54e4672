"""Bytes of MX scales in FX: the exponent bits of a float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.e8m0 import E8M0
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import CAST, aten, dtype_of, is_call
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import ReadingPattern, something_else
from kernelweld.patterns.scalars import scalar

_SHIFTS = (aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar)


@dataclass(frozen=True)
class E8M0Pattern(ReadingPattern):
    """``(scale.view(int32) >> 23).to(uint8)``."""

    name: ClassVar[str] = "e8m0"
    kind: ClassVar[str] = "e8m0"
    spelling: ClassVar[str] = "`(scale.view(int32) >> 23).to(uint8)`"
    anchors: ClassVar[tuple[OpOverload, ...]] = (CAST,)

    def read(self, anchor: fx.Node) -> Match:
        shifted = anchor.args[0]
        if dtype_of(anchor) != torch.uint8 or not is_call(shifted, *_SHIFTS) or scalar(shifted.args[1]) != 23:
            raise something_else(anchor)
        bits = shifted.args[0]
        if not is_call(bits, aten.view.dtype) or dtype_of(bits) != torch.int32:
            raise something_else(anchor)
        scale = bits.args[0]
        if not isinstance(scale, fx.Node) or dtype_of(scale) != torch.float32:
            raise something_else(anchor)
        cover = Cover()
        cover.take(shifted, anchor)
        cover.share(bits)
        return cover.match(E8M0(), (scale,), anchor)
