"""Writes the body of a kernel: one task after the other, each on its own range of program numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate

import sympy
from torch.utils._sympy.functions import FloorDiv

from kernelweld.codegen.emitters.table import emitter_of
from kernelweld.codegen.expressions import spell
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.names import NameTable
from kernelweld.codegen.plan import plan_task
from kernelweld.codegen.rows import row_domain
from kernelweld.codegen.scope import Frame, Scope
from kernelweld.codegen.source import Source, printable
from kernelweld.codegen.task import Apply, Load, RowTask, TaskStep, Value, WeldProgram, free_symbols
from kernelweld.ir.word import Word, format_static


class KernelWriter:
    """Writes the tasks of a program. Tasks that are known to have no rows are left out."""

    def __init__(self, program: WeldProgram, launch: Launch) -> None:
        self._launch = launch
        self._domains = [row_domain(task) for task in program.tasks]
        self._counts = [self._programs(k, task) for k, task in enumerate(program.tasks)]
        self._live = [k for k, count in enumerate(self._counts) if count != 0]
        self._tasks = program.tasks
        self._source = Source()
        self.symbols = sorted({s.name for task in program.tasks for s in free_symbols(task)})
        self._names = NameTable([*(name for name, _ in program.tensors), *self.symbols])
        self.grid: sympy.Expr = sympy.Add(*self._counts)

    def body(self) -> str:
        """The lines of the kernel function, indented by one level."""
        with self._source.indented():
            if len(self._live) == 1:
                self._single(self._live[0])
            elif self._live:
                self._packed()
            else:
                self._source.line("pass", "no task has rows")
        return self._source.text()

    def _programs(self, number: int, task: RowTask) -> sympy.Expr:
        """How many programs the task takes."""
        total, block = self._domains[number].total, self._block(number, task)
        return total if block == 1 else FloorDiv(total + block - 1, block)

    def _block(self, number: int, task: RowTask) -> int:
        """Rows per program: no more than there are."""
        return 1 if task.heads > 1 or self._domains[number].total == 1 else self._launch.rows[number]

    def _single(self, number: int) -> None:
        self._banner(number)
        self._source.line("pid = tl.program_id(0)")
        self._steps(number, "pid")

    def _packed(self) -> None:
        self._source.line("pid = tl.program_id(0)")
        ends = self._ends()
        for place, number in enumerate(self._live):
            self._source.line()
            self._source.line(_condition(place, len(self._live), ends[place]))
            with self._source.indented():
                self._banner(number)
                program = "pid"
                if place:
                    program = self._names.fresh("program", str(number))
                    self._source.line(f"{program} = pid - {ends[place - 1]}")
                self._steps(number, program)

    def _ends(self) -> list[str]:
        """The program number at which each live task ends: a literal, or a variable for all but the last."""
        sums = list(accumulate(self._counts[k] for k in self._live))
        ends = []
        for number, total in zip(self._live, sums, strict=True):
            name = spell(total)
            if not isinstance(total, sympy.Integer) and number != self._live[-1]:
                name = self._names.fresh(f"end_{number}")
                self._source.line(f"{name} = {spell(total)}", f"programs of tasks 0 to {number}")
            ends.append(name)
        return ends

    def _banner(self, number: int) -> None:
        task = self._tasks[number]
        self._source.line("", f"task {number}: {printable(task.title)}")
        for source in task.sources:
            self._source.line("", f"  from {printable(source)}")

    def _steps(self, number: int, program: str) -> None:
        task = self._tasks[number]
        suffix = str(number) if len(self._live) > 1 else ""
        domain, block = self._domains[number], self._block(number, task)
        frame = Frame(task, domain, plan_task(task), block, suffix, self._launch.packed)
        scope = Scope(frame, self._names, self._source)
        scope.open_rows(program)
        for step in loads_first(task.steps):
            if isinstance(step, Apply):
                self._source.line("", printable(brief(step.word)))
            emitter_of(step).emit(scope, step)


def loads_first(steps: Sequence[TaskStep]) -> list[TaskStep]:
    """The steps with each load as early as its index allows: a load behind a store would wait for it, and the
    loads of a row for each other.
    """
    known: set[Value] = set()
    first: list[TaskStep] = []
    rest: list[TaskStep] = []
    for step in steps:
        if isinstance(step, Load) and known.issuperset(index.value for index in step.operand.indices):
            known.add(step.out)
            first.append(step)
        else:
            rest.append(step)
    return first + rest


def _condition(place: int, live: int, end: str) -> str:
    if place == live - 1:
        return "else:"
    return f"{'elif' if place else 'if'} pid < {end}:"


def brief(word: Word) -> str:
    """The word with those of its parameters that differ from their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(word)}
    shown = [f"{k}={format_static(v)}" for k, v in word.static().items() if v != defaults[k]]
    return f"{word.kind}{{{' '.join(shown)}}}" if shown else word.kind
