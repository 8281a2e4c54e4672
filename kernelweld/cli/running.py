"""A pipeline on the graphs of a target, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.markup import escape
from torch import fx

from kernelweld.cli.captured import captured
from kernelweld.cli.render import plain_table
from kernelweld.cli.targets import Target
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.errors import BadTarget, KernelweldError
from kernelweld.ir.printer import format_graph
from kernelweld.passes.instruments import Instrument
from kernelweld.passes.pipeline import Pipeline, PipelineResult


@dataclass(frozen=True)
class Ran:
    """The graph of this number after its passes, as text; None if one of them failed."""

    number: int
    text: str | None
    result: PipelineResult

    def as_dict(self) -> Mapping[str, object]:
        """As JSON has it."""
        steps = [
            {"pass": s.text, "modified": s.result.modified, "count": s.result.count, "seconds": s.seconds}
            for s in self.result.steps
        ]
        failure = None if self.result.failure is None else str(self.result.failure)
        return {"graph": self.number, "text": self.text, "passes": steps, "failure": failure}


@dataclass(frozen=True)
class Running:
    """The graph of ``number`` of ``among``, before its passes."""

    target: str
    number: int
    among: int
    gm: fx.GraphModule
    pipeline: Pipeline

    def done(self) -> Ran:
        """Runs the passes. Raises ``BadTarget`` where an instrument cannot run the graph as it is."""
        try:
            with exact_casts():
                result = self.pipeline.run(self.gm)
        except (KernelweldError, OSError):
            raise
        except Exception as error:  # what a graph raises on random inputs
            first = next(iter(str(error).strip().splitlines()), "")
            reason = f"graph {self.number} does not run on random inputs: {type(error).__name__}: {first}"
            raise BadTarget(self.target, reason, "Leave --verify-each out.") from error
        text = format_graph(self.gm.graph) if result.failure is None else None
        return Ran(self.number, text, result)


def run(
    target: Target,
    pipeline: str,
    instruments: Sequence[Instrument] = (),
    *,
    graph: int | None = None,
    merge: bool = True,
    stop: bool = False,
) -> Iterator[Running]:
    """The graphs of one call of ``target``, or that of number ``graph``. ``stop``: see ``captured``."""
    passes = Pipeline.from_text(pipeline, instruments)
    graphs = captured(target, merge=merge, stop=stop).graphs
    for number, gm in chosen(graphs, graph):
        yield Running(target.name, number, len(graphs), gm, passes)


def chosen(graphs: Sequence[fx.GraphModule], graph: int | None) -> list[tuple[int, fx.GraphModule]]:
    """All graphs with their numbers, or the one that ``--graph`` asks for."""
    if graph is not None and graph > len(graphs):
        reason = f"there {'is 1 graph' if len(graphs) == 1 else f'are {len(graphs)} graphs'}"
        raise typer.BadParameter(reason, param_hint="--graph")
    return [(i, gm) for i, gm in enumerate(graphs, 1) if graph in (None, i)]


def show_time(console: Console, ran: Sequence[Ran]) -> None:
    """The time of each pass, without that of printing and checking."""
    table = plain_table("graph", "pass", "ms")
    for one in ran:
        for step in one.result.steps:
            table.add_row(str(one.number), escape(step.text), f"{step.seconds * 1e3:.1f}")
    console.print(table)
