"""Calls whose work no result shows are neither dropped nor moved, and what they read lies as it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from graphs import graph_of, rand, same
from harness import weld
from spellings import custom_norm, ir_norm
from torch import Tensor, fx, nn
from torch._inductor.fx_passes.control_dependencies import control_deps

from kernelweld.passes.effects import eliminate_dead, has_effects, sort

EPS = 1e-6


def normed_twice(x: Tensor, w: Tensor) -> Tensor:
    return ir_norm(ir_norm(x, w, EPS) @ w.diag(), w, EPS)


def after_norm(graph: fx.Graph, call: Callable[[fx.Graph, fx.Node], fx.Node]) -> None:
    """Puts a call that nobody reads behind the first norm, as a pass that replaces its reader leaves it."""
    norm = next(n for n in graph.nodes if n.target is torch.ops.vllm_ir.rms_norm.default)
    with graph.inserting_after(norm):
        made = call(graph, norm)
    made.meta["val"] = None


def update(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(torch.ops.vllm.unified_kv_cache_update.default, (x, x, "layer 0"))


def latent_update(graph: fx.Graph, x: fx.Node) -> fx.Node:
    (scale, *_) = graph.find_nodes(op="placeholder")
    given = (x, x, "layer 0", "auto", scale)
    return graph.call_function(torch.ops.vllm.unified_mla_kv_cache_update.default, given)


def all_reduce(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(torch.ops.vllm.all_reduce.default, (x, "tp:0"))


def write_in_place(graph: fx.Graph, x: fx.Node) -> fx.Node:
    (first, *_) = graph.find_nodes(op="placeholder")
    return graph.call_function(torch.ops.aten.copy_.default, (first, x))


@pytest.mark.parametrize("call", [update, latent_update, all_reduce, write_in_place])
def test_a_call_that_nobody_reads_is_not_dead(call: Callable[[fx.Graph, fx.Node], fx.Node]) -> None:
    """#24542: a pass took a call that writes for one without effect."""
    inputs = [rand(5, 64), rand(64)]
    outcome = weld(normed_twice, inputs, dynamic=(), edit=lambda graph: after_norm(graph, call))
    assert outcome.welds == ["rms_norm", "rms_norm"]
    assert outcome.log or call is write_in_place
    outcome.check()


def test_what_only_returns_a_value_is_dead_without_a_reader() -> None:
    graph = graph_of(normed_twice, [rand(5, 64), rand(64)]).gm.graph
    after_norm(graph, lambda graph, x: graph.call_function(torch.ops.aten.neg.default, (x,)))
    before = len(graph.nodes)
    assert eliminate_dead(graph) and len(graph.nodes) == before - 1


def calls(*names: str) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """A graph of calls that read one input: those named ``write …`` have effects."""
    graph = fx.Graph()
    x, found = graph.placeholder("x"), dict[str, fx.Node]()
    for name in names:
        target = torch.ops.aten.neg.default
        arguments: tuple[object, ...] = (x,)
        if name.startswith("write"):
            target, arguments = torch.ops.vllm.unified_kv_cache_update.default, (x, x, name)
        found[name] = graph.call_function(target, arguments)  # type: ignore[arg-type]
    graph.output(tuple(found.values()))
    return graph, found


def test_a_call_that_has_to_wait_keeps_those_behind_it_waiting() -> None:
    graph, found = calls("write 1", "write 2", "late", "other")
    found["write 1"].args = (found["late"], *found["write 1"].args[1:])
    sort(graph)
    graph.lint()
    order = [name for node in graph.nodes for name, known in found.items() if known is node]
    assert order == ["late", "write 1", "write 2", "other"]
    assert [has_effects(found[name]) for name in order] == [False, True, True, False]


def test_a_sorted_graph_stays_as_it_is() -> None:
    graph, _ = calls("a", "write 1", "b", "write 2")
    before = list(graph.nodes)
    sort(graph)
    assert list(graph.nodes) == before


@pytest.fixture
def strides_seen() -> Iterator[list[tuple[int, ...]]]:
    """What an operator of a mixer was given, and which clones there were for its sake."""
    seen: list[tuple[int, ...]] = []

    def scan(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return x.clone()

    with torch.library._scoped_library("mixer", "FRAGMENT") as library:
        library.define("scan(Tensor x) -> Tensor")
        library.impl("scan", scan, "CPU")
        torch.library.register_fake("mixer::scan", lambda x: torch.empty_like(x), lib=library)
        yield seen


@pytest.mark.parametrize("in_rows", [True, False], ids=["rows", "columns"])
def test_a_copy_that_only_changes_how_a_value_lies_is_kept(
    in_rows: bool, strides_seen: list[tuple[int, ...]]
) -> None:
    """#44574: without the copy a kernel for states read columns as rows."""

    def mixer(x: Tensor, w: Tensor) -> Tensor:
        normed = custom_norm(x, w, EPS)
        given = normed.t().contiguous() if in_rows else normed.t().contiguous().t()
        return torch.ops.mixer.scan(given)

    outcome = weld(mixer, [rand(5, 64), rand(64)])
    outcome.check()
    expected = (5, 1) if in_rows else (1, 5)
    assert outcome.welds == ["rms_norm"] and strides_seen and set(strides_seen) == {expected}


def test_calls_that_depend_on_a_norm_for_its_order_alone_break_nothing() -> None:
    """#56041: a pass erased a call that another one only waits for."""

    def depend(graph: fx.Graph) -> None:
        norms = [n for n in graph.nodes if n.target is torch.ops.vllm_ir.rms_norm.default]
        inner = fx.Graph()
        inner.output(inner.call_function(torch.ops.aten.neg.default, (inner.placeholder("x"),)))
        graph.owning_module.add_module("waits", fx.GraphModule(nn.Module(), inner))  # type: ignore[union-attr]
        with graph.inserting_after(norms[-1]):
            body = graph.get_attr("waits")
        with graph.inserting_after(body):
            waiting = graph.call_function(control_deps, ((norms[0],), body, norms[-1]))
        waiting.meta["val"] = norms[-1].meta["val"]
        (output,) = graph.find_nodes(op="output")
        output.args = ((waiting,),)

    outcome = weld(normed_twice, [rand(5, 64), rand(64)], dynamic=(), edit=depend)
    assert outcome.welds == ["rms_norm", "rms_norm"]
    assert outcome.count(control_deps) == 1
    outcome.check()


def test_welds_return_memory_of_their_own() -> None:
    """What a graph returns shares memory with its inputs, or another result, only where it did before."""

    def chain(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        normed, total = torch.ops.vllm_ir.fused_add_rms_norm(x, residual, w, EPS)
        return normed, total, total[:, :32], normed.view(-1), x[:2]

    graph = graph_of(chain, [rand(4, 64), rand(4, 64), rand(64)])

    def shared() -> list[bool]:
        tensors = [x for x in (*graph.gm(*graph.inputs), *graph.inputs) if isinstance(x, Tensor)]
        memory = [x.untyped_storage().data_ptr() for x in tensors]
        return [a == b for i, a in enumerate(memory) for b in memory[:i]]

    before, expected = shared(), graph.run()
    graph.passed("canonicalize,skinny-gemm,dialect,raise,plan,lower{target=triton}")
    assert graph.kernels == 1 and shared() == before
    assert same(graph.run()[3:], expected[3:])
