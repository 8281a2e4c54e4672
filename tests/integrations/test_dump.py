"""``KERNELWELD_DUMP``: what a running program leaves, and that it runs on if nothing can be left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kernelweld
from kernelweld.cli.captured import captured
from kernelweld.cli.targets import resolve
from kernelweld.errors import KernelweldWarning
from kernelweld.integrations import graph_file
from kernelweld.ir.report import Report

PROGRAM = """
import sys
import torch
import kernelweld

@kernelweld.fuse(backend=sys.argv[1])
def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

with torch.no_grad():
    norm(torch.ones(3, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16))
print(len(kernelweld.report(norm).graphs), "reported")
"""


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def run(rows: int = 3) -> tuple[torch.Tensor, Report]:
    """``norm`` fused on ``rows`` rows, and what is reported of it."""
    torch._dynamo.reset_code_caches()
    fused = kernelweld.fuse(norm, backend="eager", dynamic=False)
    with torch.no_grad():
        result = fused(*inputs(rows))
    return result, kernelweld.report(fused)


def inputs(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(rows, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELWELD_DUMP", str(tmp_path / "of" / "graphs"))
    return tmp_path / "of" / "graphs"


def names(folder: Path) -> list[str]:
    return sorted(path.name.partition("_")[2][:3] + path.suffix for path in folder.iterdir())


def test_a_graph_and_its_report(folder: Path) -> None:
    _, report = run()
    assert names(folder) == ["000.json", "000.pt2"]
    (written,) = folder.glob("*.json")
    assert Report.from_json(written.read_text()) == report
    target = resolve(str(folder))
    (graph,) = captured(target).graphs
    assert graph is not target.graphs[0], "verbs rewrite what they get"


def test_equal_graphs_are_one_file_and_others_number_on(folder: Path) -> None:
    for rows in (3, 3, 5):
        run(rows)
    assert names(folder) == ["000.json", "000.pt2", "001.json", "001.pt2"]
    shapes = [
        graph.graph.find_nodes(op="output")[0].args[0][0].meta["val"].shape
        for graph in resolve(str(folder)).graphs
    ]
    assert shapes == [(3, 64), (5, 64)], "in the order in which they were compiled"


def compiled(function: Callable[..., object], *given: torch.Tensor) -> None:
    torch._dynamo.reset_code_caches()
    with torch.no_grad():
        kernelweld.fuse(function, backend="eager", dynamic=False)(*given)


def test_graphs_of_one_text_are_told_apart(folder: Path) -> None:
    """By how inputs lie in memory, and by the numbers of constants."""
    x, w = torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    for given in (x, x.T):
        compiled(norm, given, w)
    strides = [
        {n.meta["val"].stride() for n in graph.graph.find_nodes(op="placeholder")}
        for graph in resolve(str(folder)).graphs
    ]
    assert strides == [{(64, 1), (1,)}, {(1, 64), (1,)}]
    for number in (1.0, 2.0, 2.0):
        compiled(lambda x, number=number: x * torch.tensor([number] * 64), x)
    assert len(names(folder)) == 2 * 4


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWELD_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    run()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELWELD_DUMP", str(tmp_path / "file"))
    with pytest.warns(KernelweldWarning, match="a graph was not written to .*file.* The model runs on"):
        result, report = run()
    assert torch.equal(result, norm(*inputs()))
    assert report.graphs[0].words == {"rms_norm": 1}


def test_an_operator_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no such operator\nand more")

    monkeypatch.setattr(graph_file, "save", refuse)
    with pytest.warns(KernelweldWarning, match="ValueError: no such operator. The model runs on"):
        _, report = run()
    assert report.graphs[0].words == {"rms_norm": 1}
    assert list(folder.iterdir()) == [], "nothing half-written is left"


@pytest.mark.slow
def test_no_compile_cache_hides_a_graph(tmp_path: Path) -> None:
    """Inductor has the program in its cache from the first run; the second still shows its graph."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    environment["KERNELWELD_CACHE_DIR"] = str(tmp_path / "kernels")
    for dump in ("", str(tmp_path / "dump")):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), "auto"],
            env={**environment, "KERNELWELD_DUMP": dump},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "1 reported\n"
    found = json.loads(next((tmp_path / "dump").glob("*.json")).read_text())
    assert found["graphs"][0]["words"] == {"rms_norm": 1}
