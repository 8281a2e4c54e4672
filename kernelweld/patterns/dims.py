"""Sizes compared for every value of their symbols, without adding a guard."""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt
from torch.fx.experimental.symbolic_shapes import statically_known_true

from kernelweld.patterns.ops import Size


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every value of their symbols."""
    if isinstance(a, SymInt) or isinstance(b, SymInt):
        return statically_known_true(a == b)
    return a == b


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes are equal for every value of their symbols."""
    return len(a) == len(b) and all(same_size(x, y) for x, y in zip(a, b, strict=True))


def is_static(*sizes: object) -> bool:
    """Whether all sizes are plain integers."""
    return all(type(s) is int for s in sizes)
