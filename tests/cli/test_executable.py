"""The real executable through every verb on ``hf:qwen3_5_moe``: its exit code, and what is stable of its
output.

A decode step, whose graph is small; numbers of seconds and errors are replaced, and nothing else. Most run in
``make nightly``: each verb has its tests in this process too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelweld.cli.main import app

MODEL = ("hf:qwen3_5_moe", "--phase", "decode")
WELD = "rms_norm_rope"

pytestmark = [pytest.mark.hf, pytest.mark.slow]


def kernelweld(folder: Path, *arguments: str, code: int = 0) -> str:
    """What the executable of this environment prints to stdout, with ``code`` as its exit code."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "TRITON_INTERPRET")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kernelweld")), *arguments],
        cwd=folder,
        env={**environment, "KERNELWELD_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def stable(text: str) -> str:
    """``text`` without times and errors, which differ from run to run, and without trailing spaces."""
    text = re.sub(r"\d\.\d\de[+-]\d\d", "E", text)
    text = re.sub(r"\b\d+(\.\d+)? m?s\b", "TIME", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


GOLDENS = {
    "inspect": ("inspect", *MODEL),
    "explain": ("explain", *MODEL, "--kind", "rope"),
    "near-misses": ("explain", *MODEL, "--near-misses"),
    "diff": ("diff", *MODEL, "--from", "canonicalize", "--to", "raise", "-U", "0"),
    "bench": ("bench", *MODEL, "--dry-run"),
    "coverage": ("patterns", "coverage", *MODEL),
    "compile": ("compile", *MODEL, "--weld", WELD, "--target", "sm_90"),
    "verify": ("verify", *MODEL, "--weld", WELD),
    "report": ("report", *MODEL, "--no-compile"),
}


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=() if verb == "inspect" else pytest.mark.nightly) for verb in GOLDENS]
)
def test_what_a_verb_prints(verb: str, tmp_path: Path, golden: Callable[[str], None]) -> None:
    golden(stable(kernelweld(tmp_path, *GOLDENS[verb])))


@pytest.mark.nightly
def test_run_prints_the_graph_and_dumps_the_passes(tmp_path: Path) -> None:
    printed = kernelweld(tmp_path, "run", "-p", "canonicalize,raise", *MODEL, "--dump-dir", "passes")
    assert len(re.findall(r"= rms_norm\(", printed)) == 14
    names = sorted(path.name for path in (tmp_path / "passes").iterdir())
    assert [name for name in names if name.endswith(".txt")] == [
        "000_input.txt",
        "001_canonicalize.txt",
        "002_raise.txt",
    ]
    assert "index.html" in names


def test_eject_writes_a_file_that_tests_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    found = json.loads(kernelweld(tmp_path, "eject", *MODEL, "--weld", WELD, "-o", str(path), "--json"))
    assert str(found).count("mine.py") == 1
    assert "import kernelweld" not in path.read_text()
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": ""}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(pytest_, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    kernelweld(tmp_path, "eject", *MODEL, "--weld", WELD, "-o", str(path), code=2)


@pytest.mark.nightly
def test_report_writes_a_page(tmp_path: Path) -> None:
    kernelweld(tmp_path, "report", *MODEL, "--no-compile", "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and "hf:qwen3_5_moe" in page and WELD in page


CHECK = """
import os, pathlib, re, sys

text = os.environ["KERNELWELD_PIPELINE"]
without, only = (re.search(name + "=([^ }]*)", text) for name in ("without", "ids"))
seen = pathlib.Path("ids")
if without:
    seen.write_text(without[1])
guilty = sorted(seen.read_text().split(","))[-1] if seen.exists() else ""
sys.exit(not without if only is None else guilty in only[1].split(","))
"""


def test_bisect_finds_the_weld_of_a_check(tmp_path: Path) -> None:
    """The check stands for a program that is wrong whenever one certain weld is on."""
    (tmp_path / "check.py").write_text(CHECK)
    check = f"{sys.executable} check.py"
    found = json.loads(kernelweld(tmp_path, "bisect", *MODEL, "--check", check, "--json"))
    assert sorted((tmp_path / "ids").read_text().split(","))[-1] in json.dumps(found)


@pytest.mark.nightly
def test_trace_attributes_kernels(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "ts": 1.0, "dur": 2.0, "name": WELD}
    (tmp_path / "run.json").write_text(json.dumps({"traceEvents": [event]}))
    (row,) = json.loads(kernelweld(tmp_path, "trace", "run.json", *MODEL, "--json"))["kernels"]
    assert row["kind"] == "weld"
    assert [word.partition("{")[0] for word in row["words"]] == ["rms_norm", "rope"]
    assert all("modeling_qwen3_5_moe.py" in line for line in row["lines"])


def test_verbs_without_a_target(tmp_path: Path) -> None:
    assert "RMSNorm" in kernelweld(tmp_path, "patterns", "show", "rms_norm")
    assert "verify-welds" in kernelweld(tmp_path, "passes", "list")
    assert json.loads(kernelweld(tmp_path, "doctor", "--json"))
    config = json.loads(kernelweld(tmp_path, "vllm-config", "hf:qwen3"))
    assert config["inductor_passes"] == {"post_grad_custom_post_pass": "kernelweld.vllm_pass"}
    assert kernelweld(tmp_path, "--version").startswith("kernelweld ")


def test_no_verb_is_left_out() -> None:
    """``demo`` is driven by its own test, on models of its own."""
    driven = {arguments[0] for arguments in GOLDENS.values()}
    driven |= {"run", "eject", "bisect", "trace", "passes", "doctor", "demo", "vllm-config"}
    named = {command.name for command in app.registered_commands}
    assert driven == named | {group.name for group in app.registered_groups}
