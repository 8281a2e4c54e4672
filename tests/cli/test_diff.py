"""``kernelweld diff``: what differs between two points, beside each other, as a patch, and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

from kernelweld.cli.points import index_of, point
from kernelweld.errors import UnknownName

Command = Callable[..., Result]


@pytest.mark.slow
def test_the_executable(models: str, golden: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "kernelweld.cli", "diff", f"{models}:target"]
    environment = dict(os.environ)  # without what readline puts there, the size of a terminal
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    golden("\n".join(line.rstrip() for line in done.stdout.replace(models, "models").splitlines()))


def test_as_a_patch(kernelweld_command: Command, models: str, golden: Callable[[str], None]) -> None:
    options = ("--from", "canonicalize", "--to", "raise", "--unified", "-U", "1")
    done = kernelweld_command("diff", f"{models}:target", *options)
    assert done.exit_code == 0, done.stderr
    golden(done.stdout.replace(models, "models"))


def test_narrow_terminals_get_a_patch(
    kernelweld_command: Command, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = kernelweld_command("diff", f"{models}:target").stdout
    assert "--- graph, input\n+++ graph, lower\n@@ -2,20 +2,11 @@\n" in narrow
    monkeypatch.setenv("COLUMNS", "120")
    wide = kernelweld_command("diff", f"{models}:target").stdout
    assert "@@" not in wide
    assert max(map(len, wide.splitlines())) <= 120


def test_json(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("diff", f"{models}:target", "--json", "-U", "0")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    (graph,) = found["graphs"]
    assert (found["from"], found["to"]) == ("input", "lower")
    before, after = graph["lines"]["before"], graph["lines"]["after"]
    shown = [row for hunk in graph["hunks"] for row in hunk["rows"]]
    assert all(left != right for left, right in shown), "no lines around"
    kept = [line for line in before if line not in {left for left, _ in shown}]
    assert kept == [line for line in after if line not in {right for _, right in shown}]
    assert kept, "inputs are the same at both points"
    assert graph["launches"]["after"] == ["launch residual_add_rms_norm__gate_mul"]


def test_backwards_and_to_itself(kernelweld_command: Command, models: str) -> None:
    command = ("diff", f"{models}:target", "-p", "canonicalize,raise", "--json")
    there = json.loads(kernelweld_command(*command, "--from", "input").stdout)["graphs"][0]["lines"]
    back = kernelweld_command(*command, "--from", "raise", "--to", "input")
    lines = json.loads(back.stdout)["graphs"][0]["lines"]
    assert (lines["before"], lines["after"]) == (there["after"], there["before"])
    same = kernelweld_command("diff", f"{models}:target", "--from", "plan", "--to", "plan")
    assert same.exit_code == 0
    assert same.stdout.splitlines()[0].endswith("plan → plan, no difference")


def test_points_of_a_pipeline() -> None:
    names = ["canonicalize", "raise", "canonicalize"]
    known = ["input", "canonicalize", "raise", "canonicalize#2"]
    assert [point(names, i) for i in range(-1, 3)] == known
    assert [index_of(names, text) for text in known] == [0, 1, 2, 3]
    with pytest.raises(UnknownName, match="did you mean 'canonicalize#2'"):
        index_of(names, "canonicalize#3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x:y", "--from", "inputs"), "unknown point of the pipeline 'inputs'; did you mean 'input'"),
        (("x:y", "--to", "rase"), "unknown point of the pipeline 'rase'; did you mean 'raise'"),
        (("x:y", "--to", "raise#2"), "did you mean 'raise'"),
        (("x:y", "-p", "raise,plan", "--to", "lower"), "Use one of: input, raise, plan."),
    ],
)
def test_mistakes(kernelweld_command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = kernelweld_command("diff", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
