"""How small a size may be: what a kernel reaches has to lie in its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import sympy

from kernelweld.codegen.task import Index, Load, Operand, RowTask, Store, WeldProgram

if TYPE_CHECKING:
    from kernelweld.passes.eject.subject import Given, Made, Size

#: Sizes that torch captures as symbols are two at least.
_CAPTURED = 2


def least(
    size: Size, program: WeldProgram, tensors: Mapping[str, Given | Made], traced: Mapping[str, int]
) -> int:
    """1 if the kernel stays in its tensors then, or what torch captures; the other symbols as traced."""
    values = {**traced, size.symbol: 1}
    inside = all(_is_inside(reach, one, values) for one, reach in _reaches(program, tensors))
    return 1 if inside else _CAPTURED


def _reaches(
    program: WeldProgram, tensors: Mapping[str, Given | Made]
) -> Iterator[tuple[Given | Made, sympy.Expr | None]]:
    """Every load and store: its tensor, and the bytes up to the end of what it reaches; None if unknown."""
    for task in program.tasks:
        for step in task.steps:
            if isinstance(step, (Load, Store)):
                width = step.out.width if isinstance(step, Load) else step.value.width
                yield tensors[step.operand.name], _reach(task, step.operand, width)


def _reach(task: RowTask, operand: Operand, width: int) -> sympy.Expr | None:
    if operand.jumps:
        return None
    rows = [(rows - 1) * stride for rows, stride in zip(task.rows, operand.row_strides, strict=True)]
    inner = (width - 1) * operand.feature_stride + (task.heads - 1) * operand.head_stride
    last = operand.offset + sympy.Add(*rows) + inner + sympy.Add(*map(_last, operand.indices))
    return (last + 1) * operand.dtype.itemsize


def _last(index: Index) -> sympy.Expr:
    """Where the last place lies; a place without bounds is the caller's."""
    if len(index.sizes) != len(index.strides):
        return sympy.S.Zero
    return sympy.Add(*((size - 1) * stride for size, stride in zip(index.sizes, index.strides, strict=True)))


def _is_inside(reach: sympy.Expr | None, one: Given | Made, values: Mapping[str, int]) -> bool:
    extent = 1 + sympy.Add(
        *((size - 1) * stride for size, stride in zip(one.shape, one.strides, strict=True))
    )
    return reach is not None and _at(reach, values) <= _at(extent * one.dtype.itemsize, values)


def _at(expr: sympy.Expr, values: Mapping[str, int]) -> int:
    return int(expr.subs({symbol: values[symbol.name] for symbol in expr.free_symbols}))
