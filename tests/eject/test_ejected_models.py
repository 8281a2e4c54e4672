"""Files of every weld of a model, taken away by the verb: right alone, and as ruff leaves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelweld.cli.main import app
from kernelweld.cli.zoo import ZOO

Check = Callable[..., None]

EVERY = [
    (name, phase, cache) for name in ZOO for phase in ("prefill", "decode") for cache in ("dynamic", "static")
]


@pytest.mark.hf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phase", "cache"),
    [
        pytest.param(*which, marks=() if which == ("qwen3", "prefill", "static") else pytest.mark.nightly)
        for which in EVERY
    ],
)
def test_every_weld(
    name: str, phase: str, cache: str, tmp_path: Path, passes_alone: Check, ruff_clean: Check
) -> None:
    command = ["eject", f"hf:{name}", "--phase", phase, "--cache", cache, "--all", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert list(tmp_path.glob("*.py"))
    assert not any("kernelweld" in line for path in tmp_path.iterdir() for line in _imports(path))
    passes_alone(tmp_path)
    ruff_clean(tmp_path)


def _imports(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
