"""``kernelweld run``: the graph that comes out, what is printed on the way, and what is checked."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.cli.captured import PIPELINE
from kernelweld.passes import table

Command = Callable[..., Result]

TARGETS = '''
import torch


def two_graphs():
    def fn(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    return fn, (torch.randn(4),), {}


def far_away():
    """Its rows are found by an input, which is random when a graph is checked."""
    return (lambda x, i: x[i + 5]), (torch.randn(8), torch.zeros(3, dtype=torch.int64)), {}
'''

PASSES = '''
"""A pass that fails, and one that makes another function of the graph."""

from dataclasses import dataclass

import torch

from kernelweld.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FailingPass(Pass):
    name = "failing"

    def run(self, gm, context):
        raise RuntimeError("on purpose")


@dataclass(frozen=True)
class SinToCosPass(Pass):
    name = "sin-to-cos"

    def run(self, gm, context):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default
        return PassResult(modified=True, count=1)
'''


@pytest.fixture
def others(models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of two more targets, and an installed distribution with two passes."""
    name = f"run_{models}"
    (tmp_path / f"{name}.py").write_text(TARGETS)
    (tmp_path / f"{name}_passes.py").write_text(PASSES)
    info = tmp_path / "run_passes-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: run-passes\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        f"[kernelweld.passes]\nfailing = {name}_passes:FailingPass\nsin-to-cos = {name}_passes:SinToCosPass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    table.passes.cache_clear()
    yield name
    monkeypatch.undo()
    table.passes.cache_clear()


@pytest.mark.slow
def test_the_executable(models: str, golden: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "kernelweld.cli", "run", "-p", "canonicalize,raise", f"{models}:target"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    golden(done.stdout)


def test_printing_around_passes(
    kernelweld_command: Command, models: str, golden: Callable[[str], None]
) -> None:
    options = ("--print-before", "plan", "--print-after", "changed", "--verify-each", "--time")
    done = kernelweld_command("run", f"{models}:target", *options)
    assert done.exit_code == 0, done.stderr
    golden(done.stdout)
    assert [line.split()[1] for line in done.stderr.splitlines()[1:]] == PIPELINE.split(",")


def test_json(kernelweld_command: Command, models: str) -> None:
    plain = kernelweld_command("run", "-p", "canonicalize,raise", f"{models}:target").stdout
    done = kernelweld_command("run", "-p", "canonicalize,raise", f"{models}:target", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    (graph,) = found["graphs"]
    assert found["pipeline"] == "canonicalize,raise"
    assert plain == f"# graph 1 of 1: canonicalize,raise\n{graph['text']}\n"
    assert graph["failure"] is None
    assert [(step["pass"], step["count"]) for step in graph["passes"]][1] == ("raise", 3)
    assert all(step["seconds"] > 0 for step in graph["passes"])


def test_a_graph_of_several(kernelweld_command: Command, others: str) -> None:
    everything = kernelweld_command("run", "-p", "canonicalize", f"{others}:two_graphs").stdout
    assert [line for line in everything.splitlines() if line.startswith("#")] == [
        "# graph 1 of 2: canonicalize",
        "# graph 2 of 2: canonicalize",
    ]
    second = kernelweld_command("run", "-p", "canonicalize", f"{others}:two_graphs", "--graph", "2").stdout
    assert "cos(" in second and "sin(" not in second
    none = kernelweld_command("run", f"{others}:two_graphs", "--graph", "3")
    assert (none.exit_code, none.stdout) == (2, "")
    assert "there are 2 graphs" in none.stderr


def test_a_dump(kernelweld_command: Command, models: str, tmp_path: Path) -> None:
    command = ("run", f"{models}:target", "-p", "canonicalize,raise", "--dump-dir", str(tmp_path / "dump"))
    assert kernelweld_command(*command).exit_code == 0
    names = {path.name for path in (tmp_path / "dump").iterdir()}
    assert {"000_input.txt", "001_canonicalize.json", "002_raise.txt", "index.html"} <= names
    assert "is not empty" in kernelweld_command(*command).stderr
    assert kernelweld_command(*command, "--overwrite").exit_code == 0


def test_a_pass_that_moves_the_results(kernelweld_command: Command, others: str) -> None:
    command = ("run", "-p", "canonicalize,sin-to-cos", f"{others}:two_graphs", "--graph", "1")
    assert kernelweld_command(*command).exit_code == 0
    done = kernelweld_command(*command, "--verify-each")
    assert done.exit_code == 1
    assert done.stdout == "# graph 1 of 2: canonicalize,sin-to-cos\n", "what came out is not shown"
    assert "error: pass 'sin-to-cos' failed: the graph breaks 1 rule of the IR" in done.stderr
    assert "it moved by" in done.stderr


def test_a_pass_that_fails(kernelweld_command: Command, others: str) -> None:
    command = ("run", "-p", "failing", f"{others}:two_graphs")
    done = kernelweld_command(*command, "--print-after", "all")
    assert done.exit_code == 1
    assert done.stdout.count("# after failing failed: on purpose") == 2
    assert done.stderr.count("error: pass 'failing' failed: RuntimeError: on purpose") == 2
    done = kernelweld_command(*command, "--json")
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["graphs"]
    assert first["text"] is None and "on purpose" in second["failure"]


def test_a_graph_that_does_not_run_on_random_inputs(kernelweld_command: Command, others: str) -> None:
    done = kernelweld_command("run", f"{others}:far_away", "--verify-each")
    assert done.exit_code == 0, done.stderr
    (Path(f"{others}.py")).write_text(TARGETS.replace("i + 5", "i + 7"))
    sys.modules.pop(others)
    done = kernelweld_command("run", f"{others}:far_away", "--verify-each")
    assert done.exit_code == 2
    assert "graph 1 does not run on random inputs: IndexError" in done.stderr
    assert "Leave --verify-each out." in done.stderr and "Traceback" not in done.stderr


@pytest.mark.hf
def test_without_numbers_only_rules_are_checked(kernelweld_command: Command) -> None:
    done = kernelweld_command(
        "run", "hf:llama", "--full", "--layers", "1", "--verify-each", "-p", "canonicalize"
    )
    assert done.exit_code == 0, done.stderr
    assert "--verify-each checks the rules of the IR, and no results" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x:y", "-p", "canonicalize,raise{"), "                   ^"),
        (("x:y", "-p", "rase"), "did you mean 'raise'"),
        (("x:y", "--print-before", "rase"), "unknown pass of the pipeline 'rase'; did you mean 'raise'"),
        (("x:y", "--print-before", "changed"), "unknown pass of the pipeline 'changed'"),
        (("x:y", "--print-before", "all", "--json"), "--print-before: it does not go with --json"),
        (("x:y", "--print-after", "all", "--json"), "--print-after: it does not go with --json"),
        (("no_such_module:y",), "there is no module 'no_such_module'"),
    ],
)
def test_mistakes(kernelweld_command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = kernelweld_command("run", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
