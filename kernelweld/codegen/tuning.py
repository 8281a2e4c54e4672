"""Launches that were found by measuring: for one GPU, by kernel and by range of rows.

A kernel is known by the digest of its source with the number of rows left open, so that what was measured at
64 rows serves any batch of its range, whatever the model, as long as the generated code is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import sympy

from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.rows import most_rows
from kernelweld.codegen.task import Index, Jump, Load, Operand, RowTask, Store, WeldProgram, without_sources

_FEWEST_AGREEING = 2


@dataclass(frozen=True)
class Entry:
    """``launch`` was the fastest for the kernel ``kernel`` at some number of rows from ``lowest`` up to twice
    that: ``us`` microseconds, ``default_us`` without it.
    """

    kernel: str
    lowest: int
    launch: Launch
    us: float
    default_us: float


@dataclass(frozen=True)
class Tuning:
    """What was measured on one GPU. Part of a pass's key: hashable, and it holds nothing but numbers."""

    gpu: str
    entries: tuple[Entry, ...] = ()

    def launch_of(self, program: WeldProgram) -> Launch | None:
        """The launch that was found for ``program``, None where nothing was.

        A symbolic number of rows takes what all measured ranges agree on, of which there must be two: one
        kernel serves them all.
        """
        key, tasks = kernel_key(program), len(program.tasks)
        entries = (e for e in self.entries if e.kernel == key and len(e.launch.rows) == tasks)
        found = {entry.lowest: entry.launch for entry in entries}
        rows = most_rows(program)
        if isinstance(rows, sympy.Integer):
            return found.get(range_of(int(rows)))
        agreed = set(found.values())
        return agreed.pop() if len(agreed) == 1 and len(found) >= _FEWEST_AGREEING else None

    def including(self, entries: Iterable[Entry]) -> Tuning:
        """With ``entries`` in place of older ones for the same kernel and rows, in a fixed order."""
        merged = {(e.kernel, e.lowest): e for e in (*self.entries, *entries)}
        return Tuning(self.gpu, tuple(merged[key] for key in sorted(merged)))

    @property
    def digest(self) -> str:
        """Equal for tables that choose the same launches."""
        chosen = sorted((e.kernel, e.lowest, str(e.launch)) for e in self.entries)
        return hashlib.sha256(f"{self.gpu}\n{chosen}".encode()).hexdigest()[:16]


def range_of(rows: int) -> int:
    """The lowest number of the range of ``rows``: a power of two."""
    return 1 << max(0, rows.bit_length() - 1)


def kernel_key(program: WeldProgram) -> str:
    """The digest of the kernel of ``program`` for any number of rows."""
    kernel = emit(_for_any_rows(without_sources(program)))
    return hashlib.sha256(f"{kernel.dtypes}\n{kernel.source}".encode()).hexdigest()[:16]


def _for_any_rows(program: WeldProgram) -> WeldProgram:
    """``program`` with a symbol for the outermost row dimension of each task, the same for the same size."""
    sizes = dict.fromkeys(task.rows[0] for task in program.tasks if task.rows)
    names = {size: _rows(number) for number, size in enumerate(sizes)}
    return replace(program, tasks=tuple(_renamed(task, names) for task in program.tasks))


def _rows(number: int) -> sympy.Symbol:
    return sympy.Symbol(f"rows_{number}", integer=True, positive=True)


def _renamed(task: RowTask, names: Mapping[sympy.Expr, sympy.Symbol]) -> RowTask:
    """A size that is a symbol already gets its new name wherever it occurs; a number only as the size."""
    symbols = {size: name for size, name in names.items() if isinstance(size, sympy.Symbol)}
    steps = tuple(
        replace(step, operand=_substituted(step.operand, symbols))
        if isinstance(step, (Load, Store))
        else step
        for step in task.steps
    )
    inner = tuple(sympy.sympify(size).subs(symbols) for size in task.rows[1:])
    rows = (names[task.rows[0]], *inner) if task.rows else ()
    return replace(task, rows=rows, steps=steps)


def _substituted(operand: Operand, symbols: Mapping[sympy.Expr, sympy.Symbol]) -> Operand:
    def new(expressions: Iterable[sympy.Expr]) -> tuple[sympy.Expr, ...]:
        return tuple(sympy.sympify(expression).subs(symbols) for expression in expressions)

    head, feature, offset = new((operand.head_stride, operand.feature_stride, operand.offset))
    indices = tuple(Index(i.value, new(i.strides), new(i.sizes), i.wraps) for i in operand.indices)
    jumps = tuple(Jump(j.dim, *new((j.every, j.step))) for j in operand.jumps)
    return replace(
        operand,
        row_strides=new(operand.row_strides),
        feature_stride=feature,
        head_stride=head,
        offset=offset,
        indices=indices,
        jumps=jumps,
    )
