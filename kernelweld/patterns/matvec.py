"""The product of one row in FX: a GEMM with one static row and a weight of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.matvec import MatVec
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import FLOATS, aten, dtype_of, is_call, shape_of
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import ReadingPattern, something_else

#: A weight of so many columns takes the compiler around us no longer than what stands around its product.
NARROW = 1024


@dataclass(frozen=True)
class MatVecPattern(ReadingPattern):
    """``mm`` of one row and a weight of more than ``NARROW`` columns, or ``bmm`` of one row a batch.

    A GEMM library may split such a product over K and reduce it in a second launch; as sums of rows it is one
    kernel that streams the weight. Narrower products are the pass skinny-gemm's: the compiler around us
    fuses them with their neighbours.
    """

    name: ClassVar[str] = "matvec"
    kind: ClassVar[str] = "matvec"
    spelling: ClassVar[str] = "`F.linear(x, weight)` of one row"
    anchors: ClassVar[tuple[OpOverload, ...]] = (aten.mm.default, aten.bmm.default)

    def read(self, anchor: fx.Node) -> Match:
        x, matrix = anchor.args[:2]
        if not isinstance(x, fx.Node) or not isinstance(matrix, fx.Node) or not _is_one_row(anchor, matrix):
            raise something_else(anchor)
        dtype, cover = dtype_of(anchor), Cover()
        assert dtype is not None
        cover.take(anchor)
        weight = _transpose_of(matrix)
        if weight is None:
            weight = matrix
        else:
            cover.share(matrix)
        if weight.op not in ("placeholder", "get_attr") or dtype_of(weight) not in FLOATS:
            raise something_else(anchor)
        return cover.match(MatVec(weight is matrix, dtype), (weight, x), anchor)


def _is_one_row(anchor: fx.Node, matrix: fx.Node) -> bool:
    sizes = (*shape_of(anchor), *shape_of(matrix))
    if any(not isinstance(size, int) or size < 1 for size in sizes) or shape_of(anchor)[-2] != 1:
        return False
    return is_call(anchor, aten.bmm.default) or int(shape_of(anchor)[-1]) > NARROW


def _transpose_of(matrix: fx.Node) -> fx.Node | None:
    """What ``matrix`` is with its last two dimensions swapped."""
    if not is_call(matrix, aten.permute.default):
        return None
    source, order = matrix.args
    rank = len(shape_of(matrix))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    return source if isinstance(source, fx.Node) and order == swapped else None
