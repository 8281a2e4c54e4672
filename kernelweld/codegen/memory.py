"""Loads and stores: addresses, masks and the widening to float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from kernelweld.codegen.expressions import ZERO, factor, product, spell, total
from kernelweld.codegen.layout import Partition
from kernelweld.codegen.piece import Piece
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.rows import INT32_LIMIT
from kernelweld.codegen.scope import WHOLE, Scope
from kernelweld.codegen.spelling import grouped, is_float, triton_dtype
from kernelweld.codegen.task import Index, Jump, Load, Operand, Store
from kernelweld.codegen.tile import Tile, combine

#: Bytes of the widest load or store of a thread.
_VECTOR = 16


@dataclass(frozen=True)
class Access:
    """One load or store: a piece, or the two interleaved pieces of a run of pairs, moved contiguously."""

    pieces: tuple[Piece, ...]

    @property
    def whole(self) -> Piece:
        """The indices that are moved."""
        first = self.pieces[0]
        return first if len(self.pieces) == 1 else Piece(first.start, 2 * first.count)


def emit_load(scope: Scope, step: Load) -> None:
    """Loads every piece of the value, widened to float32 (integers stay as they are)."""
    dtype = step.operand.dtype
    widening = ".to(tl.float32)" if is_float(dtype) and triton_dtype(dtype) != "tl.float32" else ""
    rows = _varies(scope, step.operand)
    for access in _accesses(scope.pieces(step.out)):
        whole = access.whole
        mask = _mask(scope, rows, whole.count, step.operand.indices)
        guard = f", mask={mask}, other={'0.0' if is_float(dtype) else '0'}" if mask else ""
        text = f"tl.load({_address(scope, step.operand, whole)}{guard}){widening}"
        tile = Tile(text, rows, whole.count, clean=True)
        if len(access.pieces) == 1:
            scope.define(step.out, whole, tile)
        else:
            scope.define_pairs(step.out, access.pieces, scope.let(f"{step.out.name}_pairs", tile))


def emit_store(scope: Scope, step: Store) -> None:
    """Stores every piece of the value in the operand's dtype."""
    rows = _varies(scope, step.operand)
    dtype = triton_dtype(step.operand.dtype)
    for access in _accesses(scope.pieces(step.value)):
        tiles = [_filled(scope, scope.tile(step.value, piece), piece) for piece in access.pieces]
        if any(tile.rows for tile in tiles) and not rows:
            raise Refused(f"output `{step.operand.name}` is the same for all rows, but its value is not")
        mask = _mask(scope, rows, access.whole.count, step.operand.indices)
        guard = f", mask={mask}" if mask else ""
        value = tiles[0] if len(tiles) == 1 else _joined(scope, tiles, access.whole)
        address = _address(scope, step.operand, access.whole, _run(scope, step.operand))
        comment = ", ".join(f"{step.value.name}{piece}" for piece in access.pieces)
        scope.source.line(f"tl.store({address}, {grouped(value.text)}.to({dtype}){guard})", comment)


def _accesses(partition: Partition) -> list[Access]:
    """The pieces of a value, with evens and odds of one run put together."""
    accesses: list[Access] = []
    paired: set[Piece] = set()
    for piece in partition:
        odds = Piece(piece.start + 1, piece.count, piece.step)
        if piece in paired:
            continue
        if piece.step == 2 and odds in partition:
            paired.add(odds)
            accesses.append(Access((piece, odds)))
        else:
            accesses.append(Access((piece,)))
    return accesses


def _filled(scope: Scope, tile: Tile, piece: Piece) -> Tile:
    """``tile`` broadcast to all features of ``piece``."""
    if tile.count == piece.count:
        return tile
    wide = replace(tile, count=piece.count)
    return replace(wide, text=f"tl.broadcast_to({tile.text}, {scope.shape(wide)})")


def _joined(scope: Scope, tiles: Sequence[Tile], whole: Piece) -> Tile:
    """Evens and odds in memory order, ``[R, 2B]``."""
    both = combine("tl.join({}, {})", *tiles)
    texts = [
        tile.text if tile.rows == both.rows else f"tl.broadcast_to({tile.text}, {scope.shape(both)})"
        for tile in tiles
    ]
    joined = replace(both, count=whole.count)
    return replace(joined, text=f"tl.reshape(tl.join({', '.join(texts)}), {scope.shape(joined)})")


def _varies(scope: Scope, operand: Operand) -> bool:
    """Whether the operand differs along the first axis of a tile."""
    if any(scope.tile(index.value, WHOLE).rows for index in operand.indices):
        return True
    if scope.frame.task.heads > 1:
        return bool(operand.head_stride != 0)
    return any(bool(stride != 0) for stride in scope.frame.domain.strides_of(operand))


def _base(scope: Scope, operand: Operand) -> tuple[str, bool]:
    """Pointers to the start of each row (and head) of ``operand``, and whether they are a tile already."""
    strides = scope.frame.domain.strides_of(operand)
    terms = [product(scope.row_index(i), s) for i, s in enumerate(strides) if s != 0]
    if scope.frame.task.heads > 1 and operand.head_stride != 0:
        head = f"{scope.head()}.to(tl.int64)" if scope.frame.domain.wide else scope.head()
        terms.append(product(head, operand.head_stride))
    terms += [_jump(scope, jump) for jump in operand.jumps]
    terms += [term for index in operand.indices for term in _steps(scope, index)]
    tiled = bool(terms)
    if not isinstance(operand.offset, sympy.Integer):
        terms.append(f"tl.cast({spell(operand.offset)}, tl.int64)")
    text = total(_pointer(scope, operand), *terms)
    return (scope.shared(f"{operand.name}_row", text) if terms else text), tiled


def _jump(scope: Scope, jump: Jump) -> str | None:
    """What a jump adds to an address."""
    if jump.dim is None:
        index = f"{scope.head()}.to(tl.int64)" if scope.frame.domain.wide else scope.head()
    else:
        index = scope.row_index(scope.frame.domain.dims.index(jump.dim))
    return product(f"({grouped(index)} // {factor(jump.every)})", jump.step)


def _run(scope: Scope, operand: Operand) -> int:
    """Elements that a thread stores at once where that is fewer than it could; 0 for no such limit.

    A thread loads 16 bytes. It could store 16 codes of one byte, but half of them would come from another
    thread, through shared memory: codes are stored as their values were loaded.
    """
    loads = [step.operand.dtype for step in scope.frame.task.steps if isinstance(step, Load)]
    widest = max((dtype.itemsize for dtype in loads if is_float(dtype)), default=1)
    narrower = operand.dtype.itemsize == 1 < widest and operand.feature_stride == 1
    return _VECTOR // widest if narrower else 0


def _pointer(scope: Scope, operand: Operand) -> str:
    """The argument as a pointer to elements of the operand."""
    if operand.argument is None or operand.argument == operand.dtype:
        return operand.name
    dtype = triton_dtype(operand.dtype)
    cast = f"{operand.name}.to(tl.pointer_type({dtype}))"
    return scope.shared(f"{operand.name}_{dtype.removeprefix('tl.')}", cast)


def _address(scope: Scope, operand: Operand, piece: Piece, run: int = 0) -> str:
    """Pointers to the elements of ``piece`` in every row, moved by at most ``run`` at a time."""
    base, tiled = _base(scope, operand)
    stride = sympy.sympify(operand.feature_stride)
    constant = operand.offset if isinstance(operand.offset, sympy.Integer) else ZERO
    start = spell(sympy.expand(constant + piece.start * stride))
    if piece.count == 1:
        return total(base, start, None if tiled else scope.lane(1))
    lane = scope.lane(piece.count, run if piece.step == 1 else 0)
    if not (isinstance(stride, sympy.Integer) and abs(stride) * piece.last < INT32_LIMIT):
        lane = f"{lane}.to(tl.int64)"
    return total(base, start, product(lane, sympy.expand(stride * piece.step)) or f"{lane} * 0")


def _place(scope: Scope, index: Index) -> str:
    """An index in 64 bits, counted from the start."""
    place = f"{grouped(scope.tile(index.value, WHOLE).text)}.to(tl.int64)"
    if not index.wraps:
        return place
    place = scope.shared(f"{index.value.name}_i64", place)
    end = factor(sympy.prod(index.sizes))
    return scope.shared(f"{index.value.name}_place", f"tl.where({place} < 0, {place} + {end}, {place})")


def _steps(scope: Scope, index: Index) -> list[str | None]:
    """What an index adds to an address: a slot is one product where blocks follow each other in memory."""
    place, (outer, *inner) = _place(scope, index), index.strides
    if not inner:
        return [product(place, outer)]
    block = index.sizes[1]
    if sympy.expand(outer - inner[0] * block) == 0:
        return [product(place, inner[0])]
    slot = scope.shared(f"{index.value.name}_slot", place)
    parts = ((f"{slot} // {factor(block)}", outer), (f"{slot} % {factor(block)}", inner[0]))
    return [product(f"({text})", stride) for text, stride in parts]


def _exists(scope: Scope, index: Index) -> str | None:
    """The mask of the rows whose place exists."""
    if not index.sizes:
        return None
    place, end = _place(scope, index), factor(sympy.prod(index.sizes))
    return scope.shared(f"{index.value.name}_exists", f"({place} >= 0) & ({place} < {end})")


def _mask(scope: Scope, rows: bool, count: int, indices: Sequence[Index] = ()) -> str | None:
    masks = [scope.in_columns(count), *(_exists(scope, index) for index in indices)]
    if rows:
        masks = [scope.in_rows(), scope.in_heads(), *masks]
    present = [m for m in masks if m is not None]
    return " & ".join(present) if present else None
