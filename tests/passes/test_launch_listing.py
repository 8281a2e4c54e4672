"""The predicted launches one by one: as many as are predicted, and what each of them computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import RMSNorm, insert_word
from kernelweld.ir.origin import ORIGIN, record_origin
from kernelweld.passes.launches import predict
from kernelweld.passes.launches.listing import listed

Function = Callable[..., object]


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def norm_then_gemms(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = norm(x, w)
    return (y @ y.T).relu() * 2, (y + 1) @ y.T


def chosen(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.topk(x * w, 2)


def stored(x: Tensor, w: Tensor) -> Tensor:
    total = x + w
    x.copy_(total)
    return total.view(2, -1)


def traced(function: Function) -> fx.Graph:
    graph = make_fx(function, select_decomp_table(), "fake")(torch.randn(8, 64), torch.randn(64)).graph
    graph.eliminate_dead_code()
    return graph


def operators(nodes: tuple[fx.Node, ...]) -> list[str]:
    return [str(node.target).split(".")[1] for node in nodes]


@pytest.mark.parametrize("function", [norm, norm_then_gemms, chosen, stored], ids=lambda f: f.__name__)
def test_as_many_as_predicted(function: Function) -> None:
    graph = traced(function)
    assert len(listed(graph)) == predict(graph) > 0


def test_what_each_computes_and_writes() -> None:
    first, mm, after, again = listed(traced(norm_then_gemms))
    assert operators(first.nodes) == ["pow", "mean", "add", "rsqrt", "mul", "mul", "add"]
    assert operators(first.writes) == ["mean", "mul", "add"]
    assert [one.is_library for one in (first, mm, after, again)] == [False, True, False, True]
    assert operators(mm.nodes) == operators(again.nodes) == ["mm"]
    assert operators(after.nodes) == ["relu", "mul"], "what is in memory is read and not computed again"


def test_a_library_call_of_two_launches_is_listed_twice() -> None:
    product, *calls = listed(traced(chosen))
    assert operators(product.writes) == ["mul"]
    assert [operators(call.nodes) for call in calls] == [["topk"], ["topk"]]


def test_words_are_the_nodes_they_came_from() -> None:
    graph = traced(norm)
    x, w, *nodes, output = graph.nodes
    with graph.inserting_before(output):
        word = insert_word(graph, RMSNorm(eps=1e-6, dtype=torch.float32), [x, w])
    word.meta["val"] = nodes[-1].meta["val"]
    word.meta[ORIGIN] = record_origin(nodes, [x, w], nodes[-1:])
    nodes[-1].replace_all_uses_with(word)
    for node in reversed(nodes):
        graph.erase_node(node)
    (launch,) = listed(graph)
    assert operators(launch.nodes) == ["pow", "mean", "add", "rsqrt", "mul", "mul"]
    assert word in graph.nodes, "the graph stays as it is"
