"""The row domain of a task: which row dimensions remain, how a flat row index splits into them, and
how wide offsets get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from kernelweld.codegen.task import Load, Operand, RowTask, Store, WeldProgram

INT32_LIMIT = 2**31


@dataclass(frozen=True)
class RowDomain:
    """The rows of a task after size-1 dimensions are dropped and contiguous neighbours merged.

    ``strides[k]`` are the strides of ``operands[k]`` along ``sizes``, outermost first, and ``dims`` the row
    dimensions of the task that they are (the innermost of those merged). ``wide``: some element offset may
    not fit 32 bits, so row offsets are computed in 64.
    """

    sizes: tuple[sympy.Expr, ...]
    operands: tuple[Operand, ...]
    strides: tuple[tuple[sympy.Expr, ...], ...]
    dims: tuple[int, ...]
    wide: bool

    @property
    def total(self) -> sympy.Expr:
        """The number of rows."""
        return sympy.prod(self.sizes, start=sympy.Integer(1))

    def strides_of(self, operand: Operand) -> tuple[sympy.Expr, ...]:
        return self.strides[self.operands.index(operand)]


def row_domain(task: RowTask) -> RowDomain:
    """The smallest row domain that addresses every operand of ``task``."""
    accesses = tuple(operand_widths(task))
    operands = tuple(dict.fromkeys(operand for operand, _ in accesses))
    sizes: list[sympy.Expr] = []
    columns: list[tuple[sympy.Expr, ...]] = []
    dims: list[int] = []
    apart = {jump.dim for operand in operands for jump in operand.jumps}
    for i, size in enumerate(task.rows):
        column = tuple(sympy.sympify(operand.row_strides[i]) for operand in operands)
        if size == 1:
            continue
        merges = bool(sizes) and apart.isdisjoint((i, *dims[-1:]))
        if merges and all(
            _contiguous(outer, inner, size) for outer, inner in zip(columns[-1], column, strict=True)
        ):
            sizes[-1], columns[-1], dims[-1] = sizes[-1] * size, column, i
        else:
            sizes.append(sympy.sympify(size))
            columns.append(column)
            dims.append(i)
    strides = tuple(tuple(column[k] for column in columns) for k in range(len(operands)))
    wide = any(_may_overflow(task, *access) for access in accesses)
    return RowDomain(tuple(sizes), operands, strides, tuple(dims), wide)


def most_rows(program: WeldProgram) -> sympy.Expr:
    """The rows of the task that has most of them."""
    return sympy.Max(*(row_domain(task).total for task in program.tasks))


def operand_widths(task: RowTask) -> Iterator[tuple[Operand, int]]:
    """Every operand that ``task`` loads or stores, with the width of the value."""
    for step in task.steps:
        if isinstance(step, Load):
            yield step.operand, step.out.width
        elif isinstance(step, Store):
            yield step.operand, step.value.width


def _contiguous(outer: sympy.Expr, inner: sympy.Expr, size: sympy.Expr) -> bool:
    return bool(sympy.expand(outer - inner * size) == 0)


def _may_overflow(task: RowTask, operand: Operand, width: int) -> bool:
    extents: Sequence[tuple[sympy.Expr, sympy.Expr]] = [
        *zip(task.rows, operand.row_strides, strict=True),
        (sympy.Integer(task.heads), operand.head_stride),
        (sympy.Integer(width), operand.feature_stride),
    ]
    last = operand.offset + sum((size - 1) * abs(stride) for size, stride in extents)
    for jump in operand.jumps:
        size = task.heads if jump.dim is None else task.rows[jump.dim]
        last += size * abs(jump.step)
    return bool(operand.indices) or not isinstance(last, sympy.Integer) or int(last) >= INT32_LIMIT
