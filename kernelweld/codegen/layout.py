"""The feature layout solver: how values are cut into pieces so that no step moves data between registers.

Steps relate positions of different values: an elementwise step relates equal positions, a slice or a
concatenation shifted ones, and a rotary embedding the two elements of each pair, their cosines and their
sines. Each relation is an :class:`Alignment`: several affine views of one index range. The solver refines
the values' partitions until every alignment sees the same cuts through all of its views; then a step is a
plain list of operations between whole pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelweld.codegen.piece import Piece, meet, split
from kernelweld.codegen.refusal import Refused

#: More pieces than this in one value means registers named one by one: such a task is refused.
MAX_PIECES = 32

Partition = tuple[Piece, ...]


@dataclass(frozen=True)
class Span:
    """The view ``k -> start + step * k`` into the value named ``value``."""

    value: str
    start: int = 0
    step: int = 1


@dataclass(frozen=True)
class Alignment:
    """``count`` indices that all ``spans`` see at the same place of a register tile."""

    count: int
    spans: tuple[Span, ...]


def solve(widths: Mapping[str, int], alignments: Sequence[Alignment]) -> dict[str, Partition]:
    """The coarsest partition of every value under which all alignments hold.

    ``widths`` gives the number of feature elements of each value. Raises ``Refused`` when a value falls
    into more than ``MAX_PIECES`` pieces.
    """
    partitions: dict[str, Partition] = {name: (Piece(0, width),) for name, width in widths.items()}
    useful = [a for a in alignments if a.count > 0]
    changed = True
    while changed:
        changed = False
        for alignment in useful:
            changed |= _refine(partitions, alignment)
    return partitions


def cuts(partitions: Mapping[str, Partition], alignment: Alignment) -> Partition:
    """The pieces of the alignment's own index range, in order."""
    if alignment.count <= 0:
        return ()
    common: list[Piece] = [Piece(0, alignment.count)]
    for span in alignment.spans:
        seen = _pullback(partitions[span.value], span, alignment.count)
        common = [both for a in common for b in seen if (both := meet(a, b)) is not None]
    return tuple(sorted(common))


def _pullback(partition: Partition, span: Span, count: int) -> list[Piece]:
    whole = Piece(0, count).image(span.start, span.step)
    parts = (meet(piece, whole) for piece in partition)
    return [part.preimage(span.start, span.step) for part in parts if part is not None]


def _refine(partitions: dict[str, Partition], alignment: Alignment) -> bool:
    common = cuts(partitions, alignment)
    changed = False
    for span in alignment.spans:
        before = partitions[span.value]
        after = _cut(before, (piece.image(span.start, span.step) for piece in common))
        if len(after) > MAX_PIECES:
            raise Refused(
                f"value `{span.value}` falls into {len(after)} register pieces (at most {MAX_PIECES})"
            )
        partitions[span.value] = after
        changed |= after != before
    return changed


def _cut(partition: Partition, images: Iterable[Piece]) -> Partition:
    pieces = set(partition)
    for image in images:
        if image in pieces:
            continue
        overlaps = [(piece, part) for piece in pieces if (part := meet(piece, image)) is not None]
        for piece, part in overlaps:
            pieces.remove(piece)
            pieces.update(split(piece, part))
    return tuple(sorted(pieces))
