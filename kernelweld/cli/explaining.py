"""What became of every line and word of a target: recorded before the welds are carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from kernelweld.cli.captured import PIPELINE, captured
from kernelweld.cli.targets import Target
from kernelweld.errors import PassFailed
from kernelweld.ir import RopeTable, word_of
from kernelweld.ir.origin import STOPPED, Stop, sources_of, stacks_of
from kernelweld.ir.report import NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.editing import before_lower
from kernelweld.passes.launcher import program_of
from kernelweld.passes.launches import predict
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported
from kernelweld.passes.tasks.lookup import is_looked_up
from kernelweld.passes.tasks.steps import is_write
from kernelweld.passes.verification.truth import original_graph
from kernelweld.passes.weld import Weld, WeldPlan, describe
from kernelweld.patterns.table import patterns

#: What decides about a raised word; other near misses are no words, or are welded.
_LEFT_OUT = ("cost", "legality")


@dataclass(frozen=True)
class Lines:
    """The model's lines behind a node: ``sources`` compute it, ``calls`` are the lines that called those."""

    sources: tuple[str, ...]
    calls: tuple[str, ...]

    @classmethod
    def of(cls, node: fx.Node) -> Lines:
        called = (line for stack in stacks_of(node) for line in stack[:-1])
        return cls(sources_of(node), tuple(dict.fromkeys(called)))


@dataclass(frozen=True)
class WeldSeen:
    """One weld: its kernel, its row tasks, its lines, and the launches predicted for its nodes without it."""

    kernel: str
    tasks: tuple[str, ...]
    sources: tuple[str, ...]
    before: int


@dataclass(frozen=True)
class WordSeen:
    """One raised word: the weld that holds it, or the near miss that says why none does.

    ``looked_up``: a table whose rows the kernels look up that read it, so that none has to compute it.
    """

    node: str
    kind: str
    text: str
    lines: Lines
    stopped: Stop | None
    weld: WeldSeen | None
    left: NearMiss | None
    looked_up: bool = False


@dataclass(frozen=True)
class MissSeen:
    """One anchor that was not raised, with the lines of the anchor and of the node at fault."""

    miss: NearMiss
    lines: Lines


@dataclass(frozen=True)
class CallSeen:
    """One call of the captured graph: its operator and the kinds of word whose patterns start there."""

    operator: str
    starts: tuple[str, ...]
    lines: Lines


@dataclass(frozen=True)
class GraphSeen:
    """One graph: calls as they were captured; words, welds and near misses as they were planned."""

    calls: tuple[CallSeen, ...] = ()
    words: tuple[WordSeen, ...] = ()
    welds: tuple[WeldSeen, ...] = ()
    misses: tuple[MissSeen, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """All graphs of a target, failures of passes, and graph breaks."""

    graphs: tuple[GraphSeen, ...]
    failures: tuple[PassFailed, ...]
    breaks: tuple[str, ...]


@dataclass(frozen=True)
class RecordWords(Pass):
    """Keeps what is known of words, welds and near misses; changes nothing."""

    name = "record-words"

    found: list[GraphSeen] = field(default_factory=list)

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        misses = (*context.near_misses, *plan.near_misses)
        welds = {weld: _weld(weld) for weld in plan.welds}
        left = {miss.anchor: miss for miss in misses if miss.rule in _LEFT_OUT}
        words = tuple(_words(gm.graph, welds, left))
        others = [miss for miss in misses if miss.rule not in _LEFT_OUT]
        self.found.append(GraphSeen((), words, tuple(welds.values()), tuple(_misses(gm.graph, others))))
        return PassResult(modified=False, count=len(words))


def explain(
    target: Target, pipeline: str | None = None, *, merge: bool = True, stop: bool = False
) -> Explanation:
    """Runs the passes on every graph of one call of ``target``. ``stop``: see ``captured``."""
    record = RecordWords()
    passes = before_lower(Pipeline.from_text(PIPELINE if pipeline is None else pipeline).passes, record)
    found = captured(target, merge=merge, stop=stop)
    graphs, failures = [], []
    for gm in found.graphs:
        calls = tuple(_calls(gm.graph))
        result, _ = run_reported(Pipeline(passes), gm)
        if result.failure is not None:
            failures.append(result.failure)
        seen = record.found.pop() if record.found else GraphSeen()
        graphs.append(GraphSeen(calls, seen.words, seen.welds, seen.misses))
    return Explanation(tuple(graphs), tuple(failures), found.breaks)


def _calls(graph: fx.Graph) -> Iterator[CallSeen]:
    starts: dict[object, dict[str, None]] = {}
    for pattern in patterns().values():
        for anchor in pattern.anchors:
            starts.setdefault(anchor, {})[pattern.kind] = None
    for node in graph.nodes:
        if node.op == "call_function":
            yield CallSeen(_operator(node.target), tuple(starts.get(node.target, ())), Lines.of(node))


def _operator(target: object) -> str:
    return str(target) if "." in str(target) else str(getattr(target, "__name__", target))


def _words(
    graph: fx.Graph, welds: Mapping[Weld, WeldSeen], left: Mapping[str, NearMiss]
) -> Iterator[WordSeen]:
    held = {node: seen for weld, seen in welds.items() for node in weld.steps}
    for node in graph.nodes:
        if (word := word_of(node)) is not None:
            weld = held.get(node)
            out = None if weld is not None else left.get(node.name)
            stopped = node.meta.get(STOPPED)
            looked_up = isinstance(word, RopeTable) and is_looked_up(node, held)
            yield WordSeen(node.name, word.kind, str(word), Lines.of(node), stopped, weld, out, looked_up)


def _misses(graph: fx.Graph, misses: Sequence[NearMiss]) -> Iterator[MissSeen]:
    nodes = {node.name: node for node in graph.nodes}
    for miss in misses:
        own = [line for line in (miss.source, miss.node_source) if line is not None]
        node = nodes.get(miss.anchor)
        calls = Lines.of(node).calls if node is not None else ()
        yield MissSeen(miss, Lines(tuple(dict.fromkeys(own)), calls))


def _weld(weld: Weld) -> WeldSeen:
    arguments = program_of(weld)[1]
    inputs = list(dict.fromkeys([*arguments.inputs, *arguments.caches]))
    writes = [node for node in weld.steps if is_write(node)]
    original = original_graph(weld.steps, inputs, [*arguments.outputs, *writes])
    report = describe(weld)
    return WeldSeen(report.name, report.tasks, report.sources, predict(original.graph))


def operators(calls: Sequence[CallSeen]) -> Mapping[str, int]:
    """How often each operator is called, the most frequent first."""
    return dict(Counter(call.operator for call in calls).most_common())
