"""The body of one task while it is being written: its rows, its tiles, and the lines that define them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from kernelweld.codegen.expressions import factor, spell
from kernelweld.codegen.layout import Partition
from kernelweld.codegen.names import NameTable
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.rows import RowDomain
from kernelweld.codegen.source import Source
from kernelweld.codegen.spelling import grouped
from kernelweld.codegen.task import RowTask, Store, Value
from kernelweld.codegen.tile import Tile, padded, rounded_to

WHOLE = Piece(0, 1)


@dataclass(frozen=True)
class Frame:
    """What is fixed for a task: its rows, the partition of each value, rows per program, the suffix of its
    names, and whether its launch rounds pairs.
    """

    task: RowTask
    domain: RowDomain
    partitions: Mapping[str, Partition]
    block: int
    suffix: str
    packed: bool = False

    @property
    def extent(self) -> int:
        """The first extent of a full tile: the rows of a program, or the padded heads of its row."""
        return self.block if self.task.heads == 1 else padded(self.task.heads)


class Scope:
    """Writes the body of one task; emitters read tiles from it and define new ones."""

    def __init__(self, frame: Frame, names: NameTable, source: Source) -> None:
        self.frame = frame
        self.source = source
        self._names = names
        self._tiles: dict[tuple[str, Piece], Tile] = {}
        self._shared: dict[str, str] = {}

    # values

    def pieces(self, value: Value) -> Partition:
        """The register pieces of ``value``."""
        return self.frame.partitions[value.name]

    def tile(self, value: Value, piece: Piece) -> Tile:
        """The tile of ``value`` at ``piece``; a value of width 1 is the same at every piece."""
        found = self._tiles.get((value.name, WHOLE if value.width == 1 else piece))
        if found is None:
            raise Refused(f"value `{value.name}` is used before it is defined")
        return found

    def bind(self, value: Value, piece: Piece, tile: Tile) -> None:
        """Lets ``value`` at ``piece`` be an existing tile: a renaming, no code."""
        self._tiles[value.name, piece] = tile

    def define(self, value: Value, piece: Piece, tile: Tile) -> Tile:
        """Writes ``value[piece] = tile`` and binds the value to it; a column is broadcast to the piece."""
        if tile.count < piece.count:
            wide = replace(tile, count=piece.count, clean=False)
            tile = replace(wide, text=f"tl.broadcast_to({tile.text}, {self.shape(wide)})")
        name = self._piece_name(value, piece, "")
        part = "" if value.width == 1 else f" {value.name}{piece}"
        named = self._write(name, tile, part)
        self.bind(value, piece, named)
        return named

    def define_pairs(self, value: Value, pieces: Sequence[Piece], pairs: Tile) -> None:
        """Writes the evens and the odds of ``pairs`` as two pieces of ``value``; no register moves to
        another thread.
        """
        halves = [replace(pairs, count=piece.count) for piece in pieces]
        names = [self.fresh(self._piece_name(value, piece, "")) for piece in pieces]
        shape = self.shape(halves[0])
        cut = f"tl.split(tl.reshape({pairs.text}, {shape[:-1]}, 2]))"
        places = ", ".join(f"{value.name}{piece}" for piece in pieces)
        self.source.line(f"{', '.join(names)} = {cut}", f"{shape} {places}")
        for name, piece, half in zip(names, pieces, halves, strict=True):
            self.bind(value, piece, replace(half, text=name))

    def let(self, name: str, tile: Tile) -> Tile:
        """Names the expression of ``tile`` in a line of its own."""
        return self._write(name, tile, "")

    def result(self, value: Value, piece: Piece, tile: Tile, dtype: torch.dtype) -> None:
        """Defines ``value[piece]`` as ``tile`` rounded to ``dtype``.

        A value that is stored is rounded one by one: its store then costs no rounding of its own.
        """
        stored = any(isinstance(step, Store) and step.value == value for step in self.frame.task.steps)
        if self.frame.packed and dtype == torch.bfloat16 and not stored:
            tile = replace(tile, text=f"round_bf16_pairs({tile.text})", dtype=dtype)
        else:
            tile = rounded_to(tile, dtype)
        self.define(value, piece, tile)

    def stage(self, value: Value, piece: Piece, stage: str, tile: Tile, dtype: torch.dtype) -> Tile:
        """An inner result of ``value`` rounded to ``dtype``, in a line of its own; float32 needs none."""
        if dtype == torch.float32:
            return tile
        return self.let(self._piece_name(value, piece, f"_{stage}"), rounded_to(tile, dtype))

    def _piece_name(self, value: Value, piece: Piece, stage: str) -> str:
        pieces = self.pieces(value)
        number = "" if len(pieces) == 1 else f"_{pieces.index(piece)}"
        return f"{value.name}{stage}{number}"

    def _write(self, name: str, tile: Tile, part: str) -> Tile:
        fresh = self.fresh(name)
        self.source.line(f"{fresh} = {tile.text}", f"{self.shape(tile)}{part}")
        return replace(tile, text=fresh)

    def shape(self, tile: Tile) -> str:
        return f"[{self.frame.extent if tile.rows else 1}, {padded(tile.count)}]"

    def fresh(self, name: str) -> str:
        """A new variable name."""
        return self._names.fresh(name, self.frame.suffix)

    # lines shared by several steps of the task

    def shared(self, name: str, text: str, comment: str = "") -> str:
        """A variable holding ``text``, written where it is first needed."""
        if text not in self._shared:
            self._shared[text] = self.fresh(name)
            self.source.line(f"{self._shared[text]} = {text}", comment)
        return self._shared[text]

    def lane(self, count: int, run: int = 0) -> str:
        """Feature indices ``0, 1, …`` of a tile that holds ``count``: ``[1, B]``.

        With ``run`` the compiler knows no more than ``run`` of them to follow each other.
        """
        size = padded(count)
        lane = self.shared(f"lane_{size}", f"tl.arange(0, {size})[None, :]", f"[1, {size}]")
        if not 0 < run < size:
            return lane
        return self.shared(f"{lane}_by_{run}", f"tl.max_contiguous({lane}, [1, {run}])", f"[1, {size}]")

    def in_columns(self, count: int) -> str | None:
        """The mask of the features that exist, or None when there is no padding."""
        if padded(count) == count:
            return None
        return self.shared(f"in_{count}", f"{self.lane(count)} < {count}", f"[1, {padded(count)}]")

    def in_heads(self) -> str | None:
        """The mask of the heads that exist, or None when there is no padding (or no head axis)."""
        heads = self.frame.task.heads
        if padded(heads) == heads:
            return None
        return self.shared("in_heads", f"{self.head()} < {heads}", f"[{padded(heads)}, 1]")

    def head(self) -> str:
        """Head indices ``[H, 1]``."""
        size = padded(self.frame.task.heads)
        return self.shared("head", f"tl.arange(0, {size})[:, None]", f"[{size}, 1]")

    def in_rows(self) -> str | None:
        """The mask of the rows that exist, or None when every program is full."""
        block, total = self.frame.block, self.frame.domain.total
        if self.frame.task.heads > 1 or block == 1 or total % block == 0:
            return None
        return self.shared("in_rows", f"{self.row()} < {spell(total)}", f"[{block}, 1]")

    def row(self) -> str:
        """Flat row indices ``[R, 1]`` (``[1, 1]`` when the first axis is the heads)."""
        return self._shared["row"]

    def open_rows(self, program: str) -> None:
        """Writes the row indices of this program; ``program`` is its number within the task."""
        block = self.frame.block if self.frame.task.heads == 1 else 1
        first = program if block == 1 else f"{program} * {block}"
        self._shared["row"] = self.fresh("row")
        self.source.line(f"{self._shared['row']} = {first} + tl.arange(0, {block})[:, None]", f"[{block}, 1]")

    def row_index(self, dim: int) -> str:
        """The index along merged row dimension ``dim``, in 64 bits where offsets may need them."""
        sizes, text, name = self.frame.domain.sizes, self.row(), "row"
        if len(sizes) > 1:
            inner = sympy.prod(sizes[dim + 1 :], start=sympy.Integer(1))
            text = text if inner == 1 else f"{text} // {factor(inner)}"
            text, name = f"{text} % {factor(sizes[dim])}" if dim else text, f"i_{dim}"
        if self.frame.domain.wide:
            text, name = f"{grouped(text)}.to(tl.int64)", f"{name}_i64"
        return text if text == self.row() else self.shared(name, text)
