"""``kernelweld demo`` on small targets; it interprets for its whole process, so each run gets its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kernelweld.cli.checking import Checked, Verdict, show
from kernelweld.ir.report import GraphReport, Launches
from kernelweld.passes.verification.contract import ErrorReport

MODELS = """
import torch


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def step(x, r, w, gate):
    r = r + x
    return r, norm(r, w), torch.nn.functional.silu(gate) * x


def target():
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16)
    return step, (draw(3, 96), draw(3, 96), draw(96), draw(3, 96)), {}


def nothing():
    return (lambda x: x), (3,), {}
"""


def demo(folder: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "models.py").write_text(MODELS)
    code = f"import sys; {before}\nfrom kernelweld.cli.main import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, "demo", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_target_is_fused_checked_shown_and_compiled(tmp_path: Path) -> None:
    done = demo(tmp_path, "models:target")
    assert done.returncode == 0, done.stderr
    for phase in ("prefill", "decode"):
        assert f"models:target {phase}" in done.stdout
        assert f"models:target {phase}: " in done.stderr
    assert "1 gate_mul, 1 residual_add, 1 rms_norm" in done.stdout
    assert "residual_add_rms_norm" in done.stdout
    assert "holds" in done.stdout
    assert "BROKEN" not in done.stdout
    assert "@triton.jit" in done.stdout
    for gpu in ("sm_90", "sm_100", "gfx942"):
        (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith(gpu)]
        assert "0 B" in line, "no kernel of the demo spills"


def test_a_process_that_compiles_kernels_already_starts_another(tmp_path: Path) -> None:
    done = demo(tmp_path, "models:nothing", before="import triton.language")
    assert done.returncode == 2
    assert done.stderr.count("error: cannot use target 'models:nothing': nothing in it was compiled") == 1


def checked(*errors: ErrorReport) -> Checked:
    graph = GraphReport(5, {"rms_norm": 2}, (), (), Launches(9, 7))
    return Checked((graph,), tuple(Verdict("rms_norm", 3, (e,)) for e in errors), layers=2)


GOOD = ErrorReport("y", weld=1e-3, original=1e-3, allowed=1e-3)
BAD = ErrorReport("y", weld=1e-4, original=1e-6, allowed=1e-6)


@pytest.mark.parametrize(("errors", "holds"), [((GOOD,), True), ((GOOD, BAD), False), ((), True)])
def test_one_broken_weld_is_enough(errors: tuple[ErrorReport, ...], holds: bool) -> None:
    assert checked(*errors).holds is holds


def test_the_table_shows_the_worst_of_alike_welds() -> None:
    console = Console(width=120, file=io.StringIO())
    show(console, "model", checked(GOOD, BAD))
    text = console.file.getvalue()
    assert "2 rms_norm" in text
    assert "9 → 7 predicted (4.5 → 3.5 a layer)" in text
    (line,) = [line for line in text.splitlines() if "6 ×" in line]
    assert line.split() == ["6", "×", "rms_norm", "1.00e-04", "1.00e-06", "BROKEN"]


@pytest.mark.hf
@pytest.mark.slow
def test_a_transformers_model(tmp_path: Path) -> None:
    done = demo(tmp_path, "hf:minimax_m2")
    assert done.returncode == 0, done.stderr
    assert "9 rms_norm, 4 rope" in done.stdout
    assert "BROKEN" not in done.stdout
