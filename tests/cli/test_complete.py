"""Shell completion: what is offered, by the real executable and in a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelweld.cli import complete
from kernelweld.cli.zoo import ZOO


def offered(line: str, folder: Path) -> list[str]:
    """What bash is told for ``line``, whose last word is being typed."""
    words = line.split(" ")
    environment = {**os.environ, "_KERNELWELD_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kernelweld"))],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def test_a_target_in_the_shell(tmp_path: Path) -> None:
    (tmp_path / "hf_folder").mkdir()
    (tmp_path / "h.pt2").touch()
    (tmp_path / "h.txt").touch()
    assert offered("kernelweld inspect h", tmp_path) == [
        *(f"hf:{name}" for name in ZOO),
        "h.pt2",
        "hf_folder/",
    ]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("kernelweld ins", "inspect"),
        ("kernelweld inspect hf:llama --pha", "--phase"),
        ("kernelweld inspect hf:llama --phase d", "decode"),
        ("kernelweld explain hf:llama --kind rms", "rms_norm"),
        ("kernelweld passes show ver", "verify-welds"),
        ("kernelweld patterns show rope_t", "rope_table"),
    ],
)
def test_verbs_options_and_their_values(line: str, wanted: str, tmp_path: Path) -> None:
    assert wanted in offered(line, tmp_path)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "of").mkdir(parents=True)
    for name in ("one.json", "two.json.gz", "three.txt", ".hidden.json"):
        (tmp_path / "runs" / name).touch()
    monkeypatch.chdir(tmp_path)
    assert complete.traces("") == ["runs/"]
    assert complete.traces("runs/") == ["runs/of/", "runs/one.json", "runs/two.json.gz"]
    assert complete.traces(f"{tmp_path}/runs/t") == [f"{tmp_path}/runs/two.json.gz"]
    assert complete.traces("runs/.") == ["runs/.hidden.json"]
    assert complete.traces("nowhere/") == []


def test_no_torch_for_a_target() -> None:
    code = "import sys, kernelweld.cli.complete as c; c.targets('h'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
