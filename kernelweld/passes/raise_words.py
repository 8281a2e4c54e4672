"""``raise``: subgraphs that compute a word become one node that calls it."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import fx

from kernelweld.ir import insert_word
from kernelweld.ir.origin import ORIGIN, STOPPED, Stop, record_origin, source_line
from kernelweld.ir.report import NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.canonicalize.strides import is_contiguous
from kernelweld.passes.restore import restore_all
from kernelweld.patterns.aliasing import Writes, reads_by_strides
from kernelweld.patterns.pattern import Match, NoMatch, Pattern
from kernelweld.patterns.table import load, patterns

#: What a word node inherits from the node whose value it takes over.
_INHERITED = (
    "val",
    "tensor_meta",
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "original_aten",
    "from_node",
)


@dataclass(frozen=True)
class RaisePass(Pass):
    """Raises every match of the patterns, in the order of their table, each anchor once.

    Before: ``mul(weight, cvt(mul(cvt(x), rsqrt(add(mean(pow(cvt(x), 2)), eps)))))``
    After: ``rms_norm(x, weight, None, eps=…, scale="w", …)``

    ``patterns``: those to try, by name. Other distributions offer more in the group ``kernelweld.patterns``.

    A word node has the metadata of the value it replaces and, under ``ORIGIN``, the nodes it came from.
    Anchors that look like a word and are none become near misses of the context, the nearest reason of each.
    """

    name: ClassVar[str] = "raise"

    patterns: tuple[str, ...] = field(default_factory=lambda: tuple(patterns()))

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        sweep = _Sweep(gm.graph)
        for name in self.patterns:
            sweep.run(load(name)())
        context.near_misses.extend(sweep.near_misses())
        return PassResult(sweep.raised > 0, sweep.raised)


class _Sweep:
    """One run over a graph: its anchors by operator, what was raised, and the nearest miss of each anchor."""

    def __init__(self, graph: fx.Graph) -> None:
        self.raised = 0
        self._writes = Writes(graph)
        self._misses: dict[fx.Node, tuple[Pattern, NoMatch]] = {}
        self._gone: set[fx.Node] = set()
        self._by_target: Mapping[object, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if node.op == "call_function":
                self._by_target[node.target].append(node)

    def run(self, pattern: Pattern) -> None:
        anchors = (node for target in pattern.anchors for node in self._by_target.get(target, ()))
        for anchor in sorted(anchors):
            if anchor in self._gone:
                continue
            found = pattern.match(anchor)
            if isinstance(found, Match):
                found = self._safe(found)
            if isinstance(found, NoMatch):
                self._note(anchor, pattern, found)
            else:
                self._replace(found)

    def near_misses(self) -> Iterable[NearMiss]:
        """The nearest miss of every anchor that is still there, in graph order."""
        for anchor in sorted(node for node in self._misses if node not in self._gone):
            yield _near_miss(anchor, *self._misses[anchor])

    def _note(self, anchor: fx.Node, pattern: Pattern, miss: NoMatch) -> None:
        best = self._misses.get(anchor)
        if miss.stage >= (
            best[1].stage if best else 1
        ):  # of equals the later: patterns go from rare to common
            self._misses[anchor] = (pattern, miss)

    def _safe(self, match: Match) -> Match | NoMatch:
        """The word reads its operands where its output stands: nothing may write to them before.

        Its result may have other strides than the value it replaces, or another place in memory: nothing may
        read it by strides. A contiguous result has none but its own.
        """
        for output in match.outputs if not match.keeps_strides else ():
            bits = torch.ops.aten.view.dtype if is_contiguous(output) else None
            for user in output.users:
                if reads_by_strides(user) and user.target is not bits:
                    return NoMatch("%{} reads the result by its strides", user, (user,), stage=2)
        written = self._writes.between(match.nodes[0], min(match.outputs), match.operands)
        if written is None:
            return match
        return NoMatch("%{} writes to an operand between its uses", written, (written,), stage=2)

    def _replace(self, match: Match) -> None:
        replace(match)
        self.raised += 1
        for node in reversed(match.nodes):
            if not node.users and node not in self._gone:
                node.graph.erase_node(node)
                self._gone.add(node)


def _near_miss(anchor: fx.Node, pattern: Pattern, miss: NoMatch) -> NearMiss:
    return NearMiss(
        anchor.name,
        pattern.kind,
        source_line(anchor.meta),
        miss.reason,
        "pattern",
        miss.node.name,
        source_line(miss.node.meta),
        miss.remedy or pattern.remedy,
    )


def replace(match: Match) -> fx.Node:
    """Puts the word of ``match`` before its outputs and takes over their users; dead nodes stay."""
    place = min(match.outputs)
    inputs = [operand for operand in match.operands if operand is not None]
    with place.graph.inserting_before(place):
        word = insert_word(place.graph, match.word, match.operands)
    word.meta = {key: place.meta[key] for key in _INHERITED if key in place.meta}
    word.meta[ORIGIN] = record_origin(match.nodes, inputs, match.outputs, match.sizes)
    if match.stopped is not None:
        word.meta[STOPPED] = Stop(match.stopped.reason, source_line(match.stopped.node.meta))
    if match.word.results == 1:
        place.replace_all_uses_with(word)
        return word
    word.meta["val"] = tuple(output.meta["val"] for output in match.outputs)
    with place.graph.inserting_before(place):
        for index, output in enumerate(match.outputs):
            result = place.graph.call_function(operator.getitem, (word, index))
            result.meta = {key: output.meta[key] for key in _INHERITED if key in output.meta}
            output.replace_all_uses_with(result)
    return word


def unraise(gm: fx.GraphModule) -> int:
    """Puts every word node of ``gm`` back to exactly the nodes it came from; how many there were."""
    count = restore_all(gm)
    if count:
        gm.recompile()
    return count
