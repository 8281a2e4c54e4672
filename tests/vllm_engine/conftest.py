"""Engines of vLLM for tests, started by the Python of another environment, since vLLM pins its torch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).parents[2]
#: Names the Python of another environment than the one that ``make .venv-vllm`` makes.
VARIABLE = "KERNELWELD_VLLM_PYTHON"

Run = Mapping[str, object]


@dataclass(frozen=True)
class Seen:
    """What came of one engine; ``error`` is that of an engine that could not start."""

    log: str
    error: str = ""
    tokens: Sequence[Sequence[int]] = ()
    expected: Mapping[str, int] | None = None
    pieces: Sequence[Mapping[str, object]] = ()
    loaded: int = 0

    @property
    def lines(self) -> list[str]:
        """What kernelweld said in the engine's log, without what vLLM puts before a line."""
        return [line.split("kernelweld: ", 1)[1] for line in self.log.splitlines() if "kernelweld: " in line]

    @property
    def summaries(self) -> list[str]:
        return [line for line in self.lines if line.startswith(("active", "inactive"))]


Engines = Callable[[Sequence[Run]], dict[str, Seen]]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Engines:
    """A function that starts an engine for each of some runs, in their order, and says what came of each.

    Two tests with the same runs share them, in two workers too.
    """
    python = Path(os.environ.get(VARIABLE) or ROOT / ".venv-vllm" / "bin" / "python")
    if not python.is_file():
        told = f"no environment with vLLM: make .venv-vllm makes one, {VARIABLE} names another ({python})"
        (pytest.fail if os.environ.get("CI", "").lower() in ("1", "true") else pytest.skip)(told)
    base = tmp_path_factory.getbasetemp()
    return partial(_started, python, base if worker_id == "master" else base.parent)


def _started(python: Path, base: Path, runs: Sequence[Run]) -> dict[str, Seen]:
    text = json.dumps(runs)
    folder = base / f"engines-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").is_file():
            _start(python, folder, text)
            (folder / "done").write_text("")
    return {str(run["name"]): _seen(folder / str(run["name"])) for run in runs}


def _start(python: Path, folder: Path, runs: str) -> None:
    command = [str(python), str(Path(__file__).parent / "engines.py"), str(folder)]
    # vLLM's own variables, and those of the tests' Triton, are not for these engines.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "TRITON_"))}
    env = {**kept, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=runs, env=env, capture_output=True, text=True, check=False)
    (folder / "seconds").write_text(done.stderr)
    if done.returncode != 0:
        pytest.fail(f"the engines' process failed:\n{done.stderr[-4000:]}", pytrace=False)


def _seen(place: Path) -> Seen:
    log = place.with_suffix(".log").read_text(errors="replace")
    return Seen(log, **json.loads(place.with_suffix(".json").read_text()))
