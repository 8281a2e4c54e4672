"""The graphs of a target at two points of a pipeline, with the launches that are predicted there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from kernelweld.cli.captured import captured
from kernelweld.cli.points import index_of, point
from kernelweld.cli.running import chosen
from kernelweld.cli.targets import Target
from kernelweld.ir.alignment import Point
from kernelweld.ir.printer import operation
from kernelweld.passes.base import PassResult
from kernelweld.passes.instruments import Instrument, Step
from kernelweld.passes.launches.listing import listed
from kernelweld.passes.pipeline import Pipeline


@dataclass(frozen=True)
class Span:
    """Two points of a pipeline by their names; passes before each are counted."""

    start: str
    end: str
    first: int
    last: int

    @classmethod
    def parsed(cls, pipeline: str, start: str, end: str | None) -> Span:
        """From names as the command line has them; without ``end`` up to the last pass."""
        names = [one.name for one in Pipeline.from_text(pipeline).passes]
        end = point(names, len(names) - 1) if end is None else end
        return cls(start, end, index_of(names, start), index_of(names, end))


@dataclass(frozen=True)
class Side:
    """A graph at one point: its lines, and the operators of each of its launches in order."""

    lines: tuple[str, ...]
    launches: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """The graph of this number at both points."""

    graph: int
    before: Side
    after: Side


def differences(
    target: Target,
    pipeline: str,
    span: Span,
    *,
    graph: int | None = None,
    merge: bool = True,
    stop: bool = False,
) -> list[Difference]:
    """What the passes between the points of ``span`` change in each graph of one call of ``target``, or in
    that of number ``graph``. A pass that fails raises ``PassFailed``. ``stop``: see ``captured``.
    """
    graphs = captured(target, merge=merge, stop=stop).graphs
    return [Difference(number, *_sides(gm, pipeline, span)) for number, gm in chosen(graphs, graph)]


def _sides(gm: fx.GraphModule, pipeline: str, span: Span) -> Sequence[Side]:
    watch = Sides(sorted((span.first, span.last)))
    passes = Pipeline.from_text(pipeline, (watch,), strict=True)
    passes.run(gm)
    return watch.found if span.first <= span.last else watch.found[::-1]


@dataclass
class Sides(Instrument):
    """Keeps the graph at each of ``wanted`` points, which count passes, under the names of the first."""

    wanted: Sequence[int]
    found: list[Side] = field(default_factory=list)
    first: Point | None = None

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        self._keep(0, gm.graph)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        self._keep(step.index, gm.graph)

    def _keep(self, index: int, graph: fx.Graph) -> None:
        for _ in range(self.wanted.count(index)):
            self.first = self.first or Point(graph)
            self.found.append(Side(self.first.lines_of(graph), _launches(graph)))


def _launches(graph: fx.Graph) -> tuple[str, ...]:
    """Each predicted launch by the operators that it calls; views are none of them."""
    return tuple(", ".join(dict.fromkeys(map(operation, launch.nodes))) for launch in listed(graph))
