"""``kernelweld doctor``: findings of this machine, and of machines where something is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.cli import examining
from kernelweld.cli.examining import Finding
from kernelweld.errors import CodegenFailed

Command = Callable[..., Result]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compilers that answer at once, and a cache folder of the test's own."""
    monkeypatch.setattr("kernelweld.codegen.crosscompile.compile_for", lambda kernel, targets: [])
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)


def findings(done: Result) -> Mapping[str, Mapping[str, object]]:
    return {one["what"]: one for one in json.loads(done.stdout)["findings"]}


@pytest.mark.usefixtures("quick")
def test_every_line_is_a_state_and_what_is_wrong_has_a_remedy(kernelweld_command: Command) -> None:
    done = kernelweld_command("doctor", "--json")
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["ok"]
    found = findings(done)
    assert {"python", "torch", "triton", "transformers", "vLLM", "FlashInfer", "NIXL"} <= set(found)
    assert {"GPU", "driver", "cache folder", "interpreter", "compiles for gfx942"} <= set(found)
    for one in found.values():
        assert one["state"] in ("ok", "missing", "broken")
        assert one["state"] == "ok" or one["remedy"] or one["what"] == "driver"


def test_the_compilers_of_this_machine() -> None:
    """The kernel that is compiled is a whole one."""
    states = {one.what: one.state for one in examining.compilers()}
    assert states["compiles for sm_90"] == states["compiles for gfx942"] == "ok"


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_written(
    kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    done = kernelweld_command("doctor")
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if "cache folder" in line]
    assert line.split()[0] == "broken"
    assert "Set KERNELWELD_CACHE_DIR to a folder that can be written." in done.stdout


@pytest.mark.usefixtures("quick")
def test_a_damaged_package(kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(name: str) -> object:
        raise OSError("libcudart.so.13: cannot open shared object file\nand more")

    monkeypatch.setattr("importlib.import_module", damaged)
    found = {one.what: one for one in examining.packages()}
    assert found["torch"].fails
    assert found["torch"].found == "OSError: libcudart.so.13: cannot open shared object file"


def test_what_is_optional_does_not_fail(kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("pass x", "broken", "ImportError", "Repair it.")

    monkeypatch.setattr(examining, "CHECKS", {"plug-ins": broken})
    done = kernelweld_command("doctor")
    assert (done.exit_code, "broken" in done.stdout) == (0, True)


def test_a_target_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: object, targets: tuple[str, ...]) -> None:
        raise CodegenFailed("doctor", "it does not compile")

    monkeypatch.setattr("kernelweld.codegen.crosscompile.compile_for", fails)
    states = {one.what: one.state for one in examining.compilers()}
    assert states["compiles for sm_100"] == "broken"


def test_plugins_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = {
        "kernelweld.words": EntryPoint("norm", "kernelweld.ir.rms_norm:RMSNorm", ""),
        "kernelweld.patterns": EntryPoint("norms", "kernelweld.patterns.rms_norm:RMSNormPattern", ""),
        "kernelweld.passes": EntryPoint("gone", "no_such_module:GonePass", ""),
    }
    monkeypatch.setattr(examining, "entry_points", lambda group: [offers[group]])
    monkeypatch.setattr("kernelweld.passes.table.passes", lambda: {"gone": "no_such_module:GonePass"})
    word, pattern, a_pass = examining.plugins()
    assert (word.what, word.state) == ("word norm", "broken")
    assert word.found == "TypeError: kernelweld.ir.rms_norm:RMSNorm is called 'rms_norm'"
    assert (pattern.state, "is called 'rms_norm'" in pattern.found) == ("broken", True)
    assert (a_pass.what, a_pass.state) == ("pass gone", "broken")
    assert a_pass.found == "ModuleNotFoundError: No module named 'no_such_module'"
    assert a_pass.remedy == "Repair or uninstall the package that offers no_such_module:GonePass."


@pytest.mark.parametrize(
    ("found", "state", "says", "remedy"),
    [
        (None, "missing", "not installed", "0.26 to 0.33 are supported"),
        ("0.32.0", "ok", "0.32.0, supported: 0.26 to 0.33", ""),
        ("0.25.1", "broken", "kernelweld is inactive in it: vLLM 0.25.1 is older than 0.26", "0.26 to 0.33"),
        ("0.40.0", "broken", "vLLM 0.40.0 is newer than 0.33", "Install a release from"),
    ],
    ids=["absent", "supported", "old", "new"],
)
def test_vllm(monkeypatch: pytest.MonkeyPatch, found: str | None, state: str, says: str, remedy: str) -> None:
    monkeypatch.setattr("kernelweld.integrations.vllm.versions.installed", lambda: found)
    line, *more = examining.vllm()
    assert (line.what, line.state, line.fails) == ("vLLM", state, False)
    assert says in line.found and remedy in line.remedy
    assert [one.what for one in more] == ([] if found is None else ["vLLM plug-in"])


@pytest.mark.parametrize(
    ("registered", "wanted", "state", "says"),
    [
        (True, None, "ok", "kernelweld.integrations.vllm.plugin:register"),
        (True, "other,kernelweld", "ok", "kernelweld.integrations.vllm.plugin:register"),
        (True, "other", "missing", "VLLM_PLUGINS=other leaves it out"),
        (True, "", "missing", "VLLM_PLUGINS= leaves it out"),
        (False, None, "missing", "its entry point is not registered"),
    ],
    ids=["registered", "wanted", "unwanted", "none wanted", "not registered"],
)
def test_the_plugin_of_vllm(
    monkeypatch: pytest.MonkeyPatch, registered: bool, wanted: str | None, state: str, says: str
) -> None:
    point = EntryPoint("kernelweld", "kernelweld.integrations.vllm.plugin:register", "vllm.general_plugins")
    groups = {point.group: [point]} if registered else {}
    monkeypatch.setattr(examining, "entry_points", lambda group: groups.get(group, []))
    monkeypatch.setattr("kernelweld.integrations.vllm.versions.installed", lambda: "0.32.0")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("VLLM_PLUGINS", wanted)
    _, line = examining.vllm()
    assert (line.state, line.found) == (state, says)
    assert bool(line.remedy) == (state == "missing")
