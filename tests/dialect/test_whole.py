"""An operator is welded whole or stays the call that it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graphs import WEIGHED, graph_of, rand, same
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized

from kernelweld.ir import RMSNorm, Rope, word_of
from kernelweld.ir.expansion import expanded
from kernelweld.passes.base import PassContext
from kernelweld.passes.lower import LowerPass
from kernelweld.passes.plan import PlanPass
from kernelweld.passes.surroundings import Landscape
from kernelweld.passes.weld import Chain
from kernelweld.passes.whole import whole_packs

T, D, HEADS = 5, 16, 4
PREPARED = "canonicalize,dialect,raise"


def rotary(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    q, k = q.clone(), k.clone()
    torch.ops._C.rotary_embedding(positions, q, k, D, cache, True)
    return q, k


def norms_and_rotary(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    normed = []
    for x in (q, k):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, None, 1e-6)
        normed.append(out)
    torch.ops._C.rotary_embedding(positions, *normed, D, cache, True)
    return normed[0], normed[1]


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.tensor([7, 0, 3, 3, 8]), rand(T, HEADS, D), rand(T, 2, D), rand(9, D)]


def test_an_operator_that_a_weld_would_not_pay_for_is_left_exactly_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if others shared the tables, which are a launch of their own then."""
    monkeypatch.setattr("kernelweld.passes.tasks.lookup.FEW", 0)
    graph = graph_of(rotary, inputs())
    graph.passed("canonicalize")
    before, expected = graph.formulas(), graph.run()
    result = graph.passed(WEIGHED)
    assert graph.formulas() == before and same(graph.run(), expected)
    assert result.context.plan is not None and result.context.plan.welds == ()
    reasons = {miss.kind: miss.reason for miss in result.context.plan.near_misses}
    assert "one launch more (2 instead of 1)" in reasons["rope"]


@pytest.mark.parametrize("target", ["triton", "reference"])
def test_what_a_plan_lost_takes_the_rest_of_the_operator_with_it(target: str) -> None:
    """Queries and keys in launches of their own, of which one is dropped, as a check of welds may do."""
    graph = graph_of(rotary, inputs())
    graph.passed("canonicalize")
    before, expected = graph.formulas(), graph.run()
    context = PassContext()
    graph.passed(PREPARED)
    PlanPass(max_tasks=1, keep_all=True).run(graph.gm, context)
    assert context.plan is not None and len(context.plan.welds) == 2
    context.plan = replace(context.plan, welds=context.plan.welds[:1])
    LowerPass(target).run(graph.gm, context)
    graph.gm.recompile()
    assert graph.formulas() == before and same(graph.run(), expected)


def test_a_chain_that_goes_takes_others_with_it_one_after_the_other() -> None:
    """Without the rotation of the queries that of the keys is none, and the norms stay welded."""
    graph = graph_of(norms_and_rotary, inputs())
    graph.passed(PREPARED)
    calls = [node for node in graph.gm.graph.nodes if word_of(node) is not None]
    norms = [Chain((node,)) for node in calls if isinstance(word_of(node), RMSNorm)]
    ropes = [Chain((node,)) for node in calls if isinstance(word_of(node), Rope)]
    packs, lost = whole_packs(graph.gm.graph, [(*norms, ropes[1])])
    assert packs == [tuple(norms)]
    assert list(lost) == [*ropes[1].steps]
    assert lost[ropes[1].steps[0]] == "only a part of _C.rotary_embedding would be welded"
    together = Chain((*norms[1].steps, *ropes[1].steps))
    packs, lost = whole_packs(graph.gm.graph, [(norms[0],), (together,)])
    assert packs == [(norms[0],)] and set(lost) == {*together.steps}
    assert whole_packs(graph.gm.graph, [(*norms, *ropes)]) == ([(*norms, *ropes)], {})


def test_kernels_read_what_an_operator_leaves_with_its_strides() -> None:
    """The rotated queries keep the strides of the projections that they are a part of."""

    def chain(positions: Tensor, x: Tensor, w: Tensor, cache: Tensor) -> Tensor:
        q = (x @ w)[:, : HEADS * D]
        torch.ops._C.rotary_embedding(positions, q, None, D, cache, True)
        out = torch.empty(T, HEADS, D, dtype=x.dtype)
        heads = q.unflatten(-1, (HEADS, D))
        torch.ops._C.rms_norm(out, heads, None, 1e-6)
        return out

    graph = graph_of(chain, [torch.arange(T), rand(T, 32), rand(32, 2 * HEADS * D), rand(9, D)])
    expected = graph.run()
    context = PassContext()
    graph.passed(PREPARED)
    PlanPass(keep_all=True).run(graph.gm, context)
    assert context.plan is not None
    (weld,) = context.plan.welds
    norm = tuple(node for node in weld.steps if isinstance(word_of(node), RMSNorm))
    context.plan = replace(context.plan, welds=(replace(weld, chains=(Chain(norm),)),))
    LowerPass("triton").run(graph.gm, context)
    graph.gm.recompile()
    assert graph.operators == ["_C.rotary_embedding.default"] and graph.kernels == 1
    assert same(graph.run(), expected)


def test_an_operator_without_a_weld_is_a_call_that_fuses_with_nothing() -> None:
    graph = graph_of(norms_and_rotary, inputs())
    graph.passed("canonicalize")
    called = {str(n.args[0]): n for n in graph.gm.graph.nodes if n.target is auto_functionalized}
    wanted = [n.name for n in called["_C.rotary_embedding.default"].kwargs.values() if isinstance(n, fx.Node)]
    graph.passed("dialect")
    (one,) = (e for e in expanded(graph.gm.graph.nodes) if "rotary" in e.expansion.name)
    ropes = [node for node in one.nodes.values() if isinstance(word_of(node), Rope)]
    land = Landscape(graph.gm.graph, [])
    assert not any(land.conducts(node) for node in one.nodes.values())
    assert set(land.group(ropes[0])) == {*one.nodes.values()}
    reads = land.reads(land.group(ropes[0]))
    assert [word_of(n).kind if word_of(n) else n.name for n in reads] == [  # type: ignore[union-attr]
        name if name.startswith("arg") else "rms_norm" for name in wanted
    ]
    land.hold(ropes[:1])
    assert land.group(ropes[0]) == (ropes[0],) and land.operator(ropes[1]) is None
    assert all(land.conducts(node) for node in one.nodes.values() if node is not ropes[0])


def test_a_copied_graph_can_be_put_back() -> None:
    graph = graph_of(rotary, inputs())
    graph.passed("canonicalize")
    before = graph.formulas()
    graph.passed("dialect")
    copy = type(graph.gm.graph)()
    copy.output(copy.graph_copy(graph.gm.graph, {}))
    graph.gm.graph = copy
    graph.passed("lower")
    assert graph.formulas() == before
