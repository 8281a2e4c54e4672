"""Which elements of a tensor's last dimension a chain of slices and upcasts reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import RESHAPE, SELECT, SLICE, argument, is_call, shape_of
from kernelweld.patterns.peel import is_upcast


@dataclass(frozen=True)
class Region:
    """``base[..., start : start + length * step : step]``.

    ``path`` leads from the node that reads it down to the base, both included.
    """

    base: fx.Node
    start: int
    length: int
    step: int
    path: tuple[fx.Node, ...]

    @property
    def stop(self) -> int:
        """The element after the last one, for step 1."""
        return self.start + self.length

    @property
    def whole(self) -> bool:
        """Whether it is all of the base."""
        return (self.start, self.length, self.step) == (0, shape_of(self.base)[-1], 1)

    def __str__(self) -> str:
        step = f":{self.step}" if self.step != 1 else ""
        return f"%{self.base}[{self.start}:{self.start + self.length * self.step}{step}]"

    def same_as(self, other: Region) -> bool:
        """Whether both read the same elements."""
        return self.base is other.base and self.span == other.span

    @property
    def span(self) -> tuple[int, int, int]:
        """Start, length and step."""
        return self.start, self.length, self.step

    def share(self, cover: Cover) -> None:
        """Covers the slices and upcasts as views of an operand."""
        cover.share(*self.path[:-1])


def region(node: fx.Node) -> Region | None:
    """The region of the last dimension that ``node`` reads; None if it has none or its width is a symbol."""
    width = shape_of(node)[-1] if shape_of(node) else None
    if not isinstance(width, int):
        return None
    start, step, path = 0, 1, [node]
    while True:
        below = _below(node)
        if below is None:
            return Region(node, start, width, step, tuple(path))
        node = below.path[-1]
        start, step = below.start + start * below.step, step * below.step
        path += below.path


@dataclass(frozen=True)
class _View:
    """Element ``i`` of the last dimension is element ``start + i * step`` of the last node of ``path``."""

    start: int
    step: int
    path: tuple[fx.Node, ...]


def _below(node: fx.Node) -> _View | None:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if is_upcast(node):
        return _View(0, 1, (source,))
    return _last_slice(node, source) or _select(node, source)


def _select(node: fx.Node, source: fx.Node) -> _View | None:
    """Element 0 or 1 of all pairs, the last dimension being split into ``[h, 2]`` or ``[2, h]``."""
    base = source.args[0] if is_call(node, SELECT) and is_call(source, *RESHAPE) else None
    if not isinstance(base, fx.Node):
        return None
    whole, split, (dim, index) = shape_of(base), shape_of(source), node.args[1:]
    if len(split) != len(whole) + 1 or not same_shape(split[:-2], whole[:-1]) or not isinstance(index, int):
        return None
    half = split[-2]
    if dim == len(split) - 1 and split[-1] == 2:
        return _View(index % 2, 2, (source, base))
    if dim == len(split) - 2 and half == 2 and isinstance(split[-1], int):
        return _View(index % 2 * split[-1], 1, (source, base))
    return None


def _last_slice(node: fx.Node, source: fx.Node) -> _View | None:
    """A slice of the last dimension with a constant start."""
    if not is_call(node, SLICE):
        return None
    rank, size = len(shape_of(source)), shape_of(source)[-1]
    dim, start, step = argument(node, 1, "dim", 0), argument(node, 2, "start"), argument(node, 4, "step", 1)
    start = 0 if start is None else start
    if not isinstance(dim, int) or dim % rank != rank - 1 or not isinstance(size, int):
        return None
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return _View(start + size if start < 0 else start, step, (source,))
