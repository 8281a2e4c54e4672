"""One graph's report, from a run of the pipeline on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import fx

from kernelweld.ir.report import GraphReport, Launches, WeldReport
from kernelweld.passes.instruments.stats import count_words
from kernelweld.passes.launches import predict
from kernelweld.passes.pipeline import Pipeline, PipelineResult, module_of
from kernelweld.passes.weld import WeldPlan


def run_reported(pipeline: Pipeline, target: fx.GraphModule | fx.Graph) -> tuple[PipelineResult, GraphReport]:
    """Runs ``pipeline`` in place and says what it did."""
    graph = module_of(target).graph if isinstance(target, fx.Graph) else target.graph
    nodes = sum(node.op == "call_function" for node in graph.nodes)
    before = predict(graph)
    result = pipeline.run(target)
    plan = result.context.plan or WeldPlan(())
    misses = (*result.context.near_misses, *plan.near_misses)
    launches = Launches(before, predict(graph))
    words = plan.words if result.context.plan else count_words(graph)  # raised, and never planned
    words, operators = _with(words, result.context.operators), result.context.operators
    return result, GraphReport(nodes, words, misses, (*plan.reports, *operators), launches, result.seconds)


def _with(words: Mapping[str, int], operators: Sequence[WeldReport]) -> Mapping[str, int]:
    """``words`` and those that operators took the place of."""
    replaced = Counter(word.partition("{")[0] for one in operators for word in one.words)
    return dict(sorted((Counter(words) + replaced).items()))
