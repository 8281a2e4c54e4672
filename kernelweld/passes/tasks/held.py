"""What the builder knows of each node while it lays out a task: its axes, and how memory behind it is
strided over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from torch import fx

from kernelweld.passes.tasks.axes import Axis, AxisSpace, Dims, DomainMismatch, product
from kernelweld.passes.tasks.lookup import Lookup, lookup_of
from kernelweld.passes.tasks.views import base_of, expression, original_of, sizes_of, strides_of
from kernelweld.patterns.aliasing import fills_buffer


@dataclass(frozen=True)
class Held:
    """A value of the task: its node, and its dimensions as axes."""

    node: fx.Node
    dims: Dims


@dataclass(frozen=True)
class Place:
    """A row that is only known at run time: its number as it is read, how far rows are apart, and how many
    there are.
    """

    number: Access
    stride: sympy.Expr
    size: sympy.Expr


@dataclass(frozen=True)
class Access:
    """A tensor in memory, strided over the dimensions of the step that reads or writes it, from ``place`` on
    if there is one.
    """

    node: fx.Node
    dims: Dims
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr = sympy.S.Zero
    place: Place | None = None

    def stride_of(self, space: AxisSpace) -> dict[Axis, sympy.Expr]:
        """The stride of each axis; axes that are not there broadcast."""
        strides: dict[Axis, sympy.Expr] = {}
        for dim, stride in zip(self.dims, self.strides, strict=True):
            axes = space.resolve(dim)
            for i, axis in enumerate(axes):
                strides[axis] = stride * product([a.size for a in axes[i + 1 :]])
        return strides


def read_access(space: AxisSpace, node: fx.Node, dims: Dims) -> Access:
    """How ``node``, broadcast to a step of dimensions ``dims``, is read: from its base, at its offset
    and strides; from what it is a copy of; or where it is looked up.
    """
    sizes = sizes_of(node)
    aligned = dims[len(dims) - len(sizes) :]
    if (lookup := lookup_of(node)) is not None:
        return _looked_up(lookup, node, aligned)
    kept = tuple(d if size != 1 else () for d, size in zip(aligned, sizes, strict=True))
    source, before = original_of(node), dict(space.finer)
    if source is not None:
        try:
            return _strided(source, space.regroup(kept, sizes_of(source)))
        except DomainMismatch:  # its rows are not those of the step: the copy is read
            space.finer = before
    return _strided(node, kept)


def _strided(node: fx.Node, dims: Dims) -> Access:
    base, offset = _memory(node)
    return Access(base, dims, tuple(expression(s) for s in node.meta["val"].stride()), offset)


def _looked_up(lookup: Lookup, node: fx.Node, dims: Dims) -> Access:
    """``node``, of dimensions ``dims``, as half a row of a cache."""
    *outer, feature = dims
    walked = iter([dim for dim, size in zip(outer, sizes_of(node), strict=False) if size != 1])
    numbers = tuple(() if size == 1 else next(walked) for size in sizes_of(lookup.positions))
    base, offset = _memory(lookup.positions)
    strides = tuple(expression(s) for s in lookup.positions.meta["val"].stride())
    row, element = (expression(s) for s in lookup.cache.meta["val"].stride())
    place = Place(Access(base, numbers, strides, offset), row, sizes_of(lookup.cache)[0])
    base, offset = _memory(lookup.cache)
    start = sizes_of(node)[-1] * element if lookup.second else sympy.S.Zero
    return Access(base, (feature,), (element,), offset + start, place)


def _memory(node: fx.Node) -> tuple[fx.Node, sympy.Expr]:
    """The base of ``node``, and how many elements behind it ``node`` begins."""
    base = base_of(node)
    starts = [expression(n.meta["val"].storage_offset()) for n in (node, base)]
    return base, starts[0] - starts[1]


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
    """How the buffer of ``node`` is written; byte by byte if there is a dimension more."""
    strides = memory_strides(node)
    if len(dims) > len(strides):
        size = node.meta["val"].dtype.itemsize
        strides = (*(stride * size for stride in strides), sympy.S.One)
    return Access(node, dims, strides)


def memory_strides(node: fx.Node) -> tuple[sympy.Expr, ...]:
    """The strides of the buffer of an output: those of ``node`` where the graph copies it into memory that it
    makes, with gaps or without, or else dense in its physical order.
    """
    return strides_of(node) if fills_buffer(node) else _dense(node)


def has_gaps(node: fx.Node) -> bool:
    """Whether the buffer of ``node`` may have elements that are none of ``node``."""
    return memory_strides(node) != _dense(node)


def memory_size(node: fx.Node) -> sympy.Expr:
    """The elements of that buffer, those in gaps too: also in the one behind the last element."""
    extents = [size * stride for size, stride in zip(sizes_of(node), memory_strides(node), strict=True)]
    return max(extents, key=_hint, default=sympy.Integer(1))


def _dense(node: fx.Node) -> tuple[sympy.Expr, ...]:
    sizes = sizes_of(node)
    strides = [sympy.Integer(0)] * len(sizes)
    step: sympy.Expr = sympy.Integer(1)
    for i in reversed(physical_order(node)):
        strides[i] = step
        step = step * sizes[i]
    return tuple(strides)
