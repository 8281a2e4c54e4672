"""``route``: a router's scores and its choice of experts become one call of the operator ``route``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.errors import UnknownName
from kernelweld.ir import ExpertTopK, RouterScores, word_of
from kernelweld.ir.origin import source_line, sources_of
from kernelweld.ir.report import NearMiss, WeldReport
from kernelweld.kernels.route import DTYPES, EPS, route
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.effects import eliminate_dead
from kernelweld.passes.restore import restore
from kernelweld.patterns.aliasing import Writes

TARGETS = ("auto", "triton", "reference")

#: What the call inherits from the choice that it replaces.
_INHERITED = ("val", "stack_trace", "nn_module_stack", "source_fn_stack", "from_node")


@dataclass(frozen=True)
class RoutePass(Pass):
    """Makes ``expert_topk(router_scores(x, weight), bias)`` one call on GPUs and restores all other routers.

    Before: ``%2 = router_scores(%x, %w); %3 = expert_topk(%2, %bias)``
    After: ``%3 = route(%x, %w, %bias)``, one launch for few rows

    ``target="auto"`` does so for CUDA tensors, ``"triton"`` on any device, ``"reference"`` on none. A router
    stays as it was written where others read its scores, or x is written to between scores and choice.
    """

    name = "route"

    target: str = "auto"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        if self.target not in TARGETS:
            raise UnknownName("route target", self.target, TARGETS)
        writes, routed = Writes(gm.graph), 0
        choices = list(_words(gm.graph, ExpertTopK))
        for choice in choices:
            if not self._is_wanted(choice):
                continue
            reason = _obstacle(choice, writes.between)
            if reason is None:
                context.operators.append(_describe(choice))
                _prepare(choice.meta["val"][0].device)
                _replace(choice)
                routed += 1
            else:
                context.near_misses.append(_near_miss(choice, reason))
        left = [*_words(gm.graph, ExpertTopK), *_words(gm.graph, RouterScores)]
        for node in left:
            restore(gm.graph, node)
        eliminate_dead(gm.graph)
        return PassResult(modified=bool(choices or left), count=routed)

    def _is_wanted(self, choice: fx.Node) -> bool:
        on_gpu = choice.meta["val"][0].device.type == "cuda"
        return self.target == "triton" or (self.target == "auto" and on_gpu)


def _prepare(device: torch.device) -> None:
    """Makes the workspace of a GPU now: made when a CUDA graph is captured, it would belong to the graph."""
    if device.type == "cuda" and torch.cuda.is_available():
        from kernelweld.kernels.route_launch import workspace

        workspace(device)


def _words(graph: fx.Graph, kind: type[ExpertTopK | RouterScores]) -> Iterable[fx.Node]:
    return [node for node in graph.nodes if isinstance(word_of(node), kind)]


def _obstacle(
    choice: fx.Node, written: Callable[[fx.Node, fx.Node, tuple[fx.Node, ...]], fx.Node | None]
) -> str | None:
    """Why no call can stand for a choice and its scores."""
    scores, word = choice.args[0], word_of(choice)
    assert isinstance(scores, fx.Node) and isinstance(word, ExpertTopK)
    if not isinstance(word_of(scores), RouterScores):
        return f"%{scores.name} are no scores of a router"
    others = [user for user in scores.users if user is not choice]
    if others:
        return f"the scores %{scores.name} are also used by %{others[0].name}"
    if word.renormalise and word.eps > EPS:
        return f"{word.eps} is added to the sum of its weights"
    for operand in scores.args:
        assert isinstance(operand, fx.Node)
        if operand.meta["val"].dtype not in DTYPES:
            return f"%{operand.name} is {operand.meta['val'].dtype}"
        if (writer := written(scores, choice, (operand,))) is not None:
            return f"%{writer.name} writes to %{operand.name} before experts are chosen"
    return None


def _describe(choice: fx.Node) -> WeldReport:
    scores = choice.args[0]
    assert isinstance(scores, fx.Node)
    sources = dict.fromkeys((*sources_of(scores), *sources_of(choice)))
    words = (str(word_of(scores)), str(word_of(choice)))
    return WeldReport("route", words, tuple(sources), ("router_scores -> expert_topk",))


def _replace(choice: fx.Node) -> None:
    """Puts the call in the place of ``choice`` and erases its scores."""
    scores, word = choice.args[0], word_of(choice)
    assert isinstance(scores, fx.Node) and isinstance(word, ExpertTopK)
    scoring = word_of(scores)
    assert isinstance(scoring, RouterScores)
    rule = {
        "k": word.k,
        "groups": word.groups,
        "top_groups": word.top_groups,
        "scoring": scoring.scoring,
        "renormalise": word.renormalise,
        "scale": word.scale,
    }
    if scoring.logits_dtype != torch.float32:
        rule["logits"] = scoring.logits_dtype
    bias = choice.args[1] if len(choice.args) > 1 else None
    with choice.graph.inserting_before(choice):
        call = choice.graph.call_function(route.overload, (*scores.args, bias), rule)  # type: ignore[arg-type]
    call.meta = {key: choice.meta[key] for key in _INHERITED if key in choice.meta}
    choice.replace_all_uses_with(call)
    choice.graph.erase_node(choice)
    scores.graph.erase_node(scores)


def _near_miss(choice: fx.Node, reason: str) -> NearMiss:
    line = source_line(choice.meta)
    remedy = "Use the scores for nothing but the choice, and leave x as it is until then."
    return NearMiss(
        choice.name, "expert_topk", line, f"not one call: {reason}", "legality", choice.name, line, remedy
    )
