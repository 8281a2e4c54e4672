"""``kernelweld explain``: what it answers about lines, kinds and near misses, and how it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kernelweld.cli.main import app
from kernelweld.cli.selection import Line
from kernelweld.errors import BadOption
from kernelweld.patterns.table import PATTERNS

MODELS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.gate, self.up = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

    def norm(self, x):
        h = x.float()
        root = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)  # root
        return self.weight * (h * root).to(x.dtype)  # weight

    def forward(self, x):
        y = self.norm(x)  # call
        up = self.up(y)  # linear
        x = x + torch.nn.functional.silu(self.gate(y)) * up  # sum
        return x, self.norm(x)


def block():
    torch.manual_seed(0)
    return Block().to(torch.bfloat16).eval(), (torch.randn(3, 64, dtype=torch.bfloat16),), {}


def near_miss():
    def fn(x):
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))  # anchor
        root = root + 1e-6  # fault
        return x * root

    return fn, (torch.randn(3, 64),), {}


def wide():
    def fn(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    return fn, (torch.randn(2, 200000),), {}
"""


def line_of(comment: str) -> int:
    return 1 + next(i for i, line in enumerate(MODELS.splitlines()) if line.endswith(f"# {comment}"))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of targets in the current folder; its name is its own, so that no other test's is imported."""
    name = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["explain", *arguments])

    return run


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- lines ---


def test_a_line_of_a_word_says_its_weld(explain: Callable[..., Result], models: str) -> None:
    place = f"{models}.py:{line_of('sum')}"
    text = explain(f"{models}:block", "--line", place).stdout
    assert text.startswith(f"{models}:block, graph 1, {place}\n")
    assert "1 × residual_add{" in text
    assert "  welded      in " in text
    assert re.search(r"\): \d launch(es)? → 1\n", text)


def test_json_is_the_documented_schema(explain: Callable[..., Result], models: str) -> None:
    found = answer(explain(f"{models}:block", "--kind", "residual_add", "--json"))
    assert list(found) == ["target", "line", "kind", "graphs", "nearest_lines"]
    (graph,) = found["graphs"]
    assert list(graph) == ["called", "words", "near_misses", "operators"]
    (word,) = graph["words"]
    assert list(word) == ["node", "kind", "word", "sources", "weld", "left_out", "looked_up", "stopped"]
    assert list(word["weld"]) == ["kernel", "tasks", "sources", "launches"]
    assert word["weld"]["launches"]["after"] == 1
    assert word["sources"][0].endswith(f"{models}.py:{line_of('sum')}")


def test_a_line_that_calls_a_word(explain: Callable[..., Result], models: str) -> None:
    """The path may be given from any folder on."""
    place = str(Path(f"{models}.py").resolve()) + f":{line_of('call')}"
    (graph,) = answer(explain(f"{models}:block", "--line", place, "--json"))["graphs"]
    assert graph["called"]
    assert [word["kind"] for word in graph["words"]] == ["rms_norm"]  # of two on the same lines
    assert "which calls\n" in explain(f"{models}:block", "--line", place).stdout


def test_a_line_without_a_word(explain: Callable[..., Result], models: str) -> None:
    text = explain(f"{models}:block", "--line", f"{models}.py:{line_of('linear')}", "--no-merge-gemms").stdout
    found = "patterns of matvec start at aten.mm.default, and what they found is another thing"
    assert re.search(rf"no word: .*aten\.mm\.default; {re.escape(found)}\n", text)


def test_a_line_in_no_graph(explain: Callable[..., Result], models: str) -> None:
    result = explain(f"{models}:block", "--line", f"{models}.py:{line_of('weight') + 1}")
    assert result.exit_code == 0
    near = f"{line_of('root')}, {line_of('weight')}, {line_of('call')}, {line_of('linear')}"
    assert f"is in no captured graph; the nearest lines that are: {near}\n" in result.stdout
    other = explain(f"{models}:block", "--line", "elsewhere.py:3").stdout
    assert other.startswith("elsewhere.py:3 is in no captured graph, nor is another line of that file; ")
    assert f"{models}.py" in other


def test_the_end_of_a_path_is_a_whole_name() -> None:
    line = Line.parse("models/model.py:7")
    assert line.is_in(["/a/models/model.py:7"])
    assert line.is_in(["models/model.py:7"])
    assert not line.is_in(["/a/my_models/model.py:7", "/a/models/model.py:8"])
    with pytest.raises(BadOption, match=r"such as modeling_llama\.py:62"):
        Line.parse("model.py:0")


# --- near misses ---


@pytest.mark.parametrize("comment", ["anchor", "fault"])
def test_a_near_miss_is_found_on_both_its_lines(
    explain: Callable[..., Result], models: str, comment: str
) -> None:
    place = f"{models}.py:{line_of(comment)}"
    text = explain(f"{models}:near_miss", "--line", place, "--near-misses").stdout
    assert "1 × no rms_norm: %add adds to the root after it is taken: eps is outside the root\n" in text
    assert "change      Add eps to what is under the root, before the root is taken.\n" in text
    assert f"node        %add at {models}.py:{line_of('fault')}, read from %rsqrt\n" in text


def test_near_misses_leave_out_what_is_welded(explain: Callable[..., Result], models: str) -> None:
    (graph,) = answer(explain(f"{models}:block", "--near-misses", "--json"))["graphs"]
    assert all(word["weld"] is None for word in graph["words"])
    (miss,) = answer(explain(f"{models}:near_miss", "--json"))["graphs"][0]["near_misses"]
    assert (miss["rule"], miss["anchor"], miss["node"]) == ("pattern", "rsqrt", "add")
    assert miss["source"].endswith(f"{models}.py:{line_of('anchor')}")
    assert miss["node_source"].endswith(f"{models}.py:{line_of('fault')}")
    nothing = explain(f"{models}:near_miss", "--kind", "rope").stdout
    assert "nothing: no word and no near miss of the kind " in nothing


def test_the_rule_that_decided_comes_with_its_numbers(explain: Callable[..., Result], models: str) -> None:
    (graph,) = answer(explain(f"{models}:wide", "--json"))["graphs"]
    (word,) = graph["words"]
    assert word["left_out"]["rule"] == "legality"
    assert "a row of 200000 elements does not fit one tile" in word["left_out"]["reason"]
    assert word["left_out"]["remedy"]


def test_words_without_a_plan(explain: Callable[..., Result], models: str) -> None:
    text = explain(f"{models}:block", "--kind", "gate_mul", "-p", "canonicalize,raise").stdout
    assert "not welded  no weld holds it: the pipeline does not plan one, or dropped it\n" in text


def test_every_pattern_says_how_to_write_its_word() -> None:
    assert [name for name, cls in PATTERNS.items() if not cls.spelling] == []


@pytest.mark.hf
@pytest.mark.parametrize(
    ("target", "layers"),
    [
        pytest.param("hf:minimax_m2", 1),
        pytest.param("hf:qwen3_5_moe", 4, marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
def test_near_misses_of(
    explain: Callable[..., Result], golden: Callable[[str], None], target: str, layers: int
) -> None:
    result = explain(target, "--near-misses", "--layers", str(layers))
    assert result.exit_code == 0, result.stderr
    golden(
        re.sub(r"\.py:\d+(?:[,-]\d+)*", ".py:…", result.stdout)
    )  # lines are those of the installed transformers


# --- what goes wrong, and where text goes ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--line", "model.py"), "option '--line' cannot be 'model.py'"),
        (("--line", "7"), "how to proceed: Give FILE.py:LINE, such as modeling_llama.py:62."),
        (("--kind", "rmsnorm"), "unknown kind of word 'rmsnorm'; did you mean 'rms_norm'"),
        (("-p", "canonicalize,rase"), "unknown pass 'rase'; did you mean 'raise'"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(
    explain: Callable[..., Result], options: tuple[str, ...], message: str
) -> None:
    result = explain("hf:llama", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "how to proceed: " in result.stderr
    assert "Traceback" not in result.stderr


def test_help_has_examples(explain: Callable[..., Result]) -> None:
    assert "kernelweld explain hf:qwen3_5_moe --near-misses" in explain("--help").stdout


def test_pipes_and_no_color_get_plain_text(models: str) -> None:
    command = [sys.executable, "-m", "kernelweld.cli", "explain", f"{models}:near_miss", "--near-misses"]
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    environment = plain | {"NO_COLOR": "1", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b[3" not in done.stdout
    assert "eps is outside the root" in done.stdout
    assert "change" not in done.stderr
