"""The welds of a target, taken out of its graphs: what verbs run, compile and time one by one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from kernelweld.cli import inspect
from kernelweld.cli.captured import captured, pipeline_of
from kernelweld.cli.options import Phase
from kernelweld.cli.render import layers_of, messages
from kernelweld.cli.targets import Target
from kernelweld.codegen.task import WeldProgram, without_sources
from kernelweld.errors import UnknownName
from kernelweld.ir.report import GraphReport, NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.editing import before_lower
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported
from kernelweld.passes.verification.specimen import Specimen, specimen
from kernelweld.passes.weld import WeldPlan


@dataclass(frozen=True)
class RecordSpecimens(Pass):
    """Takes every planned weld out of its graph; changes nothing."""

    name = "record-specimens"

    found: list[Specimen] = field(default_factory=list, compare=False)

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        self.found.extend(map(specimen, plan.welds))
        return PassResult(modified=False, count=len(plan.welds))


@dataclass(frozen=True)
class Welded:
    """One target: its graphs' reports, its welds with how often each occurs, and what looked like a word and
    is none.
    """

    graphs: tuple[GraphReport, ...]
    welds: tuple[tuple[Specimen, int], ...]
    layers: int | None
    misses: tuple[NearMiss, ...] = ()

    def named(self, name: str | None) -> Welded:
        """Only the welds called ``name``; None is all. Raises ``UnknownName`` where there is none."""
        kept = tuple(entry for entry in self.welds if name in (None, entry[0].name))
        if name is not None and not kept:
            raise UnknownName("weld", name, tuple(dict.fromkeys(one.name for one, _ in self.welds)))
        return replace(self, welds=kept)

    def grouped(self, key: Callable[[Specimen], object]) -> Welded:
        """With the welds of one key as one entry, the first of them."""
        return replace(self, welds=_grouped(self.welds, key))


def work(one: Specimen) -> object:
    """Equal for welds of equal work and equal sizes."""
    return without_sources(one.program), one.buffers, one.caches, tuple(sorted(one.symbols.items()))


def work_and_nodes(one: Specimen) -> object:
    """Equal for welds of equal work that replace equal nodes: checking one is checking all."""
    return work(one), _spelled(one.original.graph), _spelled(one.computed.graph)


def kernel(one: Specimen) -> WeldProgram:
    """Equal for welds that share a kernel."""
    return without_sources(one.program)


def welded(
    target: Target,
    *,
    merge: bool = True,
    stop: bool = False,
    key: Callable[[Specimen], object] = work,
) -> Welded:
    """Plans every graph of one call of ``target``; welds of one ``key`` (layers repeat them) are one entry.

    A pass that fails raises ``PassFailed``. ``stop``: see ``captured``.
    """
    record = RecordSpecimens()
    passes = Pipeline.from_text(pipeline_of(None)).passes
    pipeline = Pipeline(before_lower(passes, record), strict=True)
    found = captured(target, merge=merge, stop=stop).graphs
    runs = [run_reported(pipeline, graph) for graph in found]
    misses = tuple(miss for result, _ in runs for miss in result.context.near_misses)
    welds = _grouped(((one, 1) for one in record.found), key)
    return Welded(tuple(report for _, report in runs), welds, layers_of(target), misses)


def named_on_the_command_line(
    target: str,
    phase: Phase,
    sizes: Mapping[str, Any],
    name: str | None,
    *,
    merge: bool,
    key: Callable[[Specimen], object],
) -> Welded:
    """The welds called ``name`` of the target that ``inspect`` builds by ``sizes``, with a word on stderr."""
    with messages().status(f"{target} {phase}: building, capturing and fusing"):
        resolved = inspect.build(target, phase, **sizes)
        return welded(resolved, merge=merge, stop=sizes["full"], key=key).named(name)


def on_device(gm: fx.GraphModule, device: str) -> fx.GraphModule:
    """A copy of ``gm`` that makes its tensors on ``device``: those made on the meta device hold nothing."""
    graph = copy.deepcopy(gm.graph)
    for node in graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device(device)}
    return fx.GraphModule(gm, graph)


def _grouped(
    welds: Iterable[tuple[Specimen, int]], key: Callable[[Specimen], object]
) -> tuple[tuple[Specimen, int], ...]:
    first: dict[object, Specimen] = {}
    counts: Counter[object] = Counter()
    for one, count in welds:
        first.setdefault(kind := key(one), one)
        counts[kind] += count
    return tuple((first[kind], count) for kind, count in counts.items())


def _spelled(graph: fx.Graph) -> tuple[str, ...]:
    """The graph's calls as text, with its nodes numbered: names differ from layer to layer."""
    number: Mapping[fx.Node, str] = {node: f"%{i}" for i, node in enumerate(graph.nodes)}

    def spelled(node: fx.Node) -> str:
        positional: Any = map_arg(node.args, lambda used: _Text(number[used]))
        named: Any = map_arg(node.kwargs, lambda used: _Text(number[used]))
        return f"{node.op} {node.target} {positional} {named}"

    return tuple(spelled(node) for node in graph.nodes if node.op != "placeholder")


class _Text(str):
    """A text that stands for itself in a ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
