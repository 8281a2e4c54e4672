"""The tutorial: its files are written, its package is installed, and its commands are run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-pattern.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
INSTALL, *VERBS = COMMANDS


def files() -> Mapping[str, str]:
    """The blocks of the page that are files, by the name that is said last before each."""
    blocks = re.finditer(r"(.*?)```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    return {re.findall(r"`([\w.]+\.(?:py|toml))`", block[1])[-1]: block[2] for block in blocks}


def expected() -> str:
    (text,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    return text


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``command`` in ``folder``, where its package is installed, with this checkout's kernelweld."""
    program, *arguments = command.split()
    module = {"pip": "pip", "kernelweld": "kernelweld.cli"}[program]
    path = os.pathsep.join([str(folder), str(folder / "installed"), str(ROOT)])
    outside = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TRITON_INTERPRET")
    }
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**outside, "PYTHONPATH": path, "KERNELWELD_CACHE_DIR": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tutorial with its package installed, offline and not into this environment."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("tutorial")
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    done = run(INSTALL, folder, PIP_TARGET=str(folder / "installed"), **offline)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_package_is_short() -> None:
    written = files()
    assert list(written) == ["squared_relu.py", "pyproject.toml", "example.py"]
    code = [line for name in ("squared_relu.py", "pyproject.toml") for line in written[name].splitlines()]
    assert len(code) < 60


@pytest.mark.slow
@pytest.mark.parametrize("command", VERBS)
def test_the_commands_of_the_page(command: str, package: Path) -> None:
    done = run(command, package)
    assert done.returncode == 0, done.stderr
    assert "relu2" in done.stdout
    assert "Warning" not in done.stderr
    verb = command.split()[1]
    if verb == "inspect":
        assert [line.rstrip() for line in done.stdout.splitlines()] == expected().splitlines()
    else:
        assert SAYS[verb] in done.stdout


#: What each verb has to say, besides the name of the word.
SAYS = {
    "patterns": "relu2, of squared-relu 0.1",
    "explain": "in relu2_rms_norm (relu2 -> rms_norm)",
    "verify": "holds",
    "compile": "gfx942",
}
