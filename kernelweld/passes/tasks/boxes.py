"""Sets of bytes that a strided view covers, and a proof that two of them have none in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from kernelweld.passes.tasks.axes import quotient


@dataclass(frozen=True)
class Box:
    """The bytes ``start + sum(i[k] * strides[k]) + [0, width)`` for all ``i[k]`` below ``sizes[k]``."""

    start: sympy.Expr
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    width: int

    def extent(self, period: sympy.Expr | None) -> sympy.Expr:
        """From its first byte to behind its last one, steps by multiples of ``period`` left out."""
        steps = zip(self.sizes, self.strides, strict=True)
        kept = [(n - 1) * step for n, step in steps if period is None or quotient(step, period) is None]
        return sympy.expand(sum(kept, sympy.Integer(self.width)))


def disjoint(a: Box, b: Box) -> bool:
    """Whether no byte is in both, for every value of their symbols.

    Tried are intervals: those of all bytes, and those within a period, where all steps that are not multiples
    of it stay within one. Keys and values, one behind the other or block by block, and slices of a row are
    told apart by this.
    """
    return _apart(a.start, a.extent(None), b.start, b.extent(None)) or any(
        _apart_within(a, b, period) for period in _periods(a, b)
    )


def _periods(a: Box, b: Box) -> Iterator[sympy.Expr]:
    yield from dict.fromkeys(step for step in (*a.strides, *b.strides) if step.is_positive)


def _apart_within(a: Box, b: Box, period: sympy.Expr) -> bool:
    """Whether the intervals of ``a`` and ``b`` in a period are apart, and end within it."""
    places = [(_remainder(box.start, period), box.extent(period)) for box in (a, b)]
    (first, long), (second, wide) = places
    if first is None or second is None:
        return False
    ends = all(_at_most(start + extent, period) for start, extent in ((first, long), (second, wide)))
    return ends and _apart(first, long, second, wide)


def _remainder(start: sympy.Expr, period: sympy.Expr) -> sympy.Expr | None:
    """``start`` modulo ``period`` if it is known."""
    if start.is_Integer and period.is_Integer:
        return start % period
    return start if start.is_nonnegative and _at_most(start + 1, period) else None


def _apart(a: sympy.Expr, long: sympy.Expr, b: sympy.Expr, wide: sympy.Expr) -> bool:
    return _at_most(a + long, b) or _at_most(b + wide, a)


def _at_most(a: sympy.Expr, b: sympy.Expr) -> bool:
    return bool(sympy.expand(b - a).is_nonnegative)
