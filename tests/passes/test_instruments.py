"""Instruments: what each shows of a run, on passes that do and do not do as they should."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.errors import InvalidGraph
from kernelweld.ir import ResidualAdd, insert_word
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.example_inputs import example_inputs
from kernelweld.passes.instruments import (
    DumpDir,
    Instrument,
    PassStats,
    PrintIR,
    Stats,
    Step,
    Timing,
    VerifyEach,
)
from kernelweld.passes.pipeline import Pipeline

aten = torch.ops.aten


@dataclass(frozen=True)
class NothingPass(Pass):
    name: ClassVar[str] = "nothing"
    level: int = 0

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        return PassResult(False)


@dataclass(frozen=True)
class AddToWordPass(Pass):
    """Raises every add to a residual_add, with the dtype it should not have if ``dtype`` is given."""

    name: ClassVar[str] = "add-to-word"
    wrong: bool = False

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        adds = gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)
        for node in adds:
            word = ResidualAdd(torch.bfloat16 if self.wrong else torch.float32)
            with gm.graph.inserting_before(node):
                new = insert_word(gm.graph, word, node.args[:2])
            new.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        return PassResult(bool(adds), len(adds))


@dataclass(frozen=True)
class ExpToSinPass(Pass):
    """A pass that changes what the graph computes, but nothing that the IR's rules can see."""

    name: ClassVar[str] = "exp-to-sin"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        for node in gm.graph.find_nodes(op="call_function", target=aten.exp.default):
            node.target = aten.sin.default
        return PassResult(True, 1)


@dataclass(frozen=True)
class FailingPass(Pass):
    name: ClassVar[str] = "failing"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        raise RuntimeError("on purpose")


def graph_module() -> fx.GraphModule:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp() + y

    return make_fx(fn, tracing_mode="fake")(torch.empty(3, 4), torch.empty(3, 4))


BEFORE = "%0: f32[3, 4] = input\n%1: f32[3, 4] = input\n%2: f32[3, 4] = exp(%0)\n"
ADDED = BEFORE + "%3: f32[3, 4] = add(%2, %1)\nreturn %3\n"
RAISED = BEFORE + "%3: f32[3, 4] = residual_add(%2, %1)\nreturn %3\n"


# --- the order of calls ---


class Recorder(Instrument):
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        self.calls.append(f"begin {text}")

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        self.calls.append(f"before {step.index} {step.text}")

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        self.calls.append(f"after {step.name} {result.count}")

    def on_error(self, step: Step, gm: fx.GraphModule, error: Exception) -> None:
        self.calls.append(f"error {step.name} {error}")

    def after_pipeline(self, gm: fx.GraphModule, context: PassContext) -> None:
        self.calls.append("end")


def test_instruments_see_every_pass_in_order() -> None:
    calls: list[str] = []
    Pipeline((NothingPass(2), AddToWordPass(), FailingPass(), NothingPass()), (Recorder(calls),)).run(
        graph_module()
    )
    assert calls == [
        "begin nothing{level=2},add-to-word,failing,nothing",
        "before 1 nothing{level=2}",
        "after nothing 0",
        "before 2 add-to-word",
        "after add-to-word 1",
        "before 3 failing",
        "error failing on purpose",
        "end",
    ]


def test_an_instrument_by_itself_does_nothing() -> None:
    result = Pipeline((NothingPass(),), (Instrument(),)).run(graph_module())
    assert result.failure is None


# --- Timing ---


def test_timing_has_a_span_for_every_pass_and_for_a_failed_one() -> None:
    ticks = iter(range(100))
    timing = Timing(lambda: float(next(ticks)))
    Pipeline((NothingPass(1), FailingPass()), (timing,)).run(graph_module())
    assert [(s.text, s.start, s.seconds) for s in timing.spans] == [
        ("nothing{level=1}", 0.0, 1.0),
        ("failing", 2.0, 1.0),
    ]
    events = json.loads(timing.chrome_trace())["traceEvents"]
    assert events[1] == {"name": "failing", "ph": "X", "pid": 0, "tid": 0, "ts": 2e6, "dur": 1e6}


# --- PrintIR ---


def printed(when: str, passes: tuple[str, ...] | None = None) -> str:
    file = io.StringIO()
    Pipeline((NothingPass(), AddToWordPass()), (PrintIR(file, when, passes),)).run(graph_module())
    return file.getvalue()


def test_print_before() -> None:
    assert printed("before") == f"# before nothing\n{ADDED}\n# before add-to-word\n{ADDED}\n"


def test_print_after() -> None:
    assert printed("after") == f"# after nothing\n{ADDED}\n# after add-to-word\n{RAISED}\n"


def test_print_changed_only() -> None:
    assert printed("changed") == f"# after nothing: unchanged\n# after add-to-word\n{RAISED}\n"


def test_print_only_some_passes() -> None:
    assert printed("after", ("add-to-word",)) == f"# after add-to-word\n{RAISED}\n"


def test_print_what_a_failing_pass_left() -> None:
    file = io.StringIO()
    Pipeline((FailingPass(),), (PrintIR(file, "changed"),)).run(graph_module())
    assert file.getvalue() == f"# after failing failed: on purpose\n{ADDED}\n"


# --- Stats ---


def test_stats_count_calls_and_words() -> None:
    stats = Stats()
    Pipeline((NothingPass(), AddToWordPass()), (stats,)).run(graph_module())
    assert stats.passes == [
        PassStats("nothing", False, 0, 2, 2, {}),
        PassStats("add-to-word", True, 1, 2, 2, {"residual_add": 1}),
    ]


# --- DumpDir ---


def dump(folder: Path, *passes: Pass, overwrite: bool = False) -> None:
    Pipeline(passes, (DumpDir(folder, overwrite=overwrite),)).run(graph_module())


def test_dump_writes_text_and_json_for_every_pass(tmp_path: Path) -> None:
    dump(tmp_path, NothingPass(3), AddToWordPass())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000_input.json",
        "000_input.txt",
        "001_nothing.json",
        "001_nothing.txt",
        "002_add-to-word.json",
        "002_add-to-word.txt",
        "index.html",
        "summary.json",
        "trace.json",
    ]
    assert (tmp_path / "001_nothing.txt").read_text() == ADDED
    assert (tmp_path / "002_add-to-word.txt").read_text() == RAISED


def test_the_dump_has_a_summary_and_an_index(tmp_path: Path) -> None:
    dump(tmp_path, AddToWordPass(), FailingPass())
    steps = json.loads((tmp_path / "summary.json").read_text())["steps"]
    assert [s["file"] for s in steps] == ["000_input.txt", "001_add-to-word.txt", "002_failing-failed.txt"]
    assert steps[0]["pipeline"] == "add-to-word,failing"
    assert (steps[1]["modified"], steps[1]["count"], steps[1]["words"]) == (True, 1, {"residual_add": 1})
    assert steps[2]["error"] == "on purpose"
    page = (tmp_path / "index.html").read_text()
    assert '<a href="001_add-to-word.txt">' in page
    assert re.search("failing <span[^>]*>— failed</span>: on purpose", page)


def test_the_index_shows_what_each_pass_changed(tmp_path: Path) -> None:
    dump(tmp_path, NothingPass(), AddToWordPass(), ExpToSinPass())
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    changes = re.findall(r"<summary>(.*?): .*?</summary>\n<pre>(.*?)</pre>", page, re.DOTALL)
    lines = {name: re.sub("<[^>]*>", "", text).splitlines() for name, text in changes}
    assert list(lines) == ["add-to-word", "exp-to-sin"], "what changed nothing has no changes"
    assert "-%3: f32[3, 4] = add(%2, %1)" in lines["add-to-word"]
    assert "+%3: f32[3, 4] = residual_add(%2, %1)" in lines["add-to-word"]
    assert [line for line in lines["exp-to-sin"] if line[0] in "+-"] == [
        "-%2: f32[3, 4] = exp(%0)",
        "+%2: f32[3, 4] = sin(%0)",
    ]


class Page(HTMLParser):
    """Notes what a page opens and does not close, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_index_is_whole_loads_nothing_and_escapes(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class AnglePass(Pass):
        name: ClassVar[str] = "angle"
        kind: str = "<b>&"

        def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
            raise RuntimeError("<script>alert(1)</script>")

    pipeline = Pipeline((AddToWordPass(), AnglePass("<i>&")), (DumpDir(tmp_path),))
    for _ in range(2):
        pipeline.run(graph_module())
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert all((tmp_path / name).is_file() for name in page.loads)
    assert "<script" not in text and "<i>" not in text
    assert "<script>alert(1)</script>" in page.text and "angle{kind=<i>&}" in page.text
    assert "prefers-color-scheme: dark" in text and "@import" not in text and "url(" not in text
    assert [line for line in page.text.splitlines() if line.startswith("graph ")] == ["graph 1", "graph 2"]


def test_several_graphs_number_on(tmp_path: Path) -> None:
    pipeline = Pipeline((NothingPass(),), (DumpDir(tmp_path),))
    pipeline.run(graph_module())
    pipeline.run(graph_module())
    assert [p.name for p in sorted(tmp_path.glob("*.txt"))] == [
        "000_input.txt",
        "001_nothing.txt",
        "002_input.txt",
        "003_nothing.txt",
    ]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    dump(tmp_path, NothingPass())
    with pytest.raises(FileExistsError, match="is not empty"):
        DumpDir(tmp_path)


def test_overwrite_deletes_what_a_dump_wrote(tmp_path: Path) -> None:
    dump(tmp_path, NothingPass(), AddToWordPass())
    dump(tmp_path, NothingPass(), overwrite=True)
    assert not (tmp_path / "002_add-to-word.txt").exists()


def test_overwrite_deletes_nothing_when_there_is_a_strange_file(tmp_path: Path) -> None:
    dump(tmp_path, NothingPass())
    (tmp_path / "notes.md").write_text("mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        FileExistsError, match=r"holds notes\.md, which is not of a dump; nothing was deleted"
    ):
        DumpDir(tmp_path, overwrite=True)
    assert sorted(tmp_path.iterdir()) == before


# --- VerifyEach ---


def test_verify_each_passes_sound_passes() -> None:
    for run in (False, True):
        result = Pipeline((NothingPass(), AddToWordPass()), (VerifyEach(run=run),)).run(graph_module())
        assert result.failure is None


def test_verify_each_catches_a_wrong_word() -> None:
    failure = Pipeline((AddToWordPass(wrong=True),), (VerifyEach(),)).run(graph_module()).failure
    assert failure is not None
    assert failure.pass_name == "add-to-word"
    assert "word: the word gives bf16[3, 4], recorded is f32[3, 4]" in failure.excerpt


def test_verify_each_catches_other_results_only_when_it_runs_the_graph() -> None:
    assert Pipeline((ExpToSinPass(),), (VerifyEach(),)).run(graph_module()).failure is None
    failure = Pipeline((NothingPass(), ExpToSinPass()), (VerifyEach(run=True),)).run(graph_module()).failure
    assert failure is not None
    assert failure.pass_name == "exp-to-sin"
    assert "result: it moved by" in failure.excerpt
    assert "    result 0" in failure.excerpt


def test_verify_each_refuses_a_graph_that_is_wrong_from_the_start() -> None:
    gm = graph_module()
    for node in gm.graph.nodes:
        node.meta.pop("val", None)
    with pytest.raises(InvalidGraph):
        Pipeline((NothingPass(),), (VerifyEach(),)).run(gm)


# --- the inputs it runs on ---


def placeholders(*values: object) -> fx.Graph:
    graph = fx.Graph()
    for i, value in enumerate(values):
        graph.placeholder(f"x{i}").meta["val"] = value
    return graph


def test_inputs_keep_shape_stride_and_dtype() -> None:
    strided = torch.empty(4, 6, dtype=torch.bfloat16).t()[1:, ::2]
    overlapping = torch.empty(5, dtype=torch.float64).expand(3, 5)
    (a, b, c, d) = example_inputs(placeholders(strided, overlapping, torch.empty(0, 4), torch.empty(())))
    for made, recorded in ((a, strided), (b, overlapping), (c, torch.empty(0, 4)), (d, torch.empty(()))):
        assert (made.shape, made.stride(), made.dtype) == (recorded.shape, recorded.stride(), recorded.dtype)
    assert torch.equal(b[0], b[2])
    assert a.float().std() > 0


def test_inputs_of_integers_are_small_indices() -> None:
    ids, mask = example_inputs(
        placeholders(torch.empty(100, dtype=torch.int64), torch.empty(9, dtype=torch.bool))
    )
    assert set(ids.tolist()) == {0, 1}
    assert mask.dtype == torch.bool


def test_inputs_of_symbolic_sizes_are_those_of_the_trace() -> None:
    gm = make_fx(lambda x, y: x @ y, tracing_mode="symbolic")(torch.empty(3, 5), torch.empty(5, 7))
    x, y = (value for value in example_inputs(gm.graph) if isinstance(value, torch.Tensor))
    assert (x.shape, y.shape) == ((3, 5), (5, 7))


def test_inputs_repeat_by_seed() -> None:
    graph = placeholders(torch.empty(8))
    assert torch.equal(example_inputs(graph, 1)[0], example_inputs(graph, 1)[0])
    assert not torch.equal(example_inputs(graph, 1)[0], example_inputs(graph, 2)[0])


def test_inputs_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(TypeError, match="no example can be made for an input of type dict"):
        example_inputs(placeholders({}))
    assert example_inputs(placeholders(3, None, 2.5)) == [3, None, 2.5]
