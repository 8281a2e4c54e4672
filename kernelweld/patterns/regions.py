"""Which elements of a tensor's last dimension a chain of slices and upcasts reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import SLICE, argument, is_call, shape_of
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
        inner, by = (0, 1) if is_upcast(node) else _last_slice(node) or (0, 0)
        if by == 0:
            return Region(node, start, width, step, tuple(path))
        start, step = inner + start * by, step * by
        node = node.args[0]  # type: ignore[assignment]
        path.append(node)


def _last_slice(node: fx.Node) -> tuple[int, int] | None:
    """Start and step of a slice of the last dimension with a constant start."""
    if not is_call(node, SLICE):
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rank, size = len(shape_of(source)), shape_of(source)[-1]
    dim, start, step = argument(node, 1, "dim", 0), argument(node, 2, "start"), argument(node, 4, "step", 1)
    start = 0 if start is None else start
    if not isinstance(dim, int) or dim % rank != rank - 1 or not isinstance(size, int):
        return None
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return (start + size if start < 0 else start), step
