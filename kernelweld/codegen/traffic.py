"""The memory that a weld has to read and write, whatever its kernel does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sympy

from kernelweld.codegen.plan import inputs, outputs
from kernelweld.codegen.task import Load, Operand, RowTask, Store, Value, WeldProgram

#: The row dimensions of a task, by number, along which a value or an address changes.
Axes = frozenset[int]


def moved_bytes(program: WeldProgram) -> sympy.Expr:
    """Bytes of the distinct elements that the row tasks load and store, each counted once.

    What several rows or tasks read alike (a weight, a table, one value of a pack) counts once; a row that
    is gathered or scattered counts once for each index. Its symbols are those of the row sizes.
    """
    counts: dict[object, sympy.Expr] = {}
    for task in program.tasks:
        for operand, axes, width in _accesses(task):
            elements = sympy.prod([task.rows[i] for i in sorted(axes)], start=sympy.Integer(1))
            elements *= task.heads if operand.head_stride != 0 else 1
            elements *= width if operand.feature_stride != 0 else 1
            counts[_memory(task, operand, axes, width)] = elements * operand.dtype.itemsize
    return sympy.Add(*counts.values())


def _accesses(task: RowTask) -> Iterator[tuple[Operand, Axes, int]]:
    """Every load and store: where, along which row dimensions its address changes, and its width."""
    moving: dict[Value, Axes] = {}
    for step in task.steps:
        if isinstance(step, (Load, Store)):
            axes = _strided(step.operand) | _joined(moving[i.value] for i in step.operand.indices)
            yield step.operand, axes, step.out.width if isinstance(step, Load) else step.value.width
        else:
            axes = _joined(moving[value] for value in inputs(step))
        moving |= dict.fromkeys(outputs(step), axes)


def _strided(operand: Operand) -> Axes:
    return frozenset(i for i, stride in enumerate(operand.row_strides) if stride != 0)


def _joined(axes: Iterable[Axes]) -> Axes:
    return frozenset().union(*axes)


def _memory(task: RowTask, operand: Operand, axes: Axes, width: int) -> object:
    """Equal for accesses of the same elements. Two gathers may differ in what their indices hold."""
    if operand.indices:
        return task, operand
    shape = tuple((task.rows[i], operand.row_strides[i]) for i in sorted(axes))
    heads = (task.heads, operand.head_stride) if operand.head_stride != 0 else None
    return operand.name, operand.offset, shape, heads, width
