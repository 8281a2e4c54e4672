"""``kernelweld inspect`` and ``passes``: what goes where, in which form, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import kernelweld
from kernelweld.cli.main import app
from kernelweld.cli.render import places
from kernelweld.ir.report import GraphReport, Report
from kernelweld.passes.pipeline import DEFAULT

MODELS = '''
import torch
from torch import nn


class Block(nn.Module):
    """A norm, two sibling linears, a gate, and a residual."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.gate, self.up = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

    def norm(self, x):
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def forward(self, x):
        y = self.norm(x)
        x = x + torch.nn.functional.silu(self.gate(y)) * self.up(y)
        return x, self.norm(x)


def block():
    torch.manual_seed(0)
    return Block().to(torch.bfloat16).eval(), (torch.randn(3, 64, dtype=torch.bfloat16),), {}


def near_miss():
    def fn(x):
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
        return x * (root + 1e-6)

    return fn, (torch.randn(3, 64),), {}


def broken_in_two():
    def fn(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    return fn, (torch.randn(4),), {}


def raises():
    def fn(x):
        return x @ torch.randn(5, 5)

    return fn, (torch.randn(4),), {}


def cannot_build():
    raise ValueError("no weights today")


def nothing():
    return (lambda x: x), (3,), {}
'''


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of targets in the current folder; its name is its own, so that no other test's is imported."""
    name = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.delenv("COLUMNS", raising=False)  # what runs the tests in parallel sets it
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def graphs(result: Result) -> list[GraphReport]:
    assert result.exit_code == 0, result.stderr
    return list(Report.from_json(result.stdout).graphs)


# --- the report ---


def test_json_is_the_documented_schema_and_alone_on_stdout(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:block", "--json")
    (graph,) = json.loads(result.stdout)["graphs"]
    assert set(graph) >= {"nodes", "words", "near_misses", "welds", "launches"}
    assert graph["words"] == {"gate_mul": 1, "residual_add": 1, "rms_norm": 2}
    assert set(graph["launches"]) == {"before", "after"}
    assert graph["welds"]
    for weld in graph["welds"]:
        assert set(weld) == {"name", "words", "sources", "tasks"}
        assert all(f"{models}.py:" in source for source in weld["sources"])
    assert graph["near_misses"] == []


def test_the_table_has_words_welds_and_launches(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:block", "--timing")
    assert result.exit_code == 0
    assert f"{models}:block, graph 1: " in result.stdout
    assert "1 gate_mul, 1 residual_add, 2 rms_norm" in result.stdout
    assert " predicted" in result.stdout
    assert f"{models}.py:" in result.stdout
    assert "lower{target=triton}" in result.stdout
    assert result.stderr == ""


def test_near_misses_name_the_line_and_the_reason(run: Callable[..., Result], models: str) -> None:
    (graph,) = graphs(run("inspect", f"{models}:near_miss", "--json"))
    (miss,) = [m for m in graph.near_misses if m.kind == "rms_norm"]
    line = 1 + MODELS.splitlines().index("        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))")
    assert miss.source is not None
    assert miss.source.endswith(f"{models}.py:{line}")
    assert "eps is outside the root" in miss.reason
    shown = run("inspect", f"{models}:near_miss").stdout
    assert f"{models}.py:{line}" in shown
    assert "eps is outside the root" in shown


def test_sibling_linears_are_merged_unless_told_not_to(run: Callable[..., Result], models: str) -> None:
    (merged,) = graphs(run("inspect", f"{models}:block", "--json"))
    (separate,) = graphs(run("inspect", f"{models}:block", "--json", "--no-merge-gemms"))
    assert merged.launches.after == separate.launches.after - 1
    assert merged.launches.before == separate.launches.before


@pytest.mark.hf
def test_a_transformers_model_by_layer(run: Callable[..., Result]) -> None:
    result = run("inspect", "hf:minimax_m2", "--layers", "1", "--phase", "decode", "--batch", "2")
    assert result.exit_code == 0, result.stderr
    assert "hf:minimax_m2, graph 1: " in result.stdout
    assert "5 rms_norm, 2 rope" in result.stdout
    assert " a layer)" in result.stdout


@pytest.mark.hf
def test_real_dimensions_need_no_weights(run: Callable[..., Result]) -> None:
    options = ("--full", "--layers", "1", "--phase", "decode", "--cache", "static", "--dtype", "float16")
    (graph,) = graphs(run("inspect", "hf:llama", *options, "--json"))
    assert graph.words["rms_norm"] == 3
    assert any("dtype=float16" in word for weld in graph.welds for word in weld.words)


# --- pipelines and instruments ---


def test_another_pipeline(run: Callable[..., Result], models: str) -> None:
    (graph,) = graphs(run("inspect", f"{models}:block", "--json", "-p", "canonicalize,raise"))
    assert list(graph.seconds) == ["canonicalize", "raise"]
    assert graph.welds == ()


def test_the_graph_after_a_pass(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:block", "--print-after", "raise")
    assert result.exit_code == 0
    assert result.stdout.startswith("# after raise\n%0: ")
    assert "= rms_norm(%" in result.stdout
    assert "# after canonicalize" not in result.stdout


def test_a_dump_of_every_pass(run: Callable[..., Result], models: str, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    arguments = ("inspect", f"{models}:block", "--dump-dir", str(folder), "--verify-each")
    assert run(*arguments).exit_code == 0
    texts = sorted(folder.glob("*.txt"))
    steps = ["input", *DEFAULT.split(",")]
    assert [path.name for path in texts] == [f"{i:03}_{step}.txt" for i, step in enumerate(steps)]
    assert "launch " in texts[-1].read_text()
    again = run(*arguments)
    assert again.exit_code == 2
    assert "is not empty" in again.stderr
    assert run(*arguments, "--overwrite").exit_code == 0


def test_graphs_and_json_do_not_mix(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:block", "--json", "--print-after", "all")
    assert result.exit_code == 2
    assert result.stdout == ""


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hf:minimax",), "unknown target 'hf:minimax'; did you mean 'hf:minimax_m2'"),
        (("nowhere/model",), "cannot use target 'nowhere/model': there is no such folder"),
        (("hf:llama", "-p", "canonicalize,rase"), "unknown pass 'rase'; did you mean 'raise'"),
        (("hf:llama", "-p", "plan{max-task=3}"), "did you mean 'max-tasks'"),
        (("hf:llama", "-p", "plan{max-tasks=3"), "                    ^"),
        (("hf:llama", "--print-after", "rase"), "unknown pass of the pipeline 'rase'; did you mean 'raise'"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(
    run: Callable[..., Result], arguments: tuple[str, ...], message: str
) -> None:
    result = run("inspect", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "  how to proceed: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("function", "reason"), [("raises", "RuntimeError"), ("cannot_build", "ValueError: no weights today")]
)
def test_what_a_model_raises_is_shown_as_its_own(
    run: Callable[..., Result], models: str, function: str, reason: str
) -> None:
    result = run("inspect", f"{models}:{function}")
    assert result.exit_code == 2
    assert f"cannot use target '{models}:{function}': " in result.stderr
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_a_target_that_computes_nothing(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:nothing")
    assert result.exit_code == 2
    assert "nothing in it was compiled" in result.stderr


def test_graph_breaks_are_warned_of_and_every_graph_is_shown(run: Callable[..., Result], models: str) -> None:
    result = run("inspect", f"{models}:broken_in_two", "--json")
    assert len(graphs(result)) == 2
    assert "warning: graph break: " in result.stderr


FAILING_PASS = '''
from dataclasses import dataclass
from kernelweld.passes.base import Pass

@dataclass(frozen=True)
class FailingPass(Pass):
    """Fails."""

    name = "failing"

    def run(self, gm, context):
        raise RuntimeError("on purpose")
'''


def test_a_failed_pass_is_reported_after_the_graphs_with_exit_code_1(
    run: Callable[..., Result], models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_pass.py").write_text(FAILING_PASS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("kernelweld.passes.table.passes", lambda: {"failing": "failing_pass:FailingPass"})
    result = run("inspect", f"{models}:block", "-p", "failing")
    assert result.exit_code == 1
    assert "graph 1: " in result.stdout
    assert "error: pass 'failing' failed: RuntimeError: on purpose" in result.stderr


# --- the rest of the command line ---


def test_passes_list_and_show(run: Callable[..., Result]) -> None:
    listed = run("passes", "list").stdout
    order = [listed.index(name) for name in ("canonicalize", "raise", "plan", "lower")]
    assert order == sorted(order)
    shown = run("passes", "show", "plan").stdout
    assert shown.startswith("plan, of kernelweld\n\n")
    assert "  max-tasks=8: an integer\n" in shown
    assert "did you mean 'plan'" in run("passes", "show", "plans").stderr


def test_version_and_help(run: Callable[..., Result]) -> None:
    assert run("--version").stdout == f"kernelweld {kernelweld.__version__}\n"
    assert run("inspect", "--help").exit_code == 0


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, kernelweld.cli.main; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_color_in_pipes_and_on_request(models: str) -> None:
    command = [sys.executable, "-m", "kernelweld.cli", "inspect", f"{models}:near_miss"]
    for extra in ({"NO_COLOR": "1", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}, {}):
        environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment | extra, check=False)
        assert done.returncode == 0, done.stderr
        assert "\x1b[3" not in done.stdout
        assert "graph 1" in done.stdout


def test_places_are_grouped_by_file() -> None:
    assert places(["/a/m.py:4", "/a/m.py:3", "/b/n.py:9", "/a/m.py:8", "/a/m.py:5"]) == "m.py:3-5,8 n.py:9"
    assert places([]) == ""
