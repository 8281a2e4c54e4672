"""The graphs of ``capture`` are the ones Inductor's custom post pass sees, and they compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from kernelweld.integrations.aot import aot_backend, capture


def ops(graph: Graph) -> list[str]:
    return [str(node.target) if node.op == "call_function" else node.op for node in graph.nodes]


class Seen(BaseException):
    """Leaves Inductor before its slow half."""


def inductor_ops(fn: Callable[..., object], *args: object, **kwargs: object) -> list[list[str]]:
    """The op sequence that a pass at ``post_grad_custom_post_pass`` sees; nothing is generated after it."""
    seen: list[list[str]] = []

    def look(graph: Graph) -> None:
        seen.append(ops(graph))
        raise Seen

    torch._dynamo.reset_code_caches()
    with (
        torch._inductor.config.patch(force_disable_caches=True),
        torch._dynamo.config.patch(specialize_float=True),
        torch.no_grad(),
        pytest.raises(Seen),
    ):
        torch.compile(fn, options={"post_grad_custom_post_pass": look})(*args, **kwargs)
    return seen


class TinyBlock(nn.Module):
    """Norm, projection and a cache write: enough for reordering, views and a mutated input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))
        self.proj = nn.Linear(16, 16)
        self.eps = 1e-6

    def forward(self, x: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
        h = x.float()
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight
        cache[slots] = h
        return nn.functional.silu(self.proj(h)).view(-1, 4, 4).transpose(1, 2) + cache.sum()


@pytest.fixture
def block() -> TinyBlock:
    torch.manual_seed(0)
    return TinyBlock().to(torch.bfloat16).eval()


def block_inputs(rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    x, cache = torch.randn(rows, 16), torch.randn(8, 16)
    return x.to(torch.bfloat16), cache.to(torch.bfloat16), torch.arange(rows) + 2


def test_same_ops_as_inductor(block: TinyBlock) -> None:
    found = [ops(gm.graph) for gm in capture(block, block_inputs()).graphs]
    assert inductor_ops(block, *block_inputs()) == found


def test_captured_graph_repeats_the_run_bit_for_bit(block: TinyBlock) -> None:
    x, cache, slots = block_inputs()
    eager_cache = cache.clone()
    with torch.no_grad():
        expected = block(x, eager_cache, slots)
    found = capture(block, (x, cache, slots))
    assert torch.equal(cache, eager_cache), "the captured call itself writes the cache"
    inputs = found.inputs[0]
    (result,) = found.graphs[0](*inputs)
    assert torch.equal(result, expected)
    written = [i for i in inputs if isinstance(i, Tensor) and i.shape == cache.shape]
    assert len(written) == 1
    assert torch.equal(written[0], eager_cache), "the replay writes its own copy"
    assert written[0].data_ptr() != cache.data_ptr()


def test_every_value_and_every_call_is_described(block: TinyBlock) -> None:
    for dynamic in (None, True):
        graph = capture(block, block_inputs(), dynamic=dynamic).graphs[0].graph
        assert [n for n in graph.nodes if n.op != "output" and "val" not in n.meta] == []
        calls = [n for n in graph.nodes if n.op == "call_function"]
        located = [n for n in calls if "test_aot.py" in n.meta.get("stack_trace", "")]
        assert len(located) >= len(calls) - 2  # size arithmetic of a dynamic graph has no source line


def test_dynamic_shapes_keep_eps_a_constant(block: TinyBlock) -> None:
    graph = capture(block, block_inputs(), dynamic=True).graphs[0].graph
    placeholders = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    assert any(isinstance(value, torch.SymInt) for value in placeholders)
    assert not any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in placeholders)


def test_graph_breaks_are_listed() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    found = capture(broken, (torch.ones(4),))
    assert len(found.graphs) == len(found.inputs) == 2
    assert len(found.breaks) == 1
    assert "graph_break" in found.breaks[0]
    assert "\n" not in found.breaks[0]
    assert capture(torch.sin, (torch.ones(4),)).breaks == (), "breaks of an earlier capture do not leak"


def test_stop_ends_before_the_graph_runs() -> None:
    cache = torch.zeros(4)

    def write(x: Tensor) -> Tensor:
        cache.copy_(x)
        return cache + 1

    found = capture(write, (torch.ones(4),), stop=True)
    assert len(found.graphs) == 1
    assert torch.equal(cache, torch.zeros(4))


def test_meta_device_does_not_fold_to_nothing() -> None:
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(8, 8), nn.SiLU()), torch.empty(2, 8)
    targets = ops(capture(model, (x,), stop=True).graphs[0].graph)
    assert "aten.addmm.default" in targets
    assert "aten.exp.default" in targets


def test_repeated_captures_stay_static_and_never_run_out() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    for rows in range(2, 14):  # more than Dynamo's recompile limit
        (gm,) = capture(double, (torch.ones(rows, 3),)).graphs
        (value,) = (node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
        assert tuple(value.shape) == (rows, 3)


def test_backend_runs_what_the_hook_left() -> None:
    def subtract_instead(gm: GraphModule) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            node.target = torch.ops.aten.sub.Tensor

    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with torch.no_grad():
        result = torch.compile(add, backend=aot_backend(subtract_instead))(torch.ones(3), torch.ones(3))
    assert torch.equal(result, torch.zeros(3))


def test_gradients_still_flow_through_the_backend() -> None:
    def square(x: Tensor) -> Tensor:
        return (x * x).sum()

    graphs: list[GraphModule] = []
    x = torch.ones(3, requires_grad=True)
    torch.compile(square, backend=aot_backend(graphs.append))(x).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert len(graphs) == 2, "forward and backward"


@pytest.mark.hf
@pytest.mark.slow
def test_llama_same_ops_as_inductor_and_same_bits_as_eager() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, 64, (2, 7))
    found = capture(model, (ids,), {"use_cache": True})
    assert found.breaks == ()
    assert inductor_ops(model, ids, use_cache=True) == [ops(g.graph) for g in found.graphs]
    with torch.no_grad():
        expected = model(ids, use_cache=True)
    results = [r for r in found.graphs[0](*found.inputs[0]) if isinstance(r, Tensor)]
    for tensor in (expected.logits, *(layer.keys for layer in expected.past_key_values.layers)):
        assert any(r.shape == tensor.shape and torch.equal(r, tensor) for r in results)
