"""Every weld of a target run beside the nodes it replaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape

from kernelweld.cli.render import launches, plain_table, word_counts
from kernelweld.cli.welded import Welded, on_device
from kernelweld.errors import VerificationFailed
from kernelweld.ir.report import GraphReport
from kernelweld.passes.verification.check import check_specimen
from kernelweld.passes.verification.contract import ErrorReport
from kernelweld.passes.verification.specimen import Specimen


@dataclass(frozen=True)
class Verdict:
    """One weld, which occurs ``count`` times: the worst errors of each of its outputs on all draws, and the
    model's source lines.
    """

    name: str
    count: int
    errors: tuple[ErrorReport, ...]
    sources: tuple[str, ...] = ()

    @property
    def worst(self) -> ErrorReport:
        return max(self.errors, key=_badness)

    @property
    def holds(self) -> bool:
        return self.worst.holds

    @property
    def failure(self) -> VerificationFailed:
        """The error that says that the contract does not hold."""
        worst = self.worst
        where = self.sources[0] if self.sources else ""
        return VerificationFailed(self.name, worst.weld, worst.allowed, source=where)

    def as_dict(self) -> dict[str, object]:
        """As JSON has it; an error is null where the weld is not finite and its nodes are."""
        outputs = [_as_dict(error) for error in self.errors]
        return {
            "name": self.name,
            "count": self.count,
            "holds": self.holds,
            "sources": list(self.sources),
            "outputs": outputs,
        }


@dataclass(frozen=True)
class Checked:
    """One target: its graphs' reports, and what came out for each of its welds."""

    graphs: tuple[GraphReport, ...]
    verdicts: tuple[Verdict, ...]
    layers: int | None

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


def check(
    found: Welded,
    *,
    samples: int = 1,
    seed: int = 0,
    device: str = "cpu",
    starting: Callable[[str], None] = lambda text: None,
) -> Checked:
    """Runs each weld on ``samples`` draws on ``device``, interpreted or compiled as this process does.

    ``starting`` is told of each weld before it runs.
    """
    verdicts = []
    for number, (one, count) in enumerate(found.welds, 1):
        starting(f"{one.name} ({number} of {len(found.welds)})")
        verdicts.append(_verdict(_on(one, device), count, range(seed, seed + samples), device))
    return Checked(found.graphs, tuple(verdicts), found.layers)


def _verdict(one: Specimen, count: int, seeds: Sequence[int], device: str) -> Verdict:
    draws = [check_specimen(one, seed, device=device).errors for seed in seeds]
    errors = tuple(max(output, key=_badness) for output in zip(*draws, strict=True))
    sources = dict.fromkeys(line for task in one.program.tasks for line in task.sources)
    return Verdict(one.name, count, errors, tuple(sources))


def _badness(error: ErrorReport) -> tuple[bool, float]:
    return not error.holds, error.weld


def _on(one: Specimen, device: str) -> Specimen:
    return replace(one, original=on_device(one.original, device), computed=on_device(one.computed, device))


def _as_dict(error: ErrorReport) -> dict[str, object]:
    numbers = {"error": error.weld, "original": error.original, "allowed": error.allowed}
    shown = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"output": error.output, "holds": error.holds, **shown}


def show(console: Console, title: str, checked: Checked) -> None:
    """Words, launches, and welds of one name together, with their largest error."""
    console.print(f"[bold]{escape(title)}[/]")
    for graph in checked.graphs:
        console.print(f"  words     {word_counts(graph.words)}")
        console.print(f"  launches  {launches(graph, checked.layers)}")
    if not checked.verdicts:
        console.print("  no welds")
        return
    table = plain_table("welds", "kernel", "largest error", "of the original nodes", "contract")
    for name in dict.fromkeys(verdict.name for verdict in checked.verdicts):
        table.add_row(*_row([verdict for verdict in checked.verdicts if verdict.name == name]))
    console.print(table)


def _row(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    worst = max((verdict.worst for verdict in verdicts), key=_badness)
    contract = "holds" if worst.holds else "[red]BROKEN[/]"
    times = sum(verdict.count for verdict in verdicts)
    errors = (f"{worst.weld:.2e}", f"{worst.original:.2e}")
    return f"{times} ×", escape(verdicts[0].name), *errors, contract
