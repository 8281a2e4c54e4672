"""One case: a graph as vLLM hands it over, kernelweld's default pipeline, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from engine import ENGINE
from graphs import Graph, close, graph_of
from torch import Tensor

from kernelweld.ir.report import NearMiss
from kernelweld.passes.pipeline import DEFAULT, PipelineResult

#: kernelweld's own pipeline; on a CPU it would inline references in place of kernels.
PIPELINE = f"{DEFAULT}{{target=triton}}"


@dataclass
class Outcome:
    """A graph after the passes. ``before`` and ``after`` are all that a run leaves: results, written
    arguments, the caches behind the graph; ``log`` the calls that reach beyond their arguments.
    """

    graph: Graph
    result: PipelineResult
    before: list[Tensor]
    log: list[str] = field(default_factory=list)

    @property
    def welds(self) -> list[str]:
        assert self.result.context.plan is not None
        return [weld.name for weld in self.result.context.plan.welds]

    @property
    def misses(self) -> list[NearMiss]:
        assert self.result.context.plan is not None
        return [*self.result.context.near_misses, *self.result.context.plan.near_misses]

    def reasons(self, kind: str) -> list[str]:
        """Why words or operators of ``kind`` are in no weld."""
        return [miss.reason for miss in self.misses if miss.kind == kind]

    def count(self, target: object) -> int:
        """How many nodes call ``target``, directly or in a functional call."""
        nodes = self.graph.gm.graph.nodes
        return sum(target in (n.target, *n.args[:1]) for n in nodes if n.op == "call_function")

    def check(self) -> None:
        """The values are those of the graph before, and calls that reach beyond it are in the same order."""
        found, log = _run(self.graph)
        assert log == self.log
        assert close(found, self.before)


def weld(
    fn: Callable[..., object],
    inputs: Sequence[Tensor],
    *,
    dynamic: Sequence[int] = (),
    edit: Callable[[torch.fx.Graph], None] | None = None,
) -> Outcome:
    """``fn`` through the pipeline. The first dimension of the inputs numbered ``dynamic`` is a symbol, as
    that of all is in vLLM; it costs time, so a few cases have it. ``edit`` changes the captured graph before,
    as a pass of vLLM does.
    """
    graph = graph_of(fn, inputs, dynamic=dynamic)
    if edit is not None:
        edit(graph.gm.graph)
        graph.gm.recompile()
    before, log = _run(graph)
    return Outcome(graph, graph.passed(PIPELINE), before, log)


def _run(graph: Graph) -> tuple[list[Tensor], list[str]]:
    ENGINE.reset()
    results = graph.run()
    cached = [x for name in sorted(ENGINE.caches) for x in ENGINE.caches[name]]
    return [*results, *cached], list(ENGINE.log)
