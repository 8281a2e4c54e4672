"""The residual sum in FX: an addition of two activations whose result a norm reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir import LayerNorm, ResidualAdd, RMSNorm, word_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import ADD, FLOATS, RESHAPE, dtype_of, is_call, operands, shape_of
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import ReadingPattern, something_else


@dataclass(frozen=True)
class ResidualAddPattern(ReadingPattern):
    """``x + residual`` of equal shapes, read by a norm word. Runs after the norms are raised."""

    name: ClassVar[str] = "residual_add"
    kind: ClassVar[str] = "residual_add"
    spelling: ClassVar[str] = "`x + residual` of equal shapes, read by a norm"
    anchors: ClassVar[tuple[OpOverload, ...]] = (ADD[0],)

    def read(self, anchor: fx.Node) -> Match:
        pair, dtype = operands(anchor), dtype_of(anchor)
        if pair is None or dtype not in FLOATS or not _feeds_norm(anchor):
            raise something_else(anchor)
        x, residual = pair
        if not _is_activation(x, anchor) or not _is_activation(residual, anchor):
            raise something_else(anchor)
        assert isinstance(x, fx.Node) and isinstance(residual, fx.Node) and dtype is not None
        cover = Cover()
        cover.take(anchor)
        return cover.match(ResidualAdd(dtype), (x, residual), anchor)


def _is_activation(value: object, total: fx.Node) -> bool:
    if not isinstance(value, fx.Node) or dtype_of(value) not in FLOATS or len(shape_of(value)) < 2:
        return False
    return same_shape(shape_of(value), shape_of(total))


def _feeds_norm(node: fx.Node) -> bool:
    for user in node.users:
        if isinstance(word_of(user), (RMSNorm, LayerNorm)) and user.args[0] is node:
            return True
        if is_call(user, *RESHAPE) and any(isinstance(word_of(u), (RMSNorm, LayerNorm)) for u in user.users):
            return True
    return False
