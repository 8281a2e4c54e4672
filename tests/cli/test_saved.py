"""Files as TARGET: dumped graphs through the verbs, and files that are no graphs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from kernelweld.cli.targets import resolve
from kernelweld.integrations.aot import capture
from kernelweld.integrations.graph_file import save

Command = Callable[..., Result]


def step(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    r = r + x
    h = r.float()
    return r, w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype), h.softmax(-1)


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    """A folder with a graph."""
    x, w = torch.randn(3, 96, dtype=torch.bfloat16), torch.randn(96, dtype=torch.bfloat16)
    save(capture(step, (x, x, w)).graphs[0], tmp_path / "graph_000_aa.pt2")
    return tmp_path


@pytest.mark.parametrize("verb", ["inspect", "explain", "verify", "compile"])
@pytest.mark.parametrize("of", ["folder", "file"])
def test_every_verb_takes_what_was_dumped(
    kernelweld_command: Command, dumped: Path, verb: str, of: str
) -> None:
    target = str(dumped if of == "folder" else dumped / "graph_000_aa.pt2")
    done = kernelweld_command(verb, target, "--json", *(["--target", "sm_90"] if verb == "compile" else []))
    assert done.exit_code == 0, done.stderr
    assert "residual_add_rms_norm" in done.stdout
    assert json.loads(done.stdout)


def test_a_graph_of_a_gpu_is_inspected_without_one(kernelweld_command: Command, dumped: Path) -> None:
    path, moved = dumped / "graph_000_aa.pt2", dumped / "moved.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(moved, "w") as target:
        for name in source.namelist():
            data = source.read(name).replace(b'"type": "cpu", "index": null', b'"type": "cuda", "index": 0')
            target.writestr(name, data)
    (graph,) = resolve(str(moved)).graphs
    devices = {n.meta["val"].device.type for n in graph.graph.find_nodes(op="placeholder")}
    assert devices == {"cuda"}
    for verb in ("inspect", "verify"):
        done = kernelweld_command(verb, str(moved))
        assert done.exit_code == 0, done.stderr
        assert "1 ×      residual_add_rms_norm" in done.stdout


def foreign(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some/file", "of another program")


def shortened(path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (torch.randn(2, 3),)), path)
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (None, "there is no such file"),
        (lambda path: path.write_text("garbage"), "program.pt2 is no archive, or only the beginning of one"),
        (shortened, "program.pt2 is no archive, or only the beginning of one"),
        (foreign, "program.pt2 holds no exported program: "),
        (lambda path: torch.save({"a": 1}, path), "program.pt2 holds no exported program: "),
    ],
    ids=["missing", "text", "cut", "zip", "state-dict"],
)
def test_files_that_are_none(
    kernelweld_command: Command,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    write: Callable[[Path], object] | None,
    reason: str,
) -> None:
    path = tmp_path / "program.pt2"
    if write is not None:
        write(path)
    done = kernelweld_command("inspect", str(path))
    assert done.exit_code == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: cannot use target '{path}': {reason}")
    assert second.startswith("  how to proceed: ")
    assert caplog.records == [], "torch's own log of the failure is not shown"


@pytest.mark.parametrize("of", ["folder", "file"])
def test_rows_are_those_of_the_capture(kernelweld_command: Command, dumped: Path, of: str) -> None:
    target = str(dumped if of == "folder" else dumped / "graph_000_aa.pt2")
    done = kernelweld_command("bench", target, "--dry-run", "--rows", "1,64")
    assert done.exit_code == 2
    assert "a saved program has the rows that it was saved with" in done.stderr


def test_a_python_file_is_no_target(kernelweld_command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    done = kernelweld_command("inspect", str(tmp_path / "mine.py"))
    assert done.exit_code == 2
    assert "Give MODULE:CALLABLE, as in mine:function" in done.stderr


def test_a_program_among_graphs(kernelweld_command: Command, tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.randn(2, 3),))
    torch.export.save(program, tmp_path / "graph_000_aa.pt2")
    done = kernelweld_command("inspect", str(tmp_path))
    assert done.exit_code == 2
    assert f"error: cannot use target '{tmp_path}': a file in it is a program" in done.stderr
