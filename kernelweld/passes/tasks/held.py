"""What the builder knows of each node while it lays out a task: its axes, and how memory behind it is
strided over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from torch import fx

from kernelweld.passes.tasks.axes import Axis, AxisSpace, Dims, product
from kernelweld.passes.tasks.views import base_of, expression, sizes_of


@dataclass(frozen=True)
class Held:
    """A value of the task: its node, and its dimensions as axes."""

    node: fx.Node
    dims: Dims


@dataclass(frozen=True)
class Access:
    """A tensor in memory, strided over the dimensions of the step that reads or writes it."""

    node: fx.Node
    dims: Dims
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr = sympy.S.Zero

    def stride_of(self, space: AxisSpace) -> dict[Axis, sympy.Expr]:
        """The stride of each axis; axes that are not there broadcast."""
        strides: dict[Axis, sympy.Expr] = {}
        for dim, stride in zip(self.dims, self.strides, strict=True):
            axes = space.resolve(dim)
            for i, axis in enumerate(axes):
                strides[axis] = stride * product([a.size for a in axes[i + 1 :]])
        return strides


def read_access(node: fx.Node, dims: Dims) -> Access:
    """How ``node``, broadcast to a step of dimensions ``dims``, is read: from its base, at its offset
    and strides.
    """
    base = base_of(node)
    offset = expression(node.meta["val"].storage_offset()) - expression(base.meta["val"].storage_offset())
    sizes, strides = sizes_of(node), [expression(s) for s in node.meta["val"].stride()]
    aligned = dims[len(dims) - len(sizes) :]
    kept = [(d if size != 1 else (), stride) for d, size, stride in zip(aligned, sizes, strides, strict=True)]
    return Access(base, tuple(d for d, _ in kept), tuple(s for _, s in kept), offset)


def physical_order(node: fx.Node) -> tuple[int, ...]:
    """The dimensions of a value from the largest stride to the smallest: the order in which its buffer
    is laid out.
    """
    strides = [expression(s) for s in node.meta["val"].stride()]
    sizes = sizes_of(node)
    # A dimension of size 1 has an arbitrary stride; it keeps its place among its neighbours.
    keys = [(i, None if sizes[i] == 1 else strides[i]) for i in range(len(strides))]
    moving = [(i, s) for i, s in keys if s is not None]
    ranked = iter(sorted((i for i, _ in moving), key=lambda i: (-_hint(strides[i]), i)))
    return tuple(i if s is None else next(ranked) for i, s in keys)


def _hint(stride: sympy.Expr) -> int:
    """A number to order strides by: every symbol counts as a large prime-like size, so products keep
    their order.
    """
    if stride.is_Integer:
        return int(stride)
    return int(stride.subs({symbol: 4099 for symbol in stride.free_symbols}))


def write_access(node: fx.Node, dims: Dims) -> Access:
    """How a buffer dense in the physical order of ``node`` is written."""
    sizes = sizes_of(node)
    strides = [sympy.Integer(0)] * len(sizes)
    step: sympy.Expr = sympy.Integer(1)
    for i in reversed(physical_order(node)):
        strides[i] = step
        step = step * sizes[i]
    return Access(node, dims, tuple(strides))
