"""Rows joined of bytes of several dtypes on their way to a cache: codes, their scales, values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import SymInt, fx

from kernelweld.ir import CacheWrite
from kernelweld.ir.origin import Origin, record_origin
from kernelweld.passes.dialect.builder import Builder
from kernelweld.patterns.cache_part import part_of
from kernelweld.patterns.cache_write import CacheWritePattern
from kernelweld.patterns.cover import dimension_of
from kernelweld.patterns.ops import CAT, RESHAPE, argument, aten, dtype_of, is_call, shape_of
from kernelweld.patterns.pattern import Match, NoMatch
from kernelweld.patterns.reading import Miss


@dataclass(frozen=True)
class Piece:
    """The bytes ``start`` to ``end`` of a row: ``source``, seen as bytes by ``views``, last first."""

    source: fx.Node
    views: tuple[fx.Node, ...]
    start: int
    end: int


@dataclass(frozen=True)
class JoinedWrite:
    """``index_put(cache, places, cat([codes.view(uint8), scales.view(uint8), …], -1))``, matched as a write
    of one value, with the pieces that this value is joined of.
    """

    anchor: fx.Node
    match: Match
    pieces: tuple[Piece, ...]

    name = "the write of a joined row"

    @property
    def node(self) -> fx.Node:
        """The new value of the cache, which the words stand before."""
        return self.match.outputs[0]

    def operands(self) -> tuple[fx.Node, ...]:
        """What is written, to where."""
        _, joined, *rest = self.match.operands
        given = [self.match.operands[0], *rest, *(piece.source for piece in self.pieces)]
        return tuple(dict.fromkeys(node for node in given if node is not None and node is not joined))

    def nodes(self) -> list[fx.Node]:
        """What lies between the operands and the new value of the cache, in order."""
        views = [view for piece in self.pieces for view in piece.views]
        return sorted({*self.match.nodes, cast(fx.Node, self.match.operands[1]), *views})

    def origin(self) -> Origin:
        """The nodes from the operands to the new value of the cache.

        Raises:
            Miss: one has a size that no operand has.
        """
        operands, nodes = self.operands(), self.nodes()
        given = sorted({n for node in nodes for n in node.all_input_nodes} - {*nodes, *operands})
        sizes = [(size, self._dimension(size, operands)) for size in given]
        return record_origin(nodes, operands, [self.node], [(size, *where) for size, where in sizes])

    def _dimension(self, size: fx.Node, operands: Sequence[fx.Node]) -> tuple[fx.Node, int]:
        found = dimension_of(size, operands) if isinstance(size.meta.get("val"), SymInt) else None
        if found is None:
            raise Miss("%{} depends on %{}, which is no size of an operand", self.node, self.node, size)
        return found


def read_joined(anchor: fx.Node) -> JoinedWrite | None:
    """The write of a joined row that ``anchor`` is, or None: of bytes, along the last dimension, of pieces
    that are not of one dtype.
    """
    joined = anchor.args[2] if is_call(anchor, *CacheWritePattern.anchors) else None
    if not is_call(joined, CAT) or dtype_of(joined) != torch.uint8:
        return None
    rank = len(shape_of(joined))
    if cast(int, argument(joined, 1, "dim", 0)) % rank != rank - 1:
        return None
    pieces = _pieces(cast("Sequence[fx.Node]", joined.args[0]))
    match = CacheWritePattern().match(anchor) if pieces else None
    if match is None or isinstance(match, NoMatch) or match.sizes:
        return None
    cache, dims = cast(fx.Node, match.operands[0]), cast(CacheWrite, match.word).dims
    whole_row = shape_of(cache)[-1:] == (pieces[-1].end,) and dims[-1] != len(shape_of(cache)) - 1
    return JoinedWrite(anchor, match, pieces) if whole_row else None


def expand_joined(write: JoinedWrite, build: Builder) -> fx.Node:
    """A write of each piece to its bytes of the rows; the new value of the cache."""
    cache, _, index, index2, whole = write.match.operands
    assert cache is not None
    part = part_of(cache, write.anchor)
    now = before = whole or cache
    for piece in write.pieces:
        seen = cache if now is before else now
        for view in reversed(part.views) if part is not None and now is not before else ():
            seen = build.viewed(view, seen)
        row = build.part(seen, piece.start, piece.end)
        now = build.word(write.match.word, row, _value(piece, build), index, index2, now)
    return now


def _value(piece: Piece, build: Builder) -> fx.Node:
    """What is written to the bytes of ``piece``, in its own dtype and in the shape of a row."""
    dtype = dtype_of(piece.source)
    assert dtype is not None
    *rows, _ = shape_of(piece.views[0]) if piece.views else shape_of(piece.source)
    return build.reshaped(piece.source, (*rows, (piece.end - piece.start) // dtype.itemsize))


def _pieces(joined: Sequence[fx.Node]) -> tuple[Piece, ...]:
    """The pieces side by side; none if one has a width that is a symbol, or all are of one dtype."""
    found: list[Piece] = []
    for node in joined:
        width, start = shape_of(node)[-1], found[-1].end if found else 0
        source, views = _seen(node)
        dtype = dtype_of(source)
        if not isinstance(width, int) or dtype is None or width % dtype.itemsize:
            return ()
        found.append(Piece(source, views, start, start + width))
    return tuple(found) if len({dtype_of(piece.source) for piece in found}) > 1 else ()


def _seen(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The value whose bytes ``node`` shows, and the views between them."""
    views = [node]
    while is_call(views[-1], *RESHAPE) and isinstance(source := views[-1].args[0], fx.Node):
        views.append(source)
    if not is_call(views[-1], aten.view.dtype):
        return node, ()
    return cast(fx.Node, views[-1].args[0]), tuple(views)
