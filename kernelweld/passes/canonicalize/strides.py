"""Strides of a reshaped tensor, from numbers alone: which reshapes are views, what copies look like."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import value_of

Sizes = Sequence[int]


def contiguous_strides(shape: Sizes) -> tuple[int, ...]:
    """The strides of a fresh tensor of ``shape``."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = step * max(size, 1)
    return tuple(reversed(strides))


def view_strides(shape: Sizes, strides: Sizes, new_shape: Sizes) -> tuple[int, ...] | None:
    """The strides of a view of ``shape``/``strides`` as ``new_shape``, or None if only a copy has that shape.

    Dimensions of size 1 have no stride of their own. Sizes are positive integers.
    """
    runs = _runs(shape, strides)
    result: list[int] = []
    remaining = [s for s in new_shape]
    for size, step in runs:
        taken: list[int] = []
        filled = 1
        while remaining and filled < size:
            filled *= remaining[0]
            taken.append(remaining.pop(0))
        if filled != size:
            return None
        result += [step * s for s in contiguous_strides(taken)]
        while remaining and remaining[0] == 1:
            result.append(step)
            remaining.pop(0)
    if any(s != 1 for s in remaining):
        return None
    return tuple(result + [1] * len(remaining))


def _runs(shape: Sizes, strides: Sizes) -> list[tuple[int, int]]:
    """Maximal runs of dimensions that lie in memory as one: their size and innermost stride.

    Dimensions of size 1 are skipped.
    """
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def same_strides(shape: Sizes, first: Sizes, second: Sizes) -> bool:
    """Whether two stride lists address the same elements of ``shape``."""
    return all(a == b for size, a, b in zip(shape, first, second, strict=True) if size != 1)


def is_contiguous(node: fx.Node) -> bool:
    """Whether a value lies in memory without gaps, in the order of its dimensions, whatever its symbols."""
    val = value_of(node)
    if val is None:
        return False
    step: int = 1
    for size, stride in zip(reversed(val.shape), reversed(val.stride()), strict=True):
        if not same_size(size, 1) and not same_size(stride, step):
            return False
        step = step * size
    return True
