"""Every weld of a target run beside the nodes it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from torch import fx

from kernelweld.cli.captured import PIPELINE, captured
from kernelweld.cli.render import launches, layers_of, plain_table, word_counts
from kernelweld.cli.targets import Target
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.ir.report import GraphReport
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported
from kernelweld.passes.verification.check import WeldCheck, check_weld
from kernelweld.passes.weld import WeldPlan


@dataclass(frozen=True)
class RecordChecks(Pass):
    """Checks every planned weld and keeps its errors and its kernel; changes nothing."""

    name = "record-checks"

    checks: list[WeldCheck] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        self.checks.extend(map(check_weld, plan.welds))
        self.kernels.extend(emit(program_of(weld)[0]) for weld in plan.welds)
        return PassResult(modified=False, count=len(plan.welds))


@dataclass(frozen=True)
class Checked:
    """One target: its graphs' reports, and the check and the kernel of every weld."""

    graphs: tuple[GraphReport, ...]
    checks: tuple[WeldCheck, ...]
    kernels: tuple[Kernel, ...]
    layers: int | None

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def check(target: Target) -> Checked:
    """Fuses every graph of one call of ``target`` and runs each kernel once, interpreted or on the GPU.

    A pass that fails raises ``PassFailed``.
    """
    record = RecordChecks()
    *first, lower = Pipeline.from_text(PIPELINE).passes
    pipeline = Pipeline((*first, record, lower), strict=True)
    graphs = tuple(run_reported(pipeline, graph)[1] for graph in captured(target).graphs)
    return Checked(graphs, tuple(record.checks), tuple(record.kernels), layers_of(target))


def show(console: Console, title: str, checked: Checked) -> None:
    """Words, launches, and welds of one name together, with their largest error."""
    console.print(f"[bold]{escape(title)}[/]")
    for graph in checked.graphs:
        console.print(f"  words     {word_counts(graph.words)}")
        console.print(f"  launches  {launches(graph, checked.layers)}")
    table = plain_table("welds", "kernel", "largest error", "of the original nodes", "contract")
    for name in dict.fromkeys(check.name for check in checked.checks):
        table.add_row(*_row(name, [check for check in checked.checks if check.name == name]))
    console.print(table)


def _row(name: str, checks: Sequence[WeldCheck]) -> tuple[str, ...]:
    errors = [error for check in checks for error in check.errors]
    worst = max(errors, key=lambda error: (not error.holds, error.weld))
    verdict = "holds" if worst.holds else "[red]BROKEN[/]"
    return f"{len(checks)} ×", escape(name), f"{worst.weld:.2e}", f"{worst.original:.2e}", verdict
