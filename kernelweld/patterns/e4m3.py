"""Bytes of NVFP4's scales in FX: a scale of e4m3 as what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.e4m3 import E4M3
from kernelweld.ir.quant_scale import QuantScale
from kernelweld.ir.vocabulary import word_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import CAST, dtype_of
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import ReadingPattern, something_else


@dataclass(frozen=True)
class E4M3Pattern(ReadingPattern):
    """``scale.to(float8_e4m3fn)`` of a scale that is a number of e4m3."""

    name: ClassVar[str] = "e4m3"
    kind: ClassVar[str] = "e4m3"
    spelling: ClassVar[str] = "`scale.to(float8_e4m3fn)` of a scale that is a number of e4m3"
    anchors: ClassVar[tuple[OpOverload, ...]] = (CAST,)

    def read(self, anchor: fx.Node) -> Match:
        scale = anchor.args[0]
        word = word_of(scale) if isinstance(scale, fx.Node) else None
        if dtype_of(anchor) != torch.float8_e4m3fn or not isinstance(word, QuantScale):
            raise something_else(anchor)
        if word.format != "e4m3" or not isinstance(scale, fx.Node):
            raise something_else(anchor)
        cover = Cover()
        cover.take(anchor)
        return cover.match(E4M3(), (scale,), anchor)
