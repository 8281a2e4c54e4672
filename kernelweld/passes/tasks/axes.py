"""Axes: the index space that the values of one row task share, refined as views split dimensions.

A dimension of a value is a product of axes, outermost first; a broadcast dimension of size 1 is the empty
product. Two dimensions that must be equal are unified: axes of equal size become one, and an axis that is
a multiple of another is split. So ``[B, S, H*D]`` and its view ``[B, S, H, D]`` end up with the same
axes, and a permute only reorders them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul

import sympy


@dataclass(eq=False)
class Axis:
    """One independent index; compared by identity."""

    size: sympy.Expr
    label: str = ""

    def __repr__(self) -> str:
        return f"{self.label or 'axis'}:{self.size}"


Dim = tuple[Axis, ...]
Dims = tuple[Dim, ...]


class DomainMismatch(Exception):
    """Two values do not share an index space; ``reason`` says which dimensions and why, in words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def product(sizes: Sequence[sympy.Expr]) -> sympy.Expr:
    """The product of sizes, 1 for none."""
    return reduce(mul, sizes, sympy.Integer(1))


def quotient(whole: sympy.Expr, part: sympy.Expr) -> sympy.Expr | None:
    """``whole / part`` if it is provably a whole number, else None."""
    if whole.is_Integer and part.is_Integer:
        return whole // part if int(part) and int(whole) % int(part) == 0 else None
    ratio = sympy.cancel(whole / part)
    return ratio if sympy.denom(ratio) == 1 and ratio.is_integer else None


@dataclass
class AxisSpace:
    """Axes with what has been learned about them: which are the same and which are products of finer ones."""

    finer: dict[Axis, Dim] = field(default_factory=dict)

    def fresh(self, size: sympy.Expr, label: str = "") -> Dim:
        """A new axis as a dimension; size 1 needs none."""
        return () if size == 1 else (Axis(size, label),)

    def resolve(self, dim: Dim) -> Dim:
        """The dimension in its finest known axes."""
        if self.finer.keys().isdisjoint(dim):
            return dim
        return tuple(
            fine
            for axis in dim
            for fine in (self.resolve(self.finer[axis]) if axis in self.finer else (axis,))
        )

    def size(self, dim: Dim) -> sympy.Expr:
        """The number of elements along a dimension."""
        return product([axis.size for axis in dim])

    def unify(self, left: Dim, right: Dim) -> None:
        """Makes two dimensions the same, merging and splitting axes from the innermost outwards."""
        a, b = list(self.resolve(left)), list(self.resolve(right))
        while a and b:
            x, y = a.pop(), b.pop()
            if x is y:
                continue
            if x.size == y.size:
                self.finer[y] = (x,)
            elif not self._split(x, y, a) and not self._split(y, x, b):
                raise DomainMismatch(f"axes of {x.size} and {y.size} do not nest")
            a, b = list(self.resolve(tuple(a))), list(self.resolve(tuple(b)))
        if a or b:
            raise DomainMismatch(f"dimensions of {self.size(left)} and {self.size(right)} elements differ")

    def _split(self, big: Axis, small: Axis, outer: list[Axis]) -> bool:
        """Splits ``big`` into (rest, small) if it is a multiple; the rest goes back to ``outer``."""
        rest = quotient(big.size, small.size)
        if rest is None:
            return False
        rest_axis = Axis(rest, big.label)
        self.finer[big] = (rest_axis, small)
        outer.append(rest_axis)
        return True

    def regroup(self, dims: Dims, sizes: Sequence[sympy.Expr]) -> Dims:
        """The dimensions of a reshape: the same axes in the same order, cut at the new sizes."""
        fresh = [self.fresh(size) for size in sizes]
        self.unify(tuple(a for d in dims for a in d), tuple(a for d in fresh for a in d))
        return tuple(self.resolve(d) for d in fresh)
