"""Graphs that call operators of a library are read where it was never loaded, objects of its own left out."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelweld.integrations.graph_file import MARK, save

SPACE = "kernelweld_test_away"
READ = """
import sys
from pathlib import Path
from kernelweld.integrations.graph_file import load
for path in sys.argv[1:]:
    gm = load(Path(path)).graph
    print([str(node.target) for node in gm.graph.nodes if node.op != "output"])
    print(next(node.args[1:] for node in gm.graph.nodes if node.op == "call_function"))
"""


def norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)
    return (h if weight is None else h * weight.float()).to(x.dtype)


def graph(call: Callable[[fx.Graph, fx.Node, fx.Node, fx.Node], fx.Node]) -> fx.GraphModule:
    """``call`` of an input, a weight and an object that only the library knows."""
    made = fx.Graph()
    x, weight, name = (made.placeholder(one) for one in ("x", "weight", "name"))
    with FakeTensorMode():
        x.meta["val"] = torch.empty(4, 64, dtype=torch.bfloat16)
        weight.meta["val"] = torch.empty(64, dtype=torch.bfloat16)
        result = call(made, x, weight, name)
        result.meta["val"] = torch.empty(4, 64, dtype=torch.bfloat16)
    name.meta["val"] = object()
    made.output((result,))
    return fx.GraphModule(torch.nn.Module(), made)


def read(*paths: Path) -> list[str]:
    """In a process that has never heard of the operators."""
    command = [sys.executable, "-W", "ignore", "-c", READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def mark(path: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(MARK))
        found: dict[str, list[str]] = json.loads(archive.read(name))
    return found


@pytest.mark.parametrize("kind", ["str", "PyObject", "__torch__.torch.classes.away.Name"])
def test_an_operator_and_the_name_of_an_object(tmp_path: Path, kind: str) -> None:
    with torch.library._scoped_library(SPACE, "DEF") as library:
        library.define("tag(Tensor x, str name) -> Tensor")
        target = getattr(torch.ops, SPACE).tag.default
        save(graph(lambda g, x, w, name: g.call_function(target, (x, name))), tmp_path / "graph.pt2")
    path = tmp_path / "graph.pt2"
    assert mark(path)["schemas"] == [f"{SPACE}::tag(Tensor x, str name) -> Tensor"]
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "other.pt2", "w") as other:
        for name in source.namelist():  # what torch prints of a schema with a class of its own
            changed = source.read(name)
            other.writestr(
                name, changed.replace(b"str name", f"{kind} name".encode()) if MARK in name else changed
            )
    inputs, arguments = read(tmp_path / "other.pt2")
    assert inputs == f"['x', 'weight', '{SPACE}.tag.default']"
    assert arguments == "('name',)"


def test_how_norms_round_is_told_for_all_graphs(tmp_path: Path) -> None:
    """The second graph tells of a dtype that the first says nothing of."""
    with torch.library._scoped_library("vllm_ir", "DEF") as library:
        rest = "Tensor? weight, float epsilon, int? variance_size=None"
        library.define(f"rms_norm(Tensor x, {rest}) -> Tensor")
        library.impl("rms_norm", norm, "CPU")
        target = torch.ops.vllm_ir.rms_norm.default

        def plain(g: fx.Graph, x: fx.Node, weight: fx.Node, name: fx.Node) -> fx.Node:
            return g.call_function(target, (x, weight, 1e-6))

        def unweighted(g: fx.Graph, x: fx.Node, weight: fx.Node, name: fx.Node) -> fx.Node:
            return g.call_function(target, (x, None, 1e-6))

        for one in (plain, unweighted):
            save(graph(one), tmp_path / f"graph_000_{one.__name__}.pt2")
    paths = [tmp_path / f"graph_000_{name}.pt2" for name in ("plain", "unweighted")]
    assert [mark(path)["roundings"] for path in paths] == [
        ["vllm_ir::rms_norm bfloat16 bfloat16 bfloat16 float32"],
        ["vllm_ir::rms_norm bfloat16 none bfloat16 bfloat16"],
    ]
    command = [sys.executable, "-m", "kernelweld.cli", "inspect", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graphs = json.loads(done.stdout)["graphs"]
    assert [one["words"] for one in graphs] == [{"rms_norm": 1}] * 2
