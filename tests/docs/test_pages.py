"""The pages say what the results and the code say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_performance_page_is_written_from_the_results() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page == benchmark("performance_page").page()


def test_the_page_of_vllm_has_the_results() -> None:
    module = benchmark("vllm_page")
    record = json.loads(module.RESULTS.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert module.table(record) in page and f"commit {record['environment']['commit']}" in page
    for model in record["models"].values():
        for batch in module.BATCHES:
            before, after = (model[f"batch {batch}"][variant] for variant in ("vllm", "kernelweld"))
            assert after["gpu_us"] < before["gpu_us"], "as the page says"
            assert min(after["all"]) < min(before["all"]), "as the page says"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{p}.md" for p in ("index", "command-line", "add-a-pattern", "vllm")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_options_of_vllm_are_all_on_their_page() -> None:
    from kernelweld.integrations.vllm.options import Options

    text = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE)
    defaults = json.loads(Options().to_json())
    assert [name for name, _ in rows] == [one.name for one in fields(Options)]
    assert {name: json.loads(value) for name, value in rows} == defaults


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return [
        shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()
    ]


PAGES = ("README.md", "docs/bench.md", "docs/command-line.md", "docs/explain.md", "docs/vllm.md")
COMMANDS = [command for page in PAGES for command in commands(page)]


def test_commands_exist() -> None:
    """``make`` targets of the pages are real."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in COMMANDS:
        if command[0] == "make":
            assert re.search(rf"^{command[1]}:", makefile, re.MULTILINE), command
        else:
            assert command[0] == "kernelweld", command


@pytest.mark.parametrize(
    "arguments", [c[1:] for c in COMMANDS if c[0] == "kernelweld"], ids=lambda a: " ".join(a)
)
def test_command_lines_parse(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each command line of the pages gets as far as building its target, or shows what needs none."""
    from typer.testing import CliRunner

    import kernelweld.cli.bench as bench_command
    import kernelweld.cli.doctor as doctor_command
    import kernelweld.cli.inspect as inspect_command
    from kernelweld.cli.main import app

    class Reached(Exception):
        pass

    def reached(*_: object, **__: object) -> None:
        raise Reached

    monkeypatch.chdir(tmp_path)  # folders to write to are made first
    monkeypatch.setattr(inspect_command, "build", reached)
    monkeypatch.setattr(bench_command, "_bench", lambda *_: None)  # what needs a GPU
    monkeypatch.setattr(doctor_command, "_show", reached)
    monkeypatch.setattr("kernelweld.cli.vllm_model.model_config", reached)
    monkeypatch.setattr("kernelweld.cli.examining.CHECKS", {})
    monkeypatch.setattr("kernelweld.cli.tracing.read", lambda _: ())  # a profile that is not there
    result = CliRunner().invoke(app, arguments)
    if arguments[0] in ("patterns", "passes") and arguments[1] in ("list", "show"):
        assert result.exit_code == 0 and result.stdout
    else:
        assert isinstance(result.exception, Reached), result.output
