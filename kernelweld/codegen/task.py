"""Row tasks: what a weld asks the code generator for, free of graphs and of torch.fx.

A weld becomes one kernel. It holds row tasks that share the launch, each with its own range of programs.
A row task walks a domain of rows; for each row it holds tiles of the feature axis in registers and
applies its steps in order. Sizes, strides and offsets are sympy expressions in elements; their free
symbols become integer kernel arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import sympy
import torch

from kernelweld.ir.word import Word

#: Dtypes that row tasks compute on; anything else stays with the compiler around us.
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64})


@dataclass(frozen=True)
class Value:
    """A value in registers: ``width`` elements of the feature axis for each row (and head); width 1 is
    one scalar per row.
    """

    name: str
    width: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Index:
    """A place known only at run time: ``value`` (an integer of width 1, loaded or computed before) times its
    stride is added to the address.

    With two ``strides`` the value is a slot of blocks: ``value // sizes[1]`` blocks and ``value % sizes[1]``
    within. With ``sizes`` the places are 0 to their product - 1, and what is stored anywhere else is not
    stored at all; with ``wraps`` those below zero are counted from the end first. Without ``sizes`` every
    place exists.
    """

    value: Value
    strides: tuple[sympy.Expr, ...]
    sizes: tuple[sympy.Expr, ...] = ()
    wraps: bool = False


@dataclass(frozen=True)
class Jump:
    """Along row dimension ``dim`` (None: along the heads) the address moves by ``step`` more at every
    ``every``-th index: elements lie in tiles.
    """

    dim: int | None
    every: sympy.Expr
    step: sympy.Expr


@dataclass(frozen=True)
class Operand:
    """A tensor in memory as one task sees it.

    ``name`` is the kernel argument (several operands may view the same argument at different offsets).
    The address of an element is ``offset + sum(row_index[i] * row_strides[i]) + head * head_stride +
    feature * feature_stride``. A stride of 0 broadcasts; a ``feature_stride`` of 0 with ``width`` 1 is a
    scalar per row. ``jumps`` are added. With ``indices`` it is a row gathered from a table, or scattered to
    a cache. The ``argument`` may have another dtype: then the operand's elements lie in its bytes.
    """

    name: str
    dtype: torch.dtype
    row_strides: tuple[sympy.Expr, ...]
    feature_stride: sympy.Expr
    head_stride: sympy.Expr = field(default=sympy.Integer(0))
    offset: sympy.Expr = field(default=sympy.Integer(0))
    indices: tuple[Index, ...] = ()
    argument: torch.dtype | None = None
    jumps: tuple[Jump, ...] = ()


@dataclass(frozen=True)
class Load:
    """``out = float32(operand)``: every load is widened to float32 at once (integers stay integers)."""

    out: Value
    operand: Operand


@dataclass(frozen=True)
class Store:
    """Writes ``value``, already rounded to its dtype, to ``operand``."""

    value: Value
    operand: Operand


@dataclass(frozen=True)
class Apply:
    """``outs = word(*ins)``; an absent optional operand is None. ``over_heads``: its reductions cover
    the head axis too.
    """

    outs: tuple[Value, ...]
    word: Word
    ins: tuple[Value | None, ...]
    over_heads: bool = False


@dataclass(frozen=True)
class Elementwise:
    """``out = name(*ins)`` rounded to ``out.dtype``; ``name`` as in
    ``kernelweld.ir.pointwise.POINTWISE``; scalars are Python numbers.
    """

    out: Value
    name: str
    ins: tuple[Value | float | int, ...]


@dataclass(frozen=True)
class Reduce:
    """``out = name(in)`` over the feature axis (and the heads), width 1, rounded to ``out.dtype``; as
    in ``ROW_REDUCE``.
    """

    out: Value
    name: str
    value: Value
    over_heads: bool = False


@dataclass(frozen=True)
class Slice:
    """``out = value[..., start:stop:step]`` on the feature axis: a renaming of registers, no work."""

    out: Value
    value: Value
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True)
class Concat:
    """``out = cat(values, -1)`` on the feature axis: a renaming of registers, no work."""

    out: Value
    values: tuple[Value, ...]


TaskStep = Load | Store | Apply | Elementwise | Reduce | Slice | Concat


@dataclass(frozen=True)
class RowTask:
    """One chain over one domain of rows.

    ``rows`` are the sizes of the row dimensions, outermost first; ``heads`` (1 unless a step reduces over
    it) is an axis held whole in the tile beside the features. ``sources`` are the model's source lines,
    printed as comments; ``title`` names the chain.
    """

    title: str
    rows: tuple[sympy.Expr, ...]
    steps: tuple[TaskStep, ...]
    heads: int = 1
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeldProgram:
    """The row tasks of one weld and its kernel arguments: tensors in order, outputs among them by name."""

    name: str
    tasks: tuple[RowTask, ...]
    tensors: tuple[tuple[str, torch.dtype], ...]
    outputs: tuple[str, ...]


def without_sources(program: WeldProgram) -> WeldProgram:
    """``program`` without the model's source lines: equal for equal work, wherever the model asks for it."""
    return replace(program, tasks=tuple(replace(task, sources=()) for task in program.tasks))


def free_symbols(task: RowTask) -> frozenset[sympy.Symbol]:
    """The symbols in the sizes, strides and offsets of a task: its integer kernel arguments."""
    operands = [step.operand for step in task.steps if isinstance(step, (Load, Store))]
    strides = [
        expr
        for o in operands
        for expr in (
            *o.row_strides,
            o.feature_stride,
            o.head_stride,
            o.offset,
            *_of_indices(o),
            *_of_jumps(o),
        )
    ]
    return frozenset(symbol for expr in (*task.rows, *strides) for symbol in expr.free_symbols)


def _of_jumps(operand: Operand) -> Iterator[sympy.Expr]:
    for jump in operand.jumps:
        yield from (jump.every, jump.step)


def _of_indices(operand: Operand) -> Iterator[sympy.Expr]:
    for index in operand.indices:
        yield from (*index.strides, *index.sizes)
