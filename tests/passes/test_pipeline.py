"""Pipelines: text to passes and back, the table of passes, and the runner's promise to put a graph back."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kernelweld.passes
from kernelweld.errors import (
    BadOffer,
    BadPipeline,
    KernelweldWarning,
    PassFailed,
    UnknownName,
    UnsupportedGraph,
)
from kernelweld.ir.printer import format_graph
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.pipeline import DEFAULT, Pipeline, module_of
from kernelweld.passes.spec import build, format_pass, parse
from kernelweld.passes.table import BUILT_IN, load, merged

aten = torch.ops.aten


@dataclass(frozen=True)
class TunedPass(Pass):
    """Has an option of every type."""

    name: ClassVar[str] = "tuned"
    max_tasks: int = 4
    scale: float = 1.0
    deep: bool = False
    label: str = "none"
    widths: tuple[int, ...] = ()
    target: Literal["triton", "reference"] = "triton"

    def __post_init__(self) -> None:
        if self.max_tasks < 1:
            raise ValueError("max-tasks is at least 1")

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        return PassResult(False)


@dataclass(frozen=True)
class NeedsPass(Pass):
    name: ClassVar[str] = "needs"
    file: str

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        return PassResult(False)


@dataclass(frozen=True)
class ExpToSinPass(Pass):
    """Replaces every exp by sin, then raises ``error`` if it has one."""

    name: ClassVar[str] = "exp-to-sin"
    error: type[Exception] | None = None

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        found = gm.graph.find_nodes(op="call_function", target=aten.exp.default)
        for node in found:
            node.target = aten.sin.default
            node.meta["val"] = node.meta["val"].to(torch.float64)
        if self.error is not None:
            raise self.error("half-way")
        return PassResult(bool(found), len(found))


def read_all(text: str) -> tuple[Pass, ...]:
    classes = {"tuned": TunedPass, "needs": NeedsPass}
    return tuple(build(text, spec, classes[spec.name]) for spec in parse(text))


def read(text: str) -> Pass:
    (only,) = read_all(text)
    return only


def graph_module() -> fx.GraphModule:
    return make_fx(lambda x: x.exp() + x, tracing_mode="fake")(torch.empty(3, 4))


# --- text ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tuned", TunedPass()),
        ("tuned{max-tasks=8}", TunedPass(max_tasks=8)),
        ("tuned{scale=0.5 deep=true}", TunedPass(scale=0.5, deep=True)),
        ("tuned{label=two-words widths=1,2,3}", TunedPass(label="two-words", widths=(1, 2, 3))),
        ("tuned{widths=7 target=reference}", TunedPass(widths=(7,), target="reference")),
        ("needs{file=a/b.txt}", NeedsPass("a/b.txt")),
    ],
)
def test_text_to_pass_and_back(text: str, expected: Pass) -> None:
    assert read(text) == expected
    assert format_pass(expected) == text


@pytest.mark.parametrize(
    "text", ["tuned{max_tasks=8}", " tuned { max-tasks = 8 } ", "tuned{max-tasks=8 deep=false}"]
)
def test_other_spellings_print_as_the_normal_one(text: str) -> None:
    assert format_pass(read(text)) == "tuned{max-tasks=8}"


def test_options_at_their_default_and_empty_braces_are_not_printed() -> None:
    assert format_pass(read("tuned{max-tasks=4 target=triton}")) == "tuned"
    assert format_pass(read("tuned{}")) == "tuned"


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "expected a pass name"),
        ("tuned,", 6, "expected a pass name"),
        ("tuned;needs", 5, "expected ',' or the end"),
        ("tuned{max-tasks}", 15, "expected '=' after option 'max-tasks'"),
        ("tuned{max-tasks=}", 16, "expected a value for option 'max-tasks'"),
        ("tuned{max-tasks=8", 17, "expected an option name or '}'"),
        ("tuned{max-tasks=many}", 16, "option 'max-tasks' takes an integer, not 'many'"),
        ("tuned{scale=big}", 12, "option 'scale' takes a number, not 'big'"),
        ("tuned{deep=1}", 11, "option 'deep' takes true or false, not '1'"),
        ("tuned{widths=1,x}", 13, "option 'widths' takes integers with commas between, not '1,x'"),
        ("tuned{target=cuda}", 13, "option 'target' takes one of triton, reference, not 'cuda'"),
        ("tuned{deep=true deep=true}", 16, "option 'deep' is given twice"),
        ("tuned{max-tasks=0}", 0, "pass 'tuned': max-tasks is at least 1"),
        ("needs", 0, "pass 'needs' needs option 'file'"),
    ],
)
def test_mistakes_are_pointed_at(text: str, position: int, reason: str) -> None:
    with pytest.raises(BadPipeline) as error:
        read(text)
    assert (error.value.position, error.value.reason) == (position, reason)
    assert f"    {text}\n    {' ' * position}^" in str(error.value)


def test_an_unknown_option_gets_close_names() -> None:
    message = "unknown option of pass 'tuned' 'max-task'; did you mean 'max-tasks'"
    with pytest.raises(UnknownName, match=message):
        read("tuned{max-task=8}")


def test_an_unknown_pass_gets_close_names() -> None:
    with pytest.raises(UnknownName, match="unknown pass 'canonicalise'; did you mean 'canonicalize'"):
        Pipeline.from_text("canonicalise,raise")


def test_several_passes_in_order() -> None:
    text = "tuned{deep=true},needs{file=x}"
    assert read_all(text) == (TunedPass(deep=True), NeedsPass("x"))
    assert str(Pipeline(read_all(text))) == text


# --- table ---


def pass_files() -> dict[str, list[str]]:
    """Classes with ``Pass`` as a base, by module, of all files in ``kernelweld/passes``."""
    found: dict[str, list[str]] = {}
    root = Path(kernelweld.passes.__file__).parent
    for path in sorted(root.rglob("*.py")):
        module = ".".join(["kernelweld.passes", *path.relative_to(root).with_suffix("").parts])
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "Pass" in map(ast.unparse, node.bases):
                found.setdefault(module, []).append(node.name)
    return found


def test_every_pass_file_is_in_the_table() -> None:
    found = {f"{module}:{cls}" for module, classes in pass_files().items() for cls in classes}
    assert found == set(BUILT_IN.values())


IMPORT_EACH_ALONE = """
import os, sys, torch
for module in sys.argv[1:]:
    if os.fork() == 0:
        __import__(module)
        os._exit(0)
    if os.wait()[1] != 0:
        sys.exit(f"{module} cannot be imported alone")
"""


def test_every_pass_is_importable_alone() -> None:
    modules = [place.partition(":")[0] for place in BUILT_IN.values()]
    run = subprocess.run([sys.executable, "-c", IMPORT_EACH_ALONE, *modules], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_pass_is_a_frozen_dataclass_of_its_own_under_its_name(name: str) -> None:
    cls = load(name)
    assert cls.name == name
    assert "__dataclass_params__" in cls.__dict__, "options without @dataclass are silently lost"
    assert cls.__dataclass_params__.frozen
    assert cls.__doc__


def test_the_default_pipeline_prints_back() -> None:
    assert str(Pipeline.from_text(DEFAULT)) == DEFAULT


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "kernelweld.passes")


def test_other_distributions_add_passes_by_name_order() -> None:
    table = merged({"plan": "a:P"}, [point("z", "z:Z"), point("b", "b:B")])
    assert list(table.items()) == [("plan", "a:P"), ("b", "b:B"), ("z", "z:Z")]


def test_of_two_passes_of_one_name_the_second_is_left_out() -> None:
    with pytest.warns(
        KernelweldWarning, match="pass 'plan' .b:B. cannot be used: ValueError: a:P has that name"
    ):
        table = merged({"plan": "a:P"}, [point("plan", "b:B")])
    assert dict(table) == {"plan": "a:P"}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("path", "pathlib:Path", "TypeError: pathlib:Path is not a Pass"),
        ("other", f"{__name__}:TunedPass", f"TypeError: {__name__}:TunedPass is called 'tuned'"),
        ("gone", "no_such_module:Gone", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_what_is_offered_as_a_pass_must_be_one(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setattr("kernelweld.passes.table.passes", lambda: {name: value})
    with pytest.raises(BadOffer) as raised:
        load(name)
    assert (raised.value.kind, raised.value.value, raised.value.reason) == ("pass", value, reason)


# --- runner ---


def test_passes_run_in_order_and_the_module_is_recompiled() -> None:
    gm, x = graph_module(), torch.randn(3, 4)
    result = Pipeline((TunedPass(), ExpToSinPass())).run(gm)
    assert [(s.text, s.result) for s in result.steps] == [
        ("tuned", PassResult(False)),
        ("exp-to-sin", PassResult(True, 1)),
    ]
    assert list(result.seconds) == ["tuned", "exp-to-sin"]
    assert result.failure is None
    torch.testing.assert_close(gm(x), x.sin() + x)


def test_a_bare_graph_is_run_in_its_module() -> None:
    gm = graph_module()
    Pipeline((ExpToSinPass(),)).run(gm.graph)
    assert "sin(%0)" in format_graph(gm.graph)
    assert module_of(gm.graph) is gm


@dataclass(frozen=True)
class ComputingPass(Pass):
    """Computes with numbers, as patterns and kernels do."""

    name: ClassVar[str] = "computing"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        return PassResult(bool((torch.tensor([1.0]).view(torch.int32) == 0x3F800000).any()))


def test_passes_compute_with_numbers_under_the_fake_mode_of_a_hook() -> None:
    gm = graph_module()
    with FakeTensorMode():
        result = Pipeline((ComputingPass(),), strict=True).run(gm.graph)
        assert isinstance(torch.zeros(1), FakeTensor)
    assert result.steps[0].result.modified


def test_a_graph_without_a_module_gets_one() -> None:
    graph = fx.Graph()
    graph.output(graph.placeholder("x"))
    gm = module_of(graph)
    assert gm.graph is graph
    assert gm(3) == 3


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
def test_a_failed_pass_leaves_the_graph_as_it_was(error: type[Exception]) -> None:
    gm, x = graph_module(), torch.randn(3, 4)
    graph, before = gm.graph, format_graph(gm.graph)
    result = Pipeline((ExpToSinPass(), ExpToSinPass(error), TunedPass())).run(gm)
    assert gm.graph is graph
    assert format_graph(graph) == before
    graph.lint()
    torch.testing.assert_close(gm(x), x.exp() + x)
    assert isinstance(result.failure, PassFailed)
    assert result.failure.pass_name == "exp-to-sin"
    assert error.__name__ in result.failure.reason
    assert [s.text for s in result.steps] == ["exp-to-sin"]
    assert result.context.plan is None


def test_strict_raises_after_putting_the_graph_back() -> None:
    gm = graph_module()
    before = format_graph(gm.graph)
    with pytest.raises(PassFailed, match="pass 'exp-to-sin' failed: ValueError: half-way") as error:
        Pipeline((ExpToSinPass(ValueError),), strict=True).run(gm)
    assert isinstance(error.value.__cause__, ValueError)
    assert format_graph(gm.graph) == before


def test_a_typed_error_keeps_its_source_line() -> None:
    @dataclass(frozen=True)
    class Refuses(Pass):
        name: ClassVar[str] = "refuses"

        def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
            raise UnsupportedGraph("it writes to a view", source="model.py:3")

    failure = Pipeline((Refuses(),)).run(graph_module()).failure
    assert failure is not None
    assert failure.reason == "this graph cannot be welded: it writes to a view"
    assert failure.source == "model.py:3"


def disorder(gm: fx.GraphModule) -> None:
    first, *_, last = (n for n in gm.graph.nodes if n.op == "call_function")
    last.append(first)


def drop_users(gm: fx.GraphModule) -> None:
    next(iter(gm.graph.nodes)).users.clear()


def drop_output(gm: fx.GraphModule) -> None:
    gm.graph.erase_node(gm.graph.output_node())


def add_junk(gm: fx.GraphModule) -> None:
    with gm.graph.inserting_after(next(iter(gm.graph.nodes))):
        gm.graph.call_function(aten.exp.default, (gm.graph.output_node(),))


@pytest.mark.parametrize("damage", [disorder, drop_users, drop_output, add_junk])
def test_even_a_corrupted_graph_is_put_back(damage: Callable[[fx.GraphModule], None]) -> None:
    @dataclass(frozen=True)
    class Corrupts(Pass):
        name: ClassVar[str] = "corrupts"

        def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
            damage(gm)
            raise RuntimeError("now")

    gm = graph_module()
    before = format_graph(gm.graph)
    Pipeline((Corrupts(),)).run(gm)
    assert format_graph(gm.graph) == before
    gm.graph.lint()


def test_metadata_is_put_back_too() -> None:
    gm = graph_module()
    exp = gm.graph.find_nodes(op="call_function", target=aten.exp.default)[0]
    exp.meta["stack_trace"] = "here"
    Pipeline((ExpToSinPass(ValueError),)).run(gm)
    restored = gm.graph.find_nodes(op="call_function", target=aten.exp.default)[0]
    assert restored.meta["stack_trace"] == "here"
    assert restored.meta["val"].dtype == torch.float32
