"""``kernelweld patterns`` and ``passes``: what there is, what it means, its origin, what it finds."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import Result

from kernelweld.errors import KernelweldWarning
from kernelweld.integrations.hook import KernelweldPass
from kernelweld.passes import table as passes_table
from kernelweld.patterns import table as patterns_table
from kernelweld.patterns.table import PATTERNS, merged

Command = Callable[..., Result]

PLUGIN = '''
"""Softened gates in FX."""

from dataclasses import dataclass
from typing import ClassVar

from kernelweld.passes.base import Pass, PassResult
from kernelweld.patterns.gate_mul import GateMulPattern


@dataclass(frozen=True)
class SoftPattern(GateMulPattern):
    """``soft(gate) * up``."""

    name: ClassVar[str] = "soft_gate"


@dataclass(frozen=True)
class IdlePass(Pass):
    """Does nothing.

    Before: ``x``
    After: ``x``
    """

    name: ClassVar[str] = "idle"

    times: int = 3

    def run(self, gm, context):
        return PassResult(modified=False)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution, ``soft-gates 1.2``, that offers a pattern and a pass."""
    (tmp_path / "soft_gates.py").write_text(PLUGIN)
    info = tmp_path / "soft_gates-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soft-gates\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[kernelweld.patterns]\nsoft_gate = soft_gates:SoftPattern\n"
        "[kernelweld.passes]\nidle = soft_gates:IdlePass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    patterns_table.patterns.cache_clear()
    passes_table.passes.cache_clear()
    yield
    monkeypatch.undo()
    patterns_table.patterns.cache_clear()
    passes_table.passes.cache_clear()


@pytest.mark.parametrize("verb", ["patterns", "passes"])
def test_list(kernelweld_command: Command, golden: Callable[[str], None], verb: str) -> None:
    done = kernelweld_command(verb, "list")
    assert done.exit_code == 0, done.stderr
    golden(done.stdout)


@pytest.mark.parametrize("command", ["patterns show gate_mul", "passes show plan", "passes show only-welds"])
def test_show(kernelweld_command: Command, golden: Callable[[str], None], command: str) -> None:
    done = kernelweld_command(*command.split())
    assert done.exit_code == 0, done.stderr
    golden(done.stdout)


def assert_says_everything(documentation: str, options: list[str]) -> None:
    """A pass has an example before and one after, each on lines of its own, and a word on each option."""
    for label in ("Before: ", "After: "):
        assert [line for line in documentation.splitlines() if line.startswith(label)], documentation
    for option in options:
        field = option.partition("=")[0].replace("-", "_")
        assert f"``{field}``" in documentation or f"``{field}=" in documentation, option


@pytest.mark.parametrize("verb", ["patterns", "passes"])
def test_everything_listed_can_be_shown(kernelweld_command: Command, verb: str) -> None:
    listed = json.loads(kernelweld_command(verb, "list", "--json").stdout)
    for one in listed:
        assert one["summary"]
        shown = json.loads(kernelweld_command(verb, "show", one["name"], "--json").stdout)
        assert (shown["name"], shown["from"]) == (one["name"], "kernelweld")
        if verb == "patterns":
            assert shown["before"] and shown["example"] and shown["word_documentation"]
            assert shown["after"].startswith(f"{one['word']}(")
        else:
            assert_says_everything(shown["documentation"], shown["options"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("patterns show rms_nrm", "unknown pattern 'rms_nrm'; did you mean 'rms_norm'"),
        ("passes show plans", "did you mean 'plan'"),
        ("patterns coverage hf:lama", "did you mean 'hf:llama'"),
    ],
)
def test_unknown_names(kernelweld_command: Command, command: str, message: str) -> None:
    done = kernelweld_command(*command.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


# --- other distributions ---


@pytest.mark.usefixtures("plugin")
def test_what_others_offer_is_listed_last_with_its_origin(kernelweld_command: Command) -> None:
    for verb, name in (("patterns", "soft_gate"), ("passes", "idle")):
        assert kernelweld_command(verb, "list").stdout.splitlines()[-1].split()[0] == name
        listed = json.loads(kernelweld_command(verb, "list", "--json").stdout)
        assert (listed[-1]["name"], listed[-1]["from"]) == (name, "soft-gates 1.2")
        shown = kernelweld_command(verb, "show", name).stdout
        assert shown.startswith(f"{name}, of soft-gates 1.2\n")
    assert "times=3: an integer" in kernelweld_command("passes", "show", "idle").stdout
    assert "``soft(gate) * up``" in kernelweld_command("patterns", "show", "soft_gate").stdout


def test_what_others_offer_is_part_of_the_compile_key(request: pytest.FixtureRequest) -> None:
    plain = KernelweldPass().uuid()
    request.getfixturevalue("plugin")
    assert KernelweldPass().uuid() != plain


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("broken", "no_such_module:X", "ModuleNotFoundError"),
        ("path", "pathlib:Path", "pathlib:Path is not a Pattern"),
        ("other", "kernelweld.patterns.rope:RopePattern", "is called 'rope'"),
        (
            "rope",
            "kernelweld.patterns.rope:RopePattern",
            "kernelweld.patterns.rope:RopePattern has that name",
        ),
    ],
)
def test_a_broken_offer_is_left_out_with_a_warning(name: str, value: str, reason: str) -> None:
    with pytest.warns(KernelweldWarning, match=reason):
        found = merged(PATTERNS, [EntryPoint(name, value, "kernelweld.patterns")])
    assert dict(found) == dict(PATTERNS)


# --- coverage ---


def test_coverage(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("patterns", "coverage", f"{models}:near_miss", "--json")
    assert done.exit_code == 0, done.stderr
    words = json.loads(done.stdout)["words"]
    assert words["gate_mul"]["found"] == 1
    assert (words["rms_norm"]["found"], words["rms_norm"]["near_misses"]) == (0, 1)
    assert words["quant"]["patterns"] == ["quant", "quant_operator"]
    words = json.loads(kernelweld_command("patterns", "coverage", f"{models}:target", "--json").stdout)[
        "words"
    ]
    for kind in ("residual_add", "rms_norm", "gate_mul"):
        assert (words[kind]["found"], words[kind]["welded"], words[kind]["near_misses"]) == (1, 1, 0)


@pytest.mark.hf
@pytest.mark.slow
def test_qwen3_5_moe(kernelweld_command: Command, qwen: str, golden: Callable[[str], None]) -> None:
    done = kernelweld_command("patterns", "coverage", qwen)
    assert done.exit_code == 0, done.stderr
    golden(done.stdout)
