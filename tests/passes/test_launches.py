"""The launch prediction: rules on small graphs, agreement with Inductor's scheduler, and linear time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import RMSNorm, insert_word
from kernelweld.ir.origin import ORIGIN, record_origin
from kernelweld.passes.launches import launch_list, predict
from kernelweld.passes.launches.traits import Trait, trait_of

aten = torch.ops.aten
prims = torch.ops.prims
N = 64

Function = Callable[..., object]


def rows(count: int = 4, width: int = N) -> Tensor:
    return torch.randn(count, width)


def rms(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def norm_then_gemms(x: Tensor, w: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    y = rms(x, w)
    return y @ p, y @ q


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def add_and_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return total, rms(total, w)


def norm_and_rope(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope(rms(x, w), cos, sin)


def norm_and_swap(x: Tensor, w: Tensor) -> Tensor:
    y = rms(x, w)
    return torch.cat([y[..., N // 2 :].sin(), y[..., : N // 2].cos()], -1)


def two_norms(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return rms(x, w), rms(y, w)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def wide_and_narrow(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp(), y.exp()


def two_branches(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return rms(x, w) + rms(y, w)


def grown(cache: Tensor, new: Tensor) -> Tensor:
    return torch.cat([cache, new.sin()], 1)


def packed_gate(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def heads() -> Tensor:
    return torch.randn(2, 16, 64)


#: A function, its inputs, and the kernels that Inductor launches for it.
CASES: dict[str, tuple[Function, tuple[Tensor, ...], int]] = {
    "pointwise chains are one kernel": (lambda x, y: (x.exp() + y).sin() * x, (rows(), rows()), 1),
    "a view is free": (lambda x: x.reshape(2, 2, N).transpose(0, 1), (rows(),), 0),
    "a copied view is a kernel": (lambda x: x.t().contiguous(), (rows(),), 1),
    "a gemm is one call": (lambda x, w: x @ w, (rows(), rows(N, N)), 1),
    "a cast before a gemm is a kernel": (lambda x, w: x.sin() @ w, (rows(), rows(N, N)), 2),
    "a norm is one kernel": (rms, (rows(), rows(1, N)[0]), 1),
    "a norm for two gemms is computed once": (
        norm_then_gemms,
        (rows(), rows(1, N)[0], rows(N, N), rows(N, N)),
        3,
    ),
    "residual and norm share a kernel": (add_and_norm, (rows(), rows(), rows(1, N)[0]), 1),
    "norms of different rows do not": (two_norms, (rows(4), rows(5), rows(1, N)[0]), 2),
    "a gated mlp is three gemms and a kernel": (
        gated_mlp,
        (rows(), rows(N, N), rows(N, N), rows(N, N)),
        4,
    ),
    "other sizes without common reads are two": (wide_and_narrow, (rows(4), rows(5)), 2),
    "softmax of scores is one kernel between two": (attention, (heads(), heads(), heads()), 3),
    "a sum of few is pointwise": (lambda x: (x.reshape(4, 16, 4) * 2).sum(-1).sin(), (rows(),), 1),
    "the result of a reduction joins it": (lambda x: x.sum(-1).sin(), (rows(),), 1),
    "two reductions of one input share it": (lambda x: (x.sum(-1), x.amax(-1)), (rows(),), 1),
    "a rotation joins the norm of its row": (norm_and_rope, (rows(), rows(1, N)[0], rows(), rows()), 1),
    "a sum of two norms joins both": (two_branches, (rows(), rows(), rows(1, N)[0]), 1),
    "a joined row joins the norm that it reads": (norm_and_swap, (rows(), rows(1, N)[0]), 1),
    "a cache grows by a copy": (grown, (heads(), torch.randn(2, 1, 64)), 1),
    "packed halves are read in place": (packed_gate, (rows(4, 2 * N),), 1),
    "an l2 norm of gathered rows": (lambda t, i: F.normalize(t[i], dim=-1), (rows(100), torch.arange(4)), 1),
    "mean then variance in one kernel": (
        lambda x, w, b: F.layer_norm(x, (N,), w, b),
        (rows(), rows(1, N)[0], rows(1, N)[0]),
        1,
    ),
    "a gather reads anywhere": (lambda t, i: t[i].sin(), (rows(100), torch.arange(4)), 1),
}


def trace(fn: Function, inputs: tuple[Tensor, ...]) -> fx.GraphModule:
    return make_fx(fn, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)


def post_grad(fn: Function, inputs: tuple[Tensor, ...]) -> fx.Graph:
    return trace(fn, inputs).graph


@pytest.mark.parametrize("name", CASES)
def test_small_graphs(name: str) -> None:
    fn, inputs, expected = CASES[name]
    graph = post_grad(fn, inputs)
    assert predict(graph) == expected
    assert sum(launch.count for launch in launch_list(graph)) == expected


def test_launches_are_named_by_what_they_compute() -> None:
    def names(fn: Function, inputs: tuple[Tensor, ...], *_: object) -> list[str]:
        return [str(launch) for launch in launch_list(post_grad(fn, inputs))]

    gate = "neg, exp, add, div, mul"
    assert names(*CASES["a gated mlp is three gemms and a kernel"]) == ["mm", "mm", gate, "mm"]
    assert names(*CASES["a norm is one kernel"]) == ["pow, mean, add, rsqrt, mul"]
    assert names(*CASES["a copied view is a kernel"]) == ["clone"]
    joined = names(*CASES["a joined row joins the norm that it reads"])
    assert joined == ["pow, mean, add, rsqrt, mul, sin, cos, cat"]
    assert names(lambda x: x.topk(4), (rows(),)) == ["topk (2 launches)"]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="the script stands on private parts of torch 2.13")
def test_inductor_makes_as_many_kernels_of_them() -> None:
    script = Path(__file__).with_name("inductor_scheduler.py")
    run = subprocess.run([sys.executable, script, __file__], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {name: expected for name, (_, _, expected) in CASES.items()}


def test_a_sorted_top_k_is_two_launches() -> None:
    def best(x: Tensor, is_sorted: bool) -> object:
        return torch.topk(x, 16, sorted=is_sorted)

    x = rows(4, 256)
    assert predict(post_grad(lambda x: best(x, True), (x,))) == 2
    assert predict(post_grad(lambda x: best(x, False), (x,))) == 1


def test_symbolic_sizes_count_like_static_ones() -> None:
    inputs = (rows(), rows(), rows(1, N)[0])
    gm = make_fx(add_and_norm, tracing_mode="symbolic")(*inputs)
    assert predict(gm.graph) == predict(post_grad(add_and_norm, inputs))


def test_a_scatter_over_an_input_is_in_place_and_over_a_value_is_not() -> None:
    def into_input(cache: Tensor, i: Tensor, x: Tensor) -> Tensor:
        return aten.copy_(cache, aten.index_put(cache, [i], x))

    def into_value(cache: Tensor, i: Tensor, x: Tensor) -> Tensor:
        return aten.index_put(cache.sin(), [i], x)

    inputs = (rows(100), torch.arange(4), rows())
    assert predict(post_grad(into_input, inputs)) == 1
    assert predict(post_grad(into_value, inputs)) == 2


def test_an_updated_input_is_written_by_what_computes_it() -> None:
    def decay(state: Tensor, x: Tensor) -> Tensor:
        new = state * 0.5 + x
        aten.copy_(state, new)
        return new.sin()

    assert predict(post_grad(decay, (rows(), rows()))) == 1


def test_library_calls_of_several_kernels() -> None:
    def routed(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        return torch.ops.aten._grouped_mm(x, w, ends)

    x, w = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 16).bfloat16()
    assert predict(post_grad(routed, (x, w, torch.tensor([4, 8], dtype=torch.int32)))) == 2


def test_words_count_through_the_nodes_they_came_from() -> None:
    graph = post_grad(rms, (rows(), rows(1, N)[0]))
    x, w = graph.find_nodes(op="placeholder")
    calls = [node for node in graph.nodes if node.op == "call_function"]
    with graph.inserting_before(graph.output_node()):
        word = insert_word(graph, RMSNorm(1e-6), [x, w, None])
    word.meta = {"val": calls[-1].meta["val"], ORIGIN: record_origin(calls, [x, w], calls[-1:])}
    calls[-1].replace_all_uses_with(word)
    graph.eliminate_dead_code()
    before = len(list(graph.nodes))
    assert predict(graph) == 1
    assert len(list(graph.nodes)) == before


def test_dead_nodes_and_empty_graphs_cost_nothing() -> None:
    graph = post_grad(lambda x: x.sin(), (rows(),))
    with graph.inserting_before(graph.output_node()):
        sin = next(n for n in graph.nodes if n.target is aten.sin.default)
        graph.call_function(aten.exp.default, (sin,)).meta["val"] = sin.meta["val"]
    assert predict(graph) == 1
    empty = fx.Graph()
    empty.output(empty.placeholder("x"))
    assert predict(empty) == 0


@pytest.mark.parametrize("op", [aten.mul.Tensor, aten.exp.default, prims.convert_element_type.default])
def test_elementwise_operators(op: torch._ops.OpOverload) -> None:
    assert trait_of(fx.Graph().call_function(op)) is Trait.ELEMENTWISE


def chain(layers: int) -> fx.Graph:
    def fn(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
        for _ in range(layers):
            x = x + rms(x, w) @ p
        return x

    return post_grad(fn, (rows(), rows(1, N)[0], rows(N, N)))


def test_every_layer_costs_the_same_and_time_is_linear() -> None:
    small, large = chain(20), chain(200)
    assert predict(chain(21)) - predict(small) == 2
    assert predict(large) - predict(small) == 2 * 180

    def seconds(graph: fx.Graph) -> float:
        return min(_timed(graph) for _ in range(3))

    assert math.log(seconds(large) / seconds(small), 10) < 1.5  # quadratic is 2; a busy machine adds noise


def _timed(graph: fx.Graph) -> float:
    start = time.process_time()
    predict(graph)
    return time.process_time() - start
