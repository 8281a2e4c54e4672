"""The pass: a router becomes one call where it is wanted and may, and is as it was everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kernelweld.errors import UnknownName
from kernelweld.integrations.aot import capture
from kernelweld.ir import word_of
from kernelweld.kernels.route import route
from kernelweld.passes.base import PassContext
from kernelweld.passes.launches import predict
from kernelweld.passes.pipeline import DEFAULT, Pipeline
from kernelweld.passes.route import RoutePass
from kernelweld.passes.summary import run_reported

WANTED = "canonicalize,raise,route{target=triton}"


def router(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(F.linear(x, weight).float())
    ids = torch.topk(scores + bias, 4, dim=-1)[1]
    weights = scores.gather(1, ids)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5, ids


def scores_kept(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    scores = torch.sigmoid(F.linear(x, weight))
    ids = torch.topk(scores + bias, 4, dim=-1)[1]
    return scores.gather(1, ids), ids, scores


def large_eps(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = F.linear(x, weight).softmax(-1).topk(4)
    return values / (values.sum(-1, keepdim=True) + 1e-3), ids


def half(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return router(x.half(), weight.half(), bias)


def graph_of(
    function: Callable[..., Any], rows: int = 3, dtype: torch.dtype = torch.float32
) -> tuple[fx.GraphModule, Callable[[], list[Tensor]]]:
    """The captured graph, and a call of it as it is then."""
    torch.manual_seed(0)
    inputs = (torch.randn(rows, 24).to(dtype), torch.randn(16, 24).to(dtype), torch.randn(16))
    found = capture(function, inputs)
    gm, given = found.graphs[0], found.inputs[0]

    def run() -> list[Tensor]:
        gm.recompile()
        return [x for x in gm(*given) if isinstance(x, Tensor)]

    return gm, run


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.target is route.overload]


def words(gm: fx.GraphModule) -> list[str]:
    return [word.kind for node in gm.graph.nodes if (word := word_of(node)) is not None]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_call_with_the_same_results(rows: int, dtype: torch.dtype) -> None:
    gm, run = graph_of(router, rows, dtype)
    expected = run()
    Pipeline.from_text(WANTED, strict=True).run(gm)
    (call,) = calls(gm)
    assert call.kwargs.get("logits", torch.float32) == dtype
    assert (words(gm), sum(node.op == "call_function" for node in gm.graph.nodes)) == ([], 3)
    for actual, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


def test_the_report_has_it_with_its_lines_as_one_launch() -> None:
    gm, _ = graph_of(router)
    _, report = run_reported(Pipeline.from_text(WANTED, strict=True), gm)
    (weld,) = report.welds
    assert (weld.name, weld.tasks) == ("route", ("router_scores -> expert_topk",))
    assert {line.rpartition("/")[2].partition(":")[0] for line in weld.sources} == {"test_route.py"}
    assert len(weld.sources) == 4
    assert report.words == {"expert_topk": 1, "router_scores": 1}
    assert (report.launches.after, predict(gm.graph)) == (1, 1)
    assert report.launches.before > 2


def test_many_rows_are_two_launches() -> None:
    gm, _ = graph_of(router, 500)
    Pipeline.from_text(WANTED, strict=True).run(gm)
    assert predict(gm.graph) == 2


@pytest.mark.parametrize("rows", [1, 3])
def test_on_a_cpu_all_stays(rows: int) -> None:
    gm, run = graph_of(router, rows)
    expected = run()
    result = Pipeline.from_text(DEFAULT, strict=True).run(gm)
    has_gemm = any(node.target is torch.ops.aten.mm.default for node in gm.graph.nodes)
    assert (calls(gm), words(gm), result.context.operators) == ([], [], [])
    assert has_gemm is (rows > 1)  # one row is a row sum
    for actual, wanted in zip(run(), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


REFUSED = [
    (scores_kept, "are also used by %output"),
    (large_eps, "0.001 is added to the sum"),
    (half, "is torch.float16"),
]


@pytest.mark.parametrize(("function", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_left_as_it_was(function: Callable[..., Any], reason: str) -> None:
    gm, run = graph_of(function)
    expected = run()
    result = Pipeline.from_text(WANTED, strict=True).run(gm)
    (miss,) = result.context.near_misses
    assert (miss.kind, miss.rule) == ("expert_topk", "legality")
    assert reason in miss.reason
    assert (calls(gm), words(gm)) == ([], [])
    assert all(torch.equal(a, b) for a, b in zip(run(), expected, strict=True))


def test_a_write_to_x_in_between_is_respected() -> None:
    gm, _ = graph_of(router)
    Pipeline.from_text("canonicalize,raise", strict=True).run(gm)
    scores, choice = (node for node in gm.graph.nodes if word_of(node) is not None)
    x = scores.args[0]
    with gm.graph.inserting_before(choice):
        gm.graph.call_function(torch.ops.aten.copy_.default, (x, x)).meta["val"] = x.meta["val"]
    context = PassContext()
    assert RoutePass("triton").run(gm, context).count == 0
    assert "writes to" in context.near_misses[0].reason


def test_unknown_target() -> None:
    gm, _ = graph_of(router)
    with pytest.raises(UnknownName, match="route target 'gpu'"):
        RoutePass("gpu").run(gm, PassContext())
