"""Words, patterns and passes of another distribution: in every verb, in the compile key, and broken."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from click.testing import Result

from kernelweld.cli import examining
from kernelweld.errors import KernelweldWarning
from kernelweld.integrations import offered
from kernelweld.integrations.hook import KernelweldPass
from kernelweld.ir import Word, op_of, vocabulary, words
from kernelweld.ir.word import Tensors
from kernelweld.passes import table as passes_table
from kernelweld.patterns import table as patterns_table
from kernelweld.patterns.table import patterns

Command = Callable[..., Result]

FILES = {
    "__init__.py": "",
    "bounds.py": "LOW, HIGH = -1.0, 1.0\n",
    "offers.py": '''
"""Hard tanh in FX: both bounds."""

from dataclasses import dataclass

import torch

from kernelweld.ir import Word
from kernelweld.passes.base import Pass, PassResult
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import aten, is_call
from kernelweld.patterns.reading import Miss, ReadingPattern, something_else
from square_gates.bounds import HIGH, LOW


@dataclass(frozen=True)
class HardTanh(Word):
    """``x`` between -1 and 1."""

    kind = "hard_tanh"
    operands = ("x",)
    dtype: torch.dtype

    def reference(self, x):
        return x.float().clamp(LOW, HIGH).to(self.dtype)


@dataclass(frozen=True)
class HardTanhPattern(ReadingPattern):
    """``clamp(x, -1, 1)``."""

    name = "hard_tanh"
    kind = "hard_tanh"
    spelling = "`x.clamp(-1, 1)`"
    anchors = (aten.clamp_max.default,)

    def read(self, anchor):
        lower = anchor.args[0]
        if not is_call(lower, aten.clamp_min.default):
            raise something_else(anchor)
        if (lower.args[1], anchor.args[1]) != (LOW, HIGH):
            raise Miss("%{} has the bounds {} and {}", anchor, anchor, lower.args[1], anchor.args[1])
        cover = Cover()
        cover.take(lower, anchor)
        return cover.match(HardTanh(anchor.meta["val"].dtype), (lower.args[0],), anchor)


@dataclass(frozen=True)
class IdlePass(Pass):
    """Does nothing.

    Before: ``x``
    After: ``x``
    """

    name = "idle"

    def run(self, gm, context):
        return PassResult(modified=False)
''',
}
OFFERS = """[kernelweld.words]
hard_tanh = square_gates.offers:HardTanh
[kernelweld.patterns]
hard_tanh = square_gates.offers:HardTanhPattern
[kernelweld.passes]
idle = square_gates.offers:IdlePass
"""
MODEL = """
import torch


def bounded(x, y, w):
    h = (x.clamp(-1, 1) * y).float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def target():
    draw = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16)
    return bounded, (draw(3, 96), draw(3, 96), draw(96)), {}


def called():
    def f(x, y, w):
        return bounded(torch.ops.kernelweld.hard_tanh(x, dtype=x.dtype), y, w)

    return f, target()[1], {}


def nearly():
    return (lambda x: x.clamp(-2, 2)), (torch.randn(3, 96),), {}
"""


def forget() -> None:
    """What a process knows of other distributions."""
    tables = (vocabulary.vocabulary, patterns_table.patterns, passes_table.passes, offered._code)
    for table in tables:
        table.cache_clear()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed distribution, ``square-gates 2.0``, and of a model that needs it."""
    folder = tmp_path_factory.mktemp("square_gates")
    package, info = folder / "square_gates", folder / "square_gates-2.0.dist-info"
    package.mkdir()
    info.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: square-gates\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(OFFERS)
    (folder / "square_gates_model.py").write_text(MODEL)
    return folder


@pytest.fixture
def installed(distribution: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """That distribution on the path; the module of targets."""
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(distribution))
    importlib.invalidate_caches()
    forget()
    yield "square_gates_model"
    monkeypatch.undo()
    forget()


def asked(command: Command, *arguments: str) -> dict[str, object]:
    done = command(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_it_is_listed_and_shown(kernelweld_command: Command, installed: str) -> None:
    listed = json.loads(kernelweld_command("patterns", "list", "--json").stdout)
    assert [listed[-1][key] for key in ("name", "word", "from")] == [
        "hard_tanh",
        "hard_tanh",
        "square-gates 2.0",
    ]
    shown = asked(kernelweld_command, "patterns", "show", "hard_tanh")
    assert (shown["from"], shown["word_from"]) == ("square-gates 2.0", "square-gates 2.0")
    assert (shown["before"], shown["example"]) == ("``clamp(x, -1, 1)``.", "`x.clamp(-1, 1)`")
    assert shown["after"] == "hard_tanh(x) {dtype=…}"
    assert kernelweld_command("passes", "list").stdout.splitlines()[-1].split()[0] == "idle"
    assert [one.what for one in examining.plugins() if one.state == "ok"] == [
        "word hard_tanh",
        "pattern hard_tanh",
        "pass idle",
    ]


def test_it_is_inspected(kernelweld_command: Command, installed: str) -> None:
    found = asked(kernelweld_command, "inspect", f"{installed}:target", "--pipeline", PIPELINE)
    (graph,) = found["graphs"]  # type: ignore[misc]
    assert graph["words"] == {"hard_tanh": 1, "rms_norm": 1}
    assert [weld["name"] for weld in graph["welds"]] == ["hard_tanh_rms_norm"]
    assert "idle" in graph["seconds"]


PIPELINE = "canonicalize,raise,idle,plan,lower{target=triton}"


def test_it_is_explained(kernelweld_command: Command, installed: str) -> None:
    done = kernelweld_command("explain", f"{installed}:target", "--kind", "hard_tanh")
    assert done.exit_code == 0, done.stderr
    assert "hard_tanh{dtype=float32}" in done.stdout
    assert "in hard_tanh_rms_norm (hard_tanh -> rms_norm)" in done.stdout
    done = kernelweld_command("explain", f"{installed}:nearly", "--near-misses")
    assert "no hard_tanh: %clamp_max has the bounds -2 and 2" in done.stdout
    assert "Write it as `x.clamp(-1, 1)`." in done.stdout


def test_it_is_counted_verified_and_sized(kernelweld_command: Command, installed: str) -> None:
    target = f"{installed}:target"
    covered = asked(kernelweld_command, "patterns", "coverage", target)["words"]
    row = {"patterns": ["hard_tanh"], "found": 1, "welded": 1, "near_misses": 0}
    assert covered["hard_tanh"] == row  # type: ignore[index]
    for verb in (("verify",), ("bench", "--dry-run")):
        found = json.dumps(asked(kernelweld_command, verb[0], target, *verb[1:]))
        assert '"hard_tanh_rms_norm"' in found
        assert '"holds": false' not in found


def test_a_word_that_a_model_calls_is_ejected(kernelweld_command: Command, installed: str) -> None:
    words()
    done = kernelweld_command("eject", f"{installed}:called", "--weld", "hard_tanh_rms_norm")
    assert done.exit_code == 0, done.stderr
    assert "hard_tanh.default" not in done.stdout, "the file needs torch and triton alone"
    assert "clamp_min" in done.stdout


def test_the_operator_runs(installed: str) -> None:
    cls = words()["hard_tanh"]
    x = torch.randn(3, 8)
    assert torch.equal(op_of(cls)(x, dtype=torch.float32), x.clamp(-1, 1))
    assert vocabulary.offered_by("hard_tanh") == "square-gates 2.0"


def test_it_is_imported_when_the_vocabulary_is_asked_for(distribution: Path) -> None:
    code = (
        "import sys, kernelweld.cli.main, kernelweld.integrations.fuse; "
        "assert 'square_gates' not in sys.modules; "
        "from kernelweld.ir import words; assert 'hard_tanh' in words() and 'square_gates' in sys.modules"
    )
    path = os.pathsep.join([str(distribution), str(Path(__file__).parents[2])])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)


# --- the compile key ---


def test_words_and_patterns_are_part_of_the_compile_key(request: pytest.FixtureRequest) -> None:
    plain = KernelweldPass().uuid()
    request.getfixturevalue("installed")
    both = KernelweldPass().uuid()
    assert both != plain
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns_table, "entry_points", lambda group: [])
        patterns_table.patterns.cache_clear()
        assert KernelweldPass().uuid() not in (plain, both)


def test_a_pass_is_part_of_the_key_of_the_pipelines_that_name_it(installed: str, distribution: Path) -> None:
    with_it, without = KernelweldPass(PIPELINE), KernelweldPass()
    before = with_it.uuid(), without.uuid()
    (line,) = [line for line in offered.offers(PIPELINE) if line.startswith("pass")]
    assert line.startswith("pass idle of square-gates 2.0 ")
    assert not any(line.startswith("pass") for line in offered.offers(without.pipeline))
    helper = distribution / "square_gates" / "bounds.py"
    helper.write_text(FILES["bounds.py"] + "# another file of the package\n")
    assert (with_it.uuid(), without.uuid()) == before  # what this process has loaded
    forget()
    assert (with_it.uuid() != before[0], without.uuid() != before[1]) == (True, True)


# --- what is broken ---


class OfTests(Word):
    """What the words below share."""

    kind = "of_tests"
    operands = ("x",)

    def reference(self, *tensors: torch.Tensor | None) -> Tensors:
        raise NotImplementedError


@dataclass(frozen=True)
class Good(OfTests):
    """A word that can be used."""


class Undecorated(OfTests):
    """A parameter, and no dataclass that would have it."""

    factor: float = 2.0


@dataclass(frozen=True)
class Listed(OfTests):
    """A parameter of a type that no operator has."""

    kind = "of_tests_listed"
    parts: list[int]


@dataclass(frozen=True)
class Incomplete(Word):
    """No reference."""

    kind = "of_tests"
    operands = ("x",)


@dataclass(frozen=True)
class Second(OfTests):
    """A kind that has an operator already, of a class that is forgotten."""

    kind = "rms_norm"


HERE = __name__


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("gone", "no_such_module:Gone", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("path", "pathlib:Path", "TypeError: pathlib:Path is not a Word with a reference"),
        ("of_tests", f"{HERE}:Incomplete", f"TypeError: {HERE}:Incomplete is not a Word with a reference"),
        ("other", f"{HERE}:Good", f"TypeError: {HERE}:Good is called 'of_tests'"),
        ("of_tests", f"{HERE}:Undecorated", "lacks @dataclass(frozen=True)"),
        (
            "of_tests_listed",
            f"{HERE}:Listed",
            "TypeError: the parameter `parts` of Listed is none of: bool",
        ),
        ("rms_norm", f"{HERE}:Second", "ValueError: kernelweld.ir.rms_norm:RMSNorm has that name too"),
    ],
)
def test_a_broken_word_is_left_out_and_doctor_says_why(
    monkeypatch: pytest.MonkeyPatch, kind: str, value: str, reason: str
) -> None:
    point = EntryPoint(kind, value, vocabulary.GROUP)
    only = {vocabulary.GROUP: [point]}
    monkeypatch.setattr(vocabulary, "entry_points", lambda group: only[group])
    monkeypatch.setattr(examining, "entry_points", lambda group: only.get(group, []))
    forget()
    with pytest.warns(KernelweldWarning) as warned:
        known = words()
    text = str(warned[0].message)
    assert len(warned) == 1
    assert f"kernelweld: word '{kind}' ({value}) cannot be used: " in text and reason in text
    assert text.endswith("Repair or uninstall the package that offers it.")
    assert list(known.values()) == list(vocabulary.WORDS)
    (finding,) = examining.plugins()
    assert (finding.what, finding.state) == (f"word {kind}", "broken")
    assert reason.split(",")[0] in finding.found
    monkeypatch.undo()
    forget()


def test_an_operator_that_exists_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.library._scoped_library("kernelweld", "FRAGMENT") as library:
        library.define("of_tests(Tensor x) -> Tensor")
        monkeypatch.setattr(
            vocabulary, "entry_points", lambda group: [EntryPoint("of_tests", f"{HERE}:Good", "")]
        )
        forget()
        with pytest.warns(KernelweldWarning, match="word 'of_tests' .* cannot be used: RuntimeError"):
            assert "of_tests" not in words()
    monkeypatch.undo()
    forget()


def test_a_pattern_needs_its_word(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "entry_points", lambda group: [])
    forget()
    with pytest.warns(KernelweldWarning, match="there is no word 'hard_tanh' for it to raise"):
        assert "hard_tanh" not in patterns()


def test_a_word_that_is_not_offered_has_no_operator() -> None:
    with pytest.raises(LookupError, match=f"{HERE}:Good is no word: offer it in the group kernelweld.words"):
        op_of(Good)


def test_a_broken_pass_is_listed_as_such(
    kernelweld_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("gone", "no_such_module:Gone", passes_table.GROUP)
    monkeypatch.setattr(passes_table, "entry_points", lambda group, **_: [point])
    forget()
    (row,) = [one for one in json.loads(kernelweld_command("passes", "list", "--json").stdout)][-1:]
    assert (row["name"], row["from"]) == ("gone", "unknown")
    assert row["summary"] == "broken: ModuleNotFoundError: No module named 'no_such_module'"
    done = kernelweld_command("passes", "show", "gone")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "pass 'gone' (no_such_module:Gone) cannot be used: ModuleNotFoundError" in done.stderr
    monkeypatch.undo()
    forget()
