"""``Stats``: what each pass did to the graph, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from kernelweld.ir.vocabulary import word_of
from kernelweld.passes.base import PassResult
from kernelweld.passes.instruments.base import Instrument, Step


@dataclass(frozen=True)
class PassStats:
    """One pass: whether it changed the graph, its count, calls before and after, words by kind after."""

    text: str
    modified: bool
    count: int
    calls_before: int
    calls_after: int
    words: Mapping[str, int]


class Stats(Instrument):
    """Collects one :class:`PassStats` for each pass that did not fail."""

    def __init__(self) -> None:
        self.passes: list[PassStats] = []
        self._calls = 0

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        self._calls = count_calls(gm.graph)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        calls, words = count_calls(gm.graph), count_words(gm.graph)
        self.passes.append(PassStats(step.text, result.modified, result.count, self._calls, calls, words))


def count_calls(graph: fx.Graph) -> int:
    """The operators that ``graph`` calls, views included."""
    return sum(node.op == "call_function" for node in graph.nodes)


def count_words(graph: fx.Graph) -> Mapping[str, int]:
    """How many words of each kind stand in ``graph``, in order of their kinds."""
    kinds = Counter(word.kind for node in graph.nodes if (word := word_of(node)) is not None)
    return dict(sorted(kinds.items()))
