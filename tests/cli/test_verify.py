"""``kernelweld verify``: what is checked, how it is shown, and when it fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result

from kernelweld.cli import checking
from kernelweld.cli.checking import Checked, check
from kernelweld.cli.targets import Target
from kernelweld.cli.welded import welded, work, work_and_nodes
from kernelweld.passes.verification.check import WeldCheck
from kernelweld.passes.verification.contract import ErrorReport

Command = Callable[..., Result]

NUMBER = re.compile(r"\d\.\d\de[+-]\d\d")


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def twice(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two residual sums with their norms, the second of other nodes that mean the same."""
    total = r + x
    y = norm(total, w) @ torch.eye(96, dtype=x.dtype)
    z = total + y
    h = z.float()
    return z, (h / torch.sqrt((h * h).sum(-1, keepdim=True) / 96 + 1e-6)).to(x.dtype) * w


def bad(error: float = 1e-4) -> ErrorReport:
    return ErrorReport("out", weld=error, original=1e-6, allowed=1e-6)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weld is wrong from the second draw on."""
    real = checking.check_specimen

    def wrong(one: object, seed: int, **how: object) -> WeldCheck:
        found = real(one, seed, **how)  # type: ignore[arg-type]
        return (
            replace(found, errors=(bad(), *found.errors[1:]))
            if "gate_mul" in found.name and seed > 0
            else found
        )

    monkeypatch.setattr(checking, "check_specimen", wrong)


def test_every_weld_is_checked_and_shown(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("verify", f"{models}:target", "--samples", "2")
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "×" in line]
    assert [line[:3] for line in lines] == [["1", "×", "residual_add_rms_norm__gate_mul"]]
    assert all(line[-1] == "holds" for line in lines)
    assert "\x1b" not in done.stdout, "a pipe gets no colours"
    assert f"{models}:target prefill: " in done.stderr


def test_json(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("verify", f"{models}:target", "--samples", "2", "--seed", "7", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["samples"], found["seed"], found["device"], found["holds"]) == (2, 7, "cpu", True)
    for weld in found["welds"]:
        assert weld["count"] == 1 and weld["holds"]
        assert all(models in source for source in weld["sources"])
        for output in weld["outputs"]:
            assert output["error"] <= output["allowed"]


def test_a_seed_gives_the_same_errors(kernelweld_command: Command, models: str) -> None:
    runs = [kernelweld_command("verify", f"{models}:target", "--seed", seed, "--json") for seed in "112"]
    first, again, other = (json.loads(run.stdout)["welds"] for run in runs)
    assert first == again != other


@pytest.mark.usefixtures("broken")
def test_one_broken_draw_is_enough(kernelweld_command: Command, models: str) -> None:
    command = ("verify", f"{models}:target")
    assert kernelweld_command(*command).exit_code == 0
    done = kernelweld_command(*command, "--samples", "2")
    assert done.exit_code == 1
    assert "BROKEN" in done.stdout
    assert "is wrong: error 0.0001, allowed 1e-06" in done.stderr
    assert f"{models}.py" in done.stderr, "the model's line"
    assert "how to proceed: Do not use this weld" in done.stderr
    assert not json.loads(kernelweld_command(*command, "--samples", "2", "--json").stdout)["holds"]


def test_nodes_that_differ_are_checked_apart() -> None:
    """Equal kernels do not make equal welds: the nodes they replace may be others."""
    tensors = (torch.zeros(5, 96), torch.zeros(5, 96), torch.ones(96))
    target = Target("test", twice, tensors, {})
    norms = [one for one in welded(target, key=work_and_nodes).welds if "norm" in one[0].name]
    assert len(norms) >= len(welded(target, key=work).welds)
    assert check(welded(target, key=work_and_nodes)).holds


def test_an_error_that_is_no_number_is_null() -> None:
    verdict = checking.Verdict("w", 1, (ErrorReport("y", float("inf"), 0.0, 0.0),))
    assert not Checked((), (verdict,), None).holds
    (output,) = verdict.as_dict()["outputs"]  # type: ignore[misc]
    assert (output["error"], output["holds"]) == (None, False)


def test_nothing_to_check(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("verify", f"{models}:no_welds")
    assert done.exit_code == 0, done.stderr
    assert "no welds" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hf:qwen3_5_mo",), "did you mean 'hf:qwen3_5_moe'"),
        (("{}:target", "--weld", "residual_add"), "how to proceed: Use one of: residual_add_rms_norm"),
        (("{}:target", "--samples", "0"), "greater than or equal to 1"),
        ((), "Missing argument"),
    ],
)
def test_mistakes(kernelweld_command: Command, models: str, arguments: tuple[str, ...], message: str) -> None:
    done = kernelweld_command("verify", *(argument.format(models) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_compiles_kernels_already_says_so(models: str) -> None:
    code = "import triton.language\nimport sys; from kernelweld.cli.main import app; app(sys.argv[1:])"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code, "verify", f"{models}:target"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if torch.cuda.is_available():
        assert done.returncode == 0
    else:
        assert done.returncode == 2
        assert "kernelweld verify without a GPU needs Triton's interpreter" in done.stderr
        assert "Set the environment variable TRITON_INTERPRET=1 before Python starts." in done.stderr


@pytest.mark.hf
@pytest.mark.slow
def test_qwen3_5_moe(kernelweld_command: Command, qwen: str, golden: Callable[[str], None]) -> None:
    done = kernelweld_command("verify", qwen)
    assert done.exit_code == 0, done.stderr
    golden(NUMBER.sub("#.##e±##", done.stdout))


@pytest.mark.hf
@pytest.mark.slow
@pytest.mark.nightly
def test_the_executable(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kernelweld.cli",
        "verify",
        "hf:qwen3_5_moe",
        "--phase",
        "decode",
        "--json",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holds"]
