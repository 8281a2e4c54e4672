"""Graphs as ``.pt2`` files: read again they are the same graph, in all that the passes look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx

from kernelweld.cli.captured import PIPELINE, captured
from kernelweld.cli.hf import CacheKind, Phase
from kernelweld.cli.targets import resolve
from kernelweld.integrations.aot import capture
from kernelweld.integrations.graph_file import load, save
from kernelweld.ir.origin import stack_lines
from kernelweld.ir.printer import format_graph
from kernelweld.ir.report import GraphReport
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.summary import run_reported


def step(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, table: torch.Tensor) -> tuple[object, ...]:
    r = r + x
    h = r.float()
    y = w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    table[: x.shape[0]] = y
    largest, _ = torch.max(y, -1)
    return y.chunk(2, -1)[1].T, r * torch.tensor([1.0, 2.0] * 48, dtype=x.dtype), largest, None, x.shape[0]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def graph_of(*, dynamic: bool) -> fx.GraphModule:
    found = capture(step, (draw(5, 96), draw(5, 96), draw(96), draw(64, 96)), dynamic=dynamic)
    return found.graphs[0]


def through_a_file(gm: fx.GraphModule, folder: Path) -> fx.GraphModule:
    save(gm, folder / "graph.pt2")
    read = load(folder / "graph.pt2").graph
    assert read is not None
    return read


def reported(gm: fx.GraphModule) -> GraphReport:
    return replace(run_reported(Pipeline.from_text(PIPELINE, strict=True), gm)[1], seconds={})


def memory(gm: fx.GraphModule) -> list[object]:
    """What each value is in memory: where it starts, and which values lie in the same.

    A fresh copy of a constant is left out: the compiler has recorded the constant itself for it.
    """
    seen: dict[int, int] = {}
    nodes = (node for node in gm.graph.nodes if node.target is not torch.ops.aten.lift_fresh_copy.default)
    values = [node.meta["val"] for node in nodes if "val" in node.meta]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    number = [seen.setdefault(t.untyped_storage()._cdata, len(seen)) for t in tensors]
    return [(int(t.storage_offset()), t.device, n) for t, n in zip(tensors, number, strict=True)]


def modules(gm: fx.GraphModule) -> list[list[str]]:
    """The paths of the modules around each node."""
    stacks = (node.meta.get("nn_module_stack", {}) for node in gm.graph.nodes)
    return [[path for path, _ in stack.values()] for stack in stacks]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_graph_is_read_as_it_was_written(dynamic: bool, tmp_path: Path) -> None:
    gm = graph_of(dynamic=dynamic)
    read = through_a_file(gm, tmp_path)
    assert format_graph(read.graph, sources=True) == format_graph(gm.graph, sources=True)
    assert memory(read) == memory(gm)
    pairs = list(zip(gm.graph.nodes, read.graph.nodes, strict=True))
    assert [stack_lines(a.meta) for a, _ in pairs] == [stack_lines(b.meta) for _, b in pairs]
    assert reported(read) == reported(gm)


def test_constants_keep_their_numbers(tmp_path: Path) -> None:
    read = through_a_file(graph_of(dynamic=False), tmp_path)
    (constant,) = read.graph.find_nodes(op="get_attr")
    assert torch.equal(getattr(read, constant.target), torch.tensor([1.0, 2.0] * 48, dtype=torch.bfloat16))
    inputs = (draw(5, 96), draw(5, 96), draw(96), draw(64, 96))
    order = {tuple(n.meta["val"].shape): n for n in read.graph.find_nodes(op="placeholder")}
    assert len(order) == 3, "no constant became an input"
    expected = step(*(x.clone() for x in inputs))
    shapes = [tuple(n.meta["val"].shape) for n in read.graph.find_nodes(op="placeholder")]
    given = {(96,): [inputs[2]], (64, 96): [inputs[3]], (5, 96): [inputs[0], inputs[1]]}
    results = read(*(given[shape].pop(0) for shape in shapes))
    assert any(torch.equal(r, expected[1]) for r in results if isinstance(r, torch.Tensor))


def test_a_constant_that_was_folded(tmp_path: Path) -> None:
    """Its number is in the graph, and the tensor is read by nothing."""
    found = capture(lambda x: x * torch.tensor(5.0) + torch.tensor([1.0, 2.0]), (draw(3, 2),))
    (gm,) = found.graphs
    assert [len(node.users) for node in gm.graph.find_nodes(op="get_attr")].count(0) == 1
    read = through_a_file(gm, tmp_path)
    assert len(read.graph.find_nodes(op="get_attr")) == 2
    x = draw(3, 2)
    assert torch.equal(read(x)[0], x * torch.tensor(5.0) + torch.tensor([1.0, 2.0]))


def test_an_ordinary_program_is_none_of_ours(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.randn(2, 3),))
    torch.export.save(program, tmp_path / "program.pt2")
    read = load(tmp_path / "program.pt2")
    assert read.graph is None
    assert read.program.example_inputs is not None


def test_the_graph_that_is_saved_stays_as_it_is(tmp_path: Path) -> None:
    gm = graph_of(dynamic=False)
    before, metas = format_graph(gm.graph, sources=True), [set(node.meta) for node in gm.graph.nodes]
    save(gm, tmp_path / "graph.pt2")
    assert format_graph(gm.graph, sources=True) == before
    assert [set(node.meta) for node in gm.graph.nodes] == metas


@pytest.mark.hf
@pytest.mark.parametrize(
    ("name", "phase", "cache"),
    [
        ("hf:llama", "decode", "static"),
        ("hf:qwen3_5_moe", "prefill", "dynamic"),
        pytest.param("hf:deepseek_v32", "decode", "static", marks=pytest.mark.nightly),
        pytest.param("hf:minimax_m2", "prefill", "static", marks=pytest.mark.nightly),
    ],
)
def test_a_model_is_welded_as_before(name: str, phase: Phase, cache: CacheKind, tmp_path: Path) -> None:
    (gm,) = captured(resolve(name, phase=phase, cache=cache)).graphs
    read = through_a_file(gm, tmp_path)
    assert memory(read) == memory(gm)
    assert modules(read) == modules(gm)
    assert reported(read) == reported(gm)
