"""``kernelweld report``: the launches of each layer, the page as it is written, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from click.testing import Result
from torch import Tensor, nn

from kernelweld.cli import compiling
from kernelweld.cli.benching import Figures
from kernelweld.cli.code import Code
from kernelweld.cli.compiling import Built, Wanted
from kernelweld.cli.html.highlight import highlighted
from kernelweld.cli.html.markup import element
from kernelweld.cli.html.page import page
from kernelweld.cli.layers import Block, Layer, alike, kinds, letter, numbers, stretches
from kernelweld.cli.reported import MissShown, Shown, WeldShown
from kernelweld.cli.reporting import Ran, run, shown
from kernelweld.cli.targets import Target
from kernelweld.cli.times import Measured, Times
from kernelweld.codegen.emit import Kernel
from kernelweld.codegen.tuning import Entry, Tuning, kernel_key
from kernelweld.codegen.tuning_file import write_tuning
from kernelweld.errors import CodegenFailed
from kernelweld.ir.report import Launches, NearMiss

Command = Callable[..., Result]

HOSTILE = "<script>alert('x')</script>\"&"
_EMPTY = {"meta", "input", "br"}


class Checked(HTMLParser):
    """A page whose elements are all closed in order; keeps ids, references and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.loads: list[str] = []
        self.names: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        found = dict(attributes)
        assert len(found) == len(attributes), self.get_starttag_text()
        if tag not in _EMPTY:
            self.open.append(tag)
        self.ids += [found["id"] or ""] if "id" in found else []
        for name in ("href", "for", "src", "data", "action", "srcset", "poster"):
            value = found.get(name)
            if name == "for" and value:
                self.anchors.append(value)
            elif value is not None:
                (self.anchors if value.startswith("#") else self.loads).append(value.removeprefix("#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)


def checked(text: str) -> Checked:
    """What every page must be, whatever it shows."""
    found = Checked(text)
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.anchors) <= set(found.ids)
    assert found.loads == []
    assert not re.search(r"https?://|@import|url\(", text), "it works without a network"
    assert "prefers-color-scheme: dark" in text
    assert found.names.count("script") == 2
    assert found.names.count("h1") == found.names.count("main") == 1
    return found


def blocks(*kinds_: str, weld: int = 0) -> tuple[Block, ...]:
    """Blocks of so many kinds: w is a weld, l a library call, g a generated kernel."""
    made = {
        "w": Block("weld", "rms_norm", "norm", "model.py:3", weld, "weld"),
        "l": Block("library", "mm", "mlp.up_proj", "model.py:4", None, "call mm"),
        "g": Block("generated", "add, mul", "mlp", None, None, "kernel add"),
    }
    return tuple(made[kind] for kind in kinds_)


def weld(name: str = "rms_norm", **fields: object) -> WeldShown:
    plain = WeldShown(
        name=name,
        count=61,
        layers=("model.layers.0",),
        tasks=(("rms_norm{eps=1e-06}",), ("rope{dim=64}",)),
        code=(Code("model.py", 3, "    return x * rsqrt(x)"), Code("gone.py", 9)),
        before=4,
        rows=7,
        moved=1234567,
        source="import triton\n\n\ndef kernel(x):  # a comment\n    return f'{x} <b>'\n",
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def synthetic(count: int = 61, name: str = "hf:synthetic", **fields: object) -> Shown:
    """A report of ``count`` layers, three of which are of a kind of their own."""
    layers = [
        Layer(f"model.layers.{i}", i, blocks(*"gglgl" * 12), blocks(*"wlgl" * (12 if i > 2 else 11)))
        for i in range(count)
    ]
    outside = Layer("before the layers", None, blocks("g"), blocks("g"))
    miss = NearMiss(
        "pow_1", "rms_norm", "model.py:8", "not welded: the %pow_1 is cubed", "cost", remedy="Square."
    )
    plain = Shown(
        target=name,
        date="2025-01-02",
        facts={"phase": "prefill"},
        versions={"torch": "2.13"},
        calls=19000,
        launches=Launches(3661, 2932),
        words={"rms_norm": (792, 790)},
        layers=(outside, *layers),
        welds=(weld(),),
        misses=(MissShown(miss, 2, (Code("model.py", 8, "y = x ** 3"),)),),
        seconds={"raise": 0.25, "plan": 1.5},
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Block_(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = Norm(), nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.norm(x))


class Model(nn.Module):
    """Three equal layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 64), nn.Linear(64, 16, bias=False)
        self.layers, self.norm = nn.ModuleList(Block_() for _ in range(3)), Norm()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@pytest.fixture(scope="module")
def ran() -> Ran:
    torch.manual_seed(0)
    target = Target("model", Model().to(torch.bfloat16), (torch.arange(5)[None],), {})
    return run(target, merge=True, stop=False)


@pytest.fixture
def no_tunings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWELD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that compiles nothing."""

    def compile_for(kernel: Kernel, targets: Sequence[str], stages: Sequence[str]) -> None:
        raise CodegenFailed(kernel.name, "it does not compile", excerpt="no such <instruction>")

    monkeypatch.setattr(compiling, "compile_for", compile_for)


def test_launches_by_layer(ran: Ran) -> None:
    """The residual sum of a layer is computed with the next layer's norm, and is of that layer."""
    names = [layer.name for layer in ran.layers]
    assert names == ["layers.0", "layers.1", "layers.2", "after the layers"]
    for row in ("before", "after"):
        counted = sum(len(getattr(layer, row)) for layer in ran.layers)
        assert counted == sum(getattr(report.launches, row) for report in ran.reports)
    first, second, third, end = ran.layers
    assert [block.kind for block in second.after] == ["weld", "library"]
    assert [block.name for block in second.after] == ["residual_add_rms_norm", "mm"]
    assert (second.after[0].module, second.after[1].module) == ("norm", "up")
    assert second.after[0].source is not None and "test_report.py:" in second.after[0].source
    assert [block.kind for block in end.after] == ["weld", "library"]
    assert kinds(ran.layers) == {"layers.0": 0, "layers.1": 1, "layers.2": 1}
    assert second.before[1].name == "mm" and "embedding" in first.before[0].name
    assert third.saved == 0


def test_distinct_welds(ran: Ran, no_tunings: None) -> None:
    found = shown(Target("model", Model(), (), {}), ran, {}, Wanted.parsed("", ""), Times.known(None))
    named = {weld.name: (weld.count, weld.layers) for weld in found.welds}
    last = ("after the layers",)  # it does not write the sum, which nobody reads
    assert named == {
        "residual_add_rms_norm": (2, ("layers.1", "layers.2")),
        "residual_add_rms_norm-2": (1, last),
    }
    first = found.welds[0]
    assert first.tasks[0][-1].startswith("rms_norm{")
    assert any("torch.rsqrt" in (line.text or "") for line in first.code)
    assert {line.file.rpartition("/")[2] for line in first.code} == {"test_report.py"}
    assert "@triton.jit" in first.source
    assert str(Path(__file__).parent) not in first.source, "a report tells nothing about folders"
    assert (first.built, first.measured) == ((), ())
    weld_numbers = {block.weld for layer in found.layers for block in layer.after if block.kind == "weld"}
    assert weld_numbers == set(range(len(found.welds)))
    assert found.words["rms_norm"] == (4, 3)


def test_a_kernel_that_does_not_compile_shows_in_its_place(
    ran: Ran, no_tunings: None, scripted: None
) -> None:
    wanted = Wanted.parsed("sm_90,gfx942", "")
    told: list[str] = []
    found = shown(Target("m", Model(), (), {}), ran, {}, wanted, Times.known(None), told.append)
    text = page(found)
    assert [line.partition(" ")[0] for line in told] == [weld.name for weld in found.welds]
    joined = " ".join(checked(text).texts)
    assert joined.count("does not compile") >= 2 * len(found.welds)
    assert "no such <instruction>" in joined and "no such <instruction>" not in text


def test_times_of_a_file_are_matched_by_what_was_run(ran: Ran, tmp_path: Path, no_tunings: None) -> None:
    plain = shown(Target("m", Model(), (), {}), ran, {}, Wanted.parsed("", ""), Times.known(None))
    name = "residual_add_rms_norm"  # bench does not number kernels
    entries = [
        Figures(
            name, 1, weld.rows, weld.moved, weld.before, {"kernelweld": 2.0 + i, "eager": 20.0}, 0.5
        ).as_dict()
        for i, weld in enumerate(plain.welds)
    ]
    entries[0]["rows"] = 1000  # of another run
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"gpu": "a GPU", "runs": [{"welds": entries[::-1]}]}))
    found = shown(Target("m", Model(), (), {}), ran, {}, Wanted.parsed("", ""), Times.known(file))
    first, second = found.welds[:2]
    assert first.measured == ()
    assert second.measured == (Measured("a GPU", "bench", {"kernelweld": 3.0, "eager": 20.0}, 0.5),)
    texts = " ".join(checked(page(found)).texts)
    assert "3.00 µs" in texts and "50% of the speed of a copy" in texts


def test_tuned_times_of_this_machine(ran: Ran, no_tunings: None) -> None:
    program = ran.firsts[0].specimen.program
    launch = compiling.launch_for(program, "sm_90")
    write_tuning(Tuning("a GPU").including([Entry(kernel_key(program), 4, launch, 1.5, 2.5)]))
    (found, *_) = shown(Target("m", Model(), (), {}), ran, {}, Wanted.parsed("", ""), Times.known(None)).welds
    assert found.measured == (Measured("a GPU", "bench --tune", {"kernelweld": 2.5, "tuned": 1.5}),)


def test_a_page_of_61_layers_is_small() -> None:
    text = page(synthetic())
    found = checked(text)
    assert len(text.encode()) < 1_000_000
    assert {"layers", "welds", "misses", "passes", "kind-A", "kind-B", "weld-1"} <= set(found.ids)
    assert sum(name == "article" for name in found.names) == 4, "a kind of layer is drawn once"
    texts = " ".join(found.texts)
    for part in (
        "3661",
        "2932",
        "20%",
        "Layers 0–2",
        "Layers 3–60",
        "1,234,567 bytes",
        "gone.py:9",
        "Square.",
    ):
        assert part in texts, part


def test_what_comes_from_a_model_is_escaped() -> None:
    block = Block("generated", HOSTILE, HOSTILE, f"{HOSTILE}:3", None, "k")
    layer = Layer(f"{HOSTILE}.0", 0, (block,), (block,))
    compiled = CodegenFailed(HOSTILE, HOSTILE, excerpt=HOSTILE)
    built = Built(HOSTILE, 1, HOSTILE, None, None, compiled)  # type: ignore[arg-type]
    code = (Code(HOSTILE, 1, HOSTILE),)
    made = weld(
        HOSTILE,
        tasks=((f"{HOSTILE}{{a={HOSTILE}}}",),),
        code=code,
        layers=(layer.name,),
        source=f"{HOSTILE}\n",
        built=(built,),
        measured=(Measured(HOSTILE, HOSTILE, {HOSTILE: 1.0}),),
    )
    miss = NearMiss(HOSTILE, HOSTILE, f"{HOSTILE}:1", HOSTILE, "pattern", HOSTILE, HOSTILE, HOSTILE)
    text = page(
        synthetic(
            name=HOSTILE,
            facts={HOSTILE: HOSTILE},
            versions={HOSTILE: HOSTILE},
            words={HOSTILE: (1, 1)},
            layers=(layer,),
            welds=(made,),
            misses=(MissShown(miss, 1, code),),
            seconds={HOSTILE: 1.0},
            failures=(HOSTILE,),
            breaks=(HOSTILE,),
        )
    )
    found = checked(text)
    assert "<script>alert" not in text
    assert "".join(found.texts).count("alert('x')") > 25


def test_nothing_to_show() -> None:
    text = page(synthetic(layers=(), welds=(), misses=(), seconds={}, words={}, launches=Launches(0, 0)))
    texts = " ".join(checked(text).texts)
    assert "No weld was made." in texts and "as many as before" in texts


@pytest.mark.parametrize(
    "source",
    [
        'def f(x):\n    # <b>\n    return f\'{x!r:>{3}} "&\' + """a\nb""" if x else 1.5e-6\n',
        "return x * torch.rsqrt(x.pow(2)",
        "    x = [1,\n",
        "'unclosed",
        "for x in $y",
        "",
    ],
)
def test_colours_change_no_character(source: str) -> None:
    assert "".join(Checked(highlighted(source)).texts) == source


def test_colours() -> None:
    found = highlighted("return 1  # one\n")
    assert found == '<span class="k">return</span> <span class="n">1</span>  <span class="c"># one</span>\n'


def test_attributes() -> None:
    made = element("a", "<", class_='"', hidden=True, title=None, data_x=3, lang=False)
    assert made == '<a class="&quot;" hidden data-x="3">&lt;</a>'


def test_letters_and_numbers() -> None:
    assert [letter(i) for i in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    found = [Layer(f"{name}.{i}", i, (), ()) for name, i in [("a", 0), ("a", 1), ("a", 3), ("b", 0)]]
    assert numbers(found) == {"a": "0–1, 3", "b": "0"}


def test_equal_layers_are_of_one_kind() -> None:
    rows = [("gl", "wl"), ("lg", "wl"), ("gl", "gl")]
    found = [Layer(f"l.{i}", i, blocks(*a), blocks(*b)) for i, (a, b) in enumerate(rows)]
    other = Layer("l.3", 3, blocks(*"gl"), blocks(*"wl", weld=1))
    outside = Layer("after the layers", None, blocks("g"), blocks("g"))
    groups = alike([*found, other, outside])
    assert {key: [one.name for one in group] for key, group in groups.items()} == {
        "A": ["l.0", "l.1"],
        "B": ["l.2"],
        "C": ["l.3"],
        "after the layers": ["after the layers"],
    }


def test_what_stays_stands_under_itself() -> None:
    def named(*keys: str) -> tuple[Block, ...]:
        return tuple(Block("library", key, "", None, None, key) for key in keys)

    layer = Layer("l.0", 0, named("a", "x", "y", "b", "c"), named("a", "w", "b", "d", "c"))
    pairs = [
        ("".join(b.key for b in one.before), "".join(b.key for b in one.after)) for one in stretches(layer)
    ]
    assert pairs == [("a", "a"), ("xy", "w"), ("b", "b"), ("", "d"), ("c", "c")]


def test_written_once(kernelweld_command: Command, models: str) -> None:
    command = ("report", f"{models}:target", "--html", "out/r.html")
    done = kernelweld_command(*command, "--no-compile")
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    assert "the report is written to out/r.html" in done.stderr
    file = Path("out/r.html")
    texts = " ".join(checked(file.read_text(encoding="utf-8")).texts)
    assert "residual_add_rms_norm__gate_mul" in texts and "Not in a layer" in texts
    file.write_text("mine")
    again = kernelweld_command(*command)
    assert again.exit_code == 2
    assert "out/r.html exists, and nothing was written" in again.stderr and "--force" in again.stderr
    assert file.read_text() == "mine"
    assert kernelweld_command(*command, "--force", "--target", "").exit_code == 0
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_and_registers(kernelweld_command: Command, models: str) -> None:
    """By the real compiler."""
    done = kernelweld_command("report", f"{models}:target", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    (weld,) = found["welds"]
    assert found["launches"] == {"before": len(found["layers"][0]["before"]), "after": 1}
    assert weld["compiled"][0]["target"] == "sm_90" and weld["compiled"][0]["registers"] > 0
    assert weld["tasks"][1][0].startswith("gate_mul{")
    assert found["layers"][0]["after"][0]["weld"] == 0
    assert found["words"]["rms_norm"] == {"found": 1, "welded": 1}


def test_summary(kernelweld_command: Command, models: str, golden: Callable[[str], None]) -> None:
    done = kernelweld_command("report", f"{models}:near_miss", "--no-compile")
    assert done.exit_code == 0, done.stderr
    golden(re.sub(r"\d+ ms", "# ms", done.stdout).replace(models, "models"))


@pytest.mark.usefixtures("scripted")
def test_kernels_that_fail_are_warned_of(kernelweld_command: Command, models: str) -> None:
    done = kernelweld_command("report", f"{models}:target")
    assert done.exit_code == 0
    assert "FAILED" in done.stdout
    assert "warning: sm_90: no kernel for weld" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "sm90"), "unknown GPU target 'sm90'; did you mean 'sm_90'"),
        (("--html", "."), ". is a folder"),
        (("--bench", "none.json"), "No such file"),
        (("--bench", "broken.json"), "broken.json is not what kernelweld bench --json printed"),
    ],
)
def test_mistakes_of_a_report(
    kernelweld_command: Command, models: str, arguments: tuple[str, ...], message: str
) -> None:
    Path("broken.json").write_text('{"runs": [{"welds": [{"us": 3}]}]}')
    done = kernelweld_command("report", f"{models}:target", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.hf
@pytest.mark.slow
def test_qwen3_5_moe_report(
    kernelweld_command: Command, tmp_path: Path, golden: Callable[[str], None]
) -> None:
    """Its page is well formed, and the launches of its layers add up."""
    pytest.importorskip("transformers")
    file = tmp_path / "r.html"
    done = kernelweld_command("report", "hf:qwen3_5_moe", "--no-compile", "--json", "--html", str(file))
    assert done.exit_code == 0, done.stderr
    checked(file.read_text(encoding="utf-8"))
    found = json.loads(done.stdout)
    for row in ("before", "after"):
        assert sum(len(layer[row]) for layer in found["layers"]) == found["launches"][row]
    lines = [
        f"{x['name']}: {len(x['before'])} → {len(x['after'])}, kind {x['kind']}" for x in found["layers"]
    ]
    lines += [f"{x['count']} × {x['name']}: {', '.join(x['layers'])}" for x in found["welds"]]
    golden("\n".join(lines))
