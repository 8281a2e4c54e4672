"""``kernelweld compile``: sizes, texts and files of every kernel, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.cli import compiling
from kernelweld.cli.compiling import Wanted
from kernelweld.codegen import crosscompile
from kernelweld.codegen.crosscompile_worker import Compiled
from kernelweld.codegen.emit import Kernel
from kernelweld.errors import CodegenFailed

Command = Callable[..., Result]

NAME = "residual_add_rms_norm__gate_mul"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Compilers that answer at once; gfx942's fails. The targets asked for, and whether pairs are rounded."""
    asked = []

    def compile_for(kernel: Kernel, targets: Sequence[str], stages: Sequence[str]) -> list[Compiled]:
        (target,) = targets
        asked.append((target, kernel.launch.packed))
        if target == "gfx942":
            raise CodegenFailed(kernel.name, "it does not compile", excerpt="no such instruction")
        return [Compiled(target, 32, 8, 64, 1000, 0.1, "", {s: f"{s} of {target}" for s in stages})]

    monkeypatch.setattr(compiling, "compile_for", compile_for)
    return asked


def test_texts_are_written_and_never_replaced_unasked(kernelweld_command: Command, models: str) -> None:
    """By the real compilers: NVIDIA's texts for its GPU, AMD's for its own."""
    command = ("compile", f"{models}:target", "--target", "sm_90,gfx942", "-o", "kernels")
    done = kernelweld_command(*command, "--emit", "source,ttgir,ptx,sass,amdgcn", "--json")
    assert done.exit_code == 0, done.stderr
    nvidia, amd = json.loads(done.stdout)["kernels"]
    assert (nvidia["name"], nvidia["count"], nvidia["target"], amd["target"]) == (NAME, 1, "sm_90", "gfx942")
    for one in (nvidia, amd):
        assert one["stack_bytes"] == 0 < one["registers"] <= 128
        assert one["binary_bytes"] > 1000
    texts = {path.name: path.read_text() for path in Path("kernels").iterdir()}
    endings = {name.removeprefix(f"{NAME}.") for name in texts}
    assert endings == {f"sm_90.{e}" for e in ("py", "ttgir", "ptx", "sass")} | {
        f"gfx942.{e}" for e in ("py", "ttgir", "amdgcn")
    }
    assert "@triton.jit" in texts[f"{NAME}.sm_90.py"]
    assert ".target sm_90" in texts[f"{NAME}.sm_90.ptx"]
    assert "EXIT" in texts[f"{NAME}.sm_90.sass"]
    assert "s_endpgm" in texts[f"{NAME}.gfx942.amdgcn"]
    assert "7 files are written to kernels" in done.stderr

    again = kernelweld_command(*command)
    assert again.exit_code == 2
    assert f"kernels/{NAME}.sm_90.py exists, and nothing was written" in again.stderr
    assert "--force" in again.stderr


@pytest.mark.usefixtures("scripted")
def test_force_replaces(kernelweld_command: Command, models: str) -> None:
    options = ("--target", "sm_90", "--emit", "ptx", "-o", "kernels", "--force")
    file = Path("kernels") / f"{NAME}.sm_90.ptx"
    file.parent.mkdir()
    file.write_text("mine")
    assert kernelweld_command("compile", f"{models}:target", *options).exit_code == 0
    assert file.read_text() == "ptx of sm_90"


def test_one_that_fails_does_not_hide_the_others(
    kernelweld_command: Command, models: str, scripted: list[tuple[str, bool]]
) -> None:
    done = kernelweld_command("compile", f"{models}:target")
    assert done.exit_code == 1
    lines = [line.split() for line in done.stdout.splitlines() if "sm_" in line or "gfx" in line]
    assert lines[0] == ["1", "×", NAME, "sm_90", "4", "32", "8", "B", "64", "B", "1000", "B"]
    assert lines[2] == ["gfx942", "4", "FAILED"]
    assert "error: gfx942: no kernel for weld" in done.stderr
    assert "no such instruction" in done.stderr
    assert scripted == [("sm_90", True), ("sm_100", True), ("gfx942", False)]
    found = json.loads(kernelweld_command("compile", f"{models}:target", "--json").stdout)["kernels"]
    assert [("error" in one) for one in found] == [False, False, True]


def test_kernels_of_one_name_are_numbered() -> None:
    seen: compiling.Counter[str] = compiling.Counter()
    assert [compiling._numbered(name, seen) for name in "aba"] == ["a", "b", "a-2"]


def test_a_stage_goes_to_the_targets_that_have_it() -> None:
    wanted = Wanted.parsed("sm_90,gfx942,sm_90", "ptx, amdgcn,ttir")
    assert wanted.targets == ("sm_90", "gfx942")
    assert [wanted.of(target) for target in wanted.targets] == [("ptx", "ttir"), ("amdgcn", "ttir")]


@pytest.mark.usefixtures("scripted")
def test_no_welds(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("compile", f"{models}:no_welds", "-o", "kernels")
    assert (done.exit_code, "no welds" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "sm90"), "unknown GPU target 'sm90'; did you mean 'sm_90'"),
        (("--target", "sm_91"), "unknown GPU target 'sm_91'; did you mean 'sm_90'"),
        (("--target", ","), "give GPUs such as"),
        (("--emit", "ptx"), "it needs a folder to write to"),
        (("--emit", "ptxx", "-o", "k"), "did you mean 'ptx'"),
        (("--emit", "amdgcn", "-o", "k", "--target", "sm_90"), "unknown stage of sm_90 'amdgcn'"),
        (("-o", "a_file"), "a_file is not a folder"),
        (("--weld", "nothing"), "unknown weld 'nothing'"),
    ],
)
def test_mistakes(kernelweld_command: Command, models: str, arguments: tuple[str, ...], message: str) -> None:
    Path("a_file").touch()
    done = kernelweld_command("compile", f"{models}:target", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert not Path("k").exists()


def test_without_a_disassembler(
    kernelweld_command: Command, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crosscompile, "disassembles", lambda: False)
    done = kernelweld_command("compile", f"{models}:target", "--emit", "sass", "-o", "kernels")
    assert done.exit_code == 2
    assert "this triton comes without nvdisasm" in done.stderr


@pytest.mark.hf
@pytest.mark.slow
def test_qwen3_5_moe(kernelweld_command: Command, qwen: str, golden: Callable[[str], None]) -> None:
    """Registers and sizes depend on the compilers; that nothing spills does not."""
    done = kernelweld_command("compile", qwen, "--target", "sm_90")
    assert done.exit_code == 0, done.stderr
    numbers = re.compile(r"(sm_90 +\d+) +\d+ +(\d+ B) +\d+ B +\d+ B *")
    golden(numbers.sub(r"\1  #  \2  # B  # B", done.stdout))
