"""``kernelweld bisect``: it finds what makes a check fail, in few checks, and says so where it cannot."""

from __future__ import annotations

import copy
import importlib
import json
import math
import multiprocessing
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.cli import bisecting, inspect
from kernelweld.cli.bisecting import (
    Candidate,
    Found,
    NotFound,
    PassFound,
    WeldFound,
    WeldsFound,
    search,
)
from kernelweld.cli.targets import Target
from kernelweld.cli.trials import CannotBisect, command_line
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.errors import BadTarget
from kernelweld.integrations.aot import Capture
from kernelweld.integrations.hook import KernelweldPass
from kernelweld.integrations.settings import VARIABLE, settings_from
from kernelweld.ir.report import WeldReport
from kernelweld.passes import table
from kernelweld.passes.only_welds import OnlyWeldsPass
from kernelweld.passes.pipeline import DEFAULT, Pipeline

Command = Callable[..., Result]

PLUGIN = '''
"""A pass that spoils one weld, and one that spoils the graph."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from kernelweld.ir import word_of
from kernelweld.passes.base import Pass, PassResult


@dataclass(frozen=True)
class SpoilWeldPass(Pass):
    """Gives the norm of this number an eps that its nodes do not have: its kernel is wrong, they are not."""

    name: ClassVar[str] = "spoil-weld"

    number: int = 1

    def run(self, gm, context):
        norms = [node for node in gm.graph.nodes if (word := word_of(node)) and word.kind == "rms_norm"]
        if len(norms) >= self.number:
            node = norms[self.number - 1]
            node.kwargs = {**node.kwargs, "eps": 0.5}
        return PassResult(modified=len(norms) >= self.number)


@dataclass(frozen=True)
class SpoilGraphPass(Pass):
    """Makes every product one of negatives."""

    name: ClassVar[str] = "spoil-graph"

    def run(self, gm, context):
        products = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
        for node in products:
            with gm.graph.inserting_before(node):
                negative = gm.graph.call_function(torch.ops.aten.neg.default, (node.args[0],))
                negative.meta = dict(node.args[0].meta)
            node.args = (negative, node.args[1])
        return PassResult(modified=bool(products))
'''

SPOILED = "canonicalize,raise,spoil-weld{number=137},plan,lower"


# --- the search, with checks that know the answer ---


def candidates(count: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(f"w{i}", WeldReport("rms_norm", ("a word",), (), ())) for i in range(1, count + 1))


class Knowing:
    """Fails where ``broken`` says so of the passes and the welds that are on."""

    def __init__(self, welds: tuple[Candidate, ...], broken: Callable[[list[str], set[str]], bool]) -> None:
        self.all, self.broken, self.seen = {one.id for one in welds}, broken, list[str]()

    def __call__(self, on: str, pipeline: str) -> bool:
        self.seen.append(on)
        passes = Pipeline.from_text(pipeline).passes
        only = next((one for one in passes if isinstance(one, OnlyWeldsPass)), None)
        names = [one.name for one in passes if one.name != "only-welds"]
        on_welds = set(self.all)
        if only is not None:
            on_welds = self.all - set(only.without) if only.without else set(only.ids)
        return not self.broken(names, on_welds if {"plan", "lower"} <= set(names) else set())


def found_by(check: Knowing, welds: tuple[Candidate, ...], text: str = DEFAULT) -> Found:
    return search("target", Pipeline.from_text(text).passes, welds, check)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200])
def test_every_weld_is_found_in_few_checks(count: int) -> None:
    welds = candidates(count)
    for place in sorted({*range(1, count + 1, 9), count}):
        weld = welds[place - 1]
        check = Knowing(welds, lambda _, on, weld=weld: weld.id in on)  # type: ignore[misc]
        found = found_by(check, welds)
        assert isinstance(found, WeldFound)
        assert (found.weld, found.place, found.among) == (weld, place, count)
        assert f"only-welds{{ids={weld.id}}},lower" in found.pipeline
        assert len(check.seen) <= 3 + math.ceil(math.log2(count))
    assert 3 + math.ceil(math.log2(200)) < 12


def test_welds_that_fail_together_are_said_to() -> None:
    welds = candidates(20)
    found = found_by(Knowing(welds, lambda _, on: {"w4", "w13"} <= on), welds)
    assert isinstance(found, WeldsFound)
    assert found.welds == welds[:13]
    assert found.pipeline.count("w") > 7  # the seven after them are left out
    last = found_by(Knowing(welds, lambda _, on: {"w4", "w20"} <= on), welds)
    assert isinstance(last, WeldsFound)
    assert (last.welds, last.pipeline) == (welds, DEFAULT)


@pytest.mark.parametrize(
    "text", [DEFAULT, "raise,plan,verify-welds,lower,canonicalize", "canonicalize,raise"]
)
def test_every_pass_is_found(text: str) -> None:
    names = [one.name for one in Pipeline.from_text(text).passes]
    for name in names:
        found = found_by(Knowing((), lambda on, _, name=name: name in on), (), text)  # type: ignore[misc]
        assert isinstance(found, PassFound)
        assert found.text == name
        parts = found.pipeline.split(",")
        assert name in parts and name not in found.without.split(",")
        assert name == "lower" or "lower" not in names or "lower" in found.without.split(",")


def test_a_pass_that_stands_twice_is_one_of_two() -> None:
    check = Knowing((), lambda on, _: on.count("canonicalize") == 2)
    found = found_by(check, (), "canonicalize,raise,canonicalize,plan,lower")
    assert isinstance(found, PassFound)
    assert found.pipeline == "canonicalize,raise,canonicalize,only-welds,lower"
    assert found.without == "canonicalize,raise,only-welds,lower"


def test_what_fails_without_kernelweld_is_no_fault_of_it() -> None:
    welds = candidates(3)
    found = found_by(Knowing(welds, lambda _, __: True), welds)
    assert found == NotFound("only-welds")


def test_a_check_that_never_fails_is_refused_at_once() -> None:
    check = Knowing(candidates(3), lambda _, __: False)
    with pytest.raises(CannotBisect, match="the check passes with everything on"):
        found_by(check, candidates(3))
    assert check.seen == ["everything"]


def test_a_weld_of_another_graph_is_not_looked_for() -> None:
    """Excluding the welds of the target changes nothing, excluding all does."""
    check = Knowing(candidates(3), lambda _, on: "other" in on)
    check.all.add("other")
    with pytest.raises(BadTarget, match="its graph is not the one that CMD compiles"):
        found_by(check, candidates(3))
    assert check.seen == ["everything", "without the 3 welds", "no weld"]


# --- the command line that repeats a check ---


@pytest.mark.parametrize(
    "command", ["python a.py --x=1", 'cd . && test -n "$KERNELWELD_PIPELINE"', "true; false"]
)
def test_the_command_line_runs_the_same(command: str) -> None:
    line = command_line(command, "canonicalize,only-welds{ids=a.0,b.1},lower")
    expected = "sh" if "&" in command or ";" in command else "python"
    assert shlex.split(line)[:2] == [f"{VARIABLE}=canonicalize,only-welds{{ids=a.0,b.1}},lower", expected]
    if expected == "sh":
        assert shlex.split(line)[-1] == command


# --- the verb, on a graph that needs no capture ---


def chain(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, count: int = 3) -> tuple[torch.Tensor, ...]:
    """``count`` norms with a product after each: as many welds. All products are results: the next norm takes
    an error of scale out again.
    """
    products = [x]
    for _ in range(count):
        x = torch.mm(w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)), m)
        products.append(x)
    return tuple(products)


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, 16), torch.rand(16) + 0.5, torch.randn(16, 16) / 4


def graph_of(count: int) -> fx.GraphModule:
    return make_fx(lambda *args: chain(*args, count=count), tracing_mode="fake")(*inputs())


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], fx.GraphModule]:
    """Makes TARGET a graph of so many welds, and keeps logs in the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)

    def made(count: int) -> fx.GraphModule:
        gm = graph_of(count)

        def captured(*_: object, **__: object) -> Capture:
            return Capture((copy.deepcopy(gm),), ((),), (), 0.0)

        monkeypatch.setattr(inspect, "build", lambda *_, **__: Target("chain", chain, (), {}))
        monkeypatch.setattr(bisecting, "captured", captured)
        return gm

    return made


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution, ``spoilers 0.1``, that offers two passes."""
    (tmp_path / "spoilers.py").write_text(PLUGIN)
    info = tmp_path / "spoilers-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spoilers\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[kernelweld.passes]\nspoil-weld = spoilers:SpoilWeldPass\nspoil-graph = spoilers:SpoilGraphPass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    table.passes.cache_clear()
    yield
    monkeypatch.undo()
    table.passes.cache_clear()
    sys.modules.pop("spoilers", None)


CLIENT = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    server.sendall(os.environ["KERNELWELD_PIPELINE"].encode())
    server.shutdown(socket.SHUT_WR)
    answer = server.recv(1000).decode()
print("largest difference", answer)
sys.exit(float(answer) > 1e-3)
"""


def serve(gm: fx.GraphModule, listening: socket.socket) -> None:
    """Compiles and runs ``gm`` as a program that fuses it would, for each pipeline that a check sends."""
    expected = torch.stack(gm(*inputs()))
    while True:
        connection, _ = listening.accept()
        with connection:
            with connection.makefile(encoding="utf-8") as sent:
                os.environ[VARIABLE] = sent.read()
            fused = copy.deepcopy(gm)
            KernelweldPass(settings_from({}, backend="interpret").text, strict=True)(fused.graph)
            fused.recompile()
            with exact_casts():
                moved = (torch.stack(fused(*inputs())) - expected).abs().max()
            connection.sendall(f"{moved.item()}".encode())


@pytest.fixture
def checked(tmp_path: Path) -> Iterator[Callable[[fx.GraphModule], str]]:
    """A command that checks a fused graph. Each check is a process; the model stays loaded in another, as
    importing torch for each would take longer than the check.
    """
    (tmp_path / "client.py").write_text(CLIENT)
    started = []

    def command(gm: fx.GraphModule) -> str:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(gm, listening), daemon=True)
        process.start()
        listening.close()
        started.append(process)
        return f"{sys.executable} -S {tmp_path / 'client.py'} {tmp_path / 's'}"

    yield command
    for process in started:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.usefixtures("plugin")
def test_a_wrong_weld_among_200(
    kernelweld_command: Command,
    target: Callable[[int], fx.GraphModule],
    checked: Callable[[fx.GraphModule], str],
) -> None:
    command, start = checked(target(200)), time.monotonic()
    done = kernelweld_command("bisect", "chain", "--check", command, "-p", SPOILED, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["found"], found["place"], found["among"]) == ("weld", 137, 200)
    assert "eps=0.5" in found["weld"]["words"][0]
    assert len(found["checks"]) < 12
    print(f"{len(found['checks'])} checks in {time.monotonic() - start:.1f} s")
    again = subprocess.run(found["again"], shell=True, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    for line in range(1, len(found["checks"]) + 1):
        assert re.search(rf"^check {line}: .*: (fails|passes) \(\d+\.\d s\)$", done.stderr, re.MULTILINE)
    assert "largest difference" in Path(found["checks"][0]["log"]).read_text()


@pytest.mark.usefixtures("plugin")
def test_a_pass_that_is_wrong(
    kernelweld_command: Command,
    target: Callable[[int], fx.GraphModule],
    checked: Callable[[fx.GraphModule], str],
) -> None:
    command = checked(target(3))
    pipeline = "canonicalize,spoil-graph,raise,plan,lower"
    done = kernelweld_command("bisect", "chain", "--check", command, "-p", pipeline)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "pass spoil-graph is at fault, and no weld"
    assert "check 3: no weld: fails" in done.stderr
    (fails, passes, see) = (line.split(maxsplit=1)[1] for line in lines[1:4])
    assert subprocess.run(fails, shell=True, capture_output=True, check=False).returncode == 1
    assert subprocess.run(passes, shell=True, capture_output=True, check=False).returncode == 0
    assert see.endswith("--from canonicalize --to spoil-graph")


def knowing(weld: str) -> str:
    """A shell command that fails where this weld is on, by the text of the pipeline alone."""
    code = f"""
import os, re, sys
text = os.environ[{VARIABLE!r}]
ids, without = (re.search(name + r"=([^ }}]+)", text) for name in ("ids", "without"))
if without: sys.exit({weld!r} not in without[1].split(","))
if ids: sys.exit({weld!r} in ids[1].split(","))
sys.exit("only-welds" not in text)
"""
    return f"{sys.executable} -S -c {shlex.quote(code)}"


def test_what_is_said_of_a_weld(
    kernelweld_command: Command, target: Callable[[int], fx.GraphModule], golden: Callable[[str], None]
) -> None:
    target(5)
    passes = Pipeline.from_text().passes
    ids = [one.id for one in bisecting.candidates(inspect.build(), passes).welds]  # type: ignore[call-arg]
    assert [one.rpartition(".")[2] for one in ids] == ["0", "1", "2", "3", "4"]
    command = knowing(ids[3])
    done = kernelweld_command("bisect", "chain", "--check", command)
    assert done.exit_code == 0, done.stderr
    shown = done.stdout.replace(shlex.quote(command), "CMD")
    golden(re.sub(r"\d+\.\d s", "0.0 s", shown) + re.sub(r"\d+\.\d s|/\S+", "…", done.stderr))


@pytest.mark.parametrize(
    ("command", "options", "code", "message"),
    [
        ("true", (), 2, "cannot bisect: the check passes with everything on"),
        ("echo at fault; exit 3", (), 1, "kernelweld's passes are not the cause"),
        ("no-such-program", (), 2, "check 1 (everything) exited with 127: a command was not found"),
        ("exit 126", (), 2, "exited with 126: a command cannot be executed"),
        (
            "echo no device; exit 125",
            (),
            2,
            "exited with 125, which means that it cannot tell\n    no device",
        ),
        ("sleep 60", ("--timeout", "0.2"), 2, "check 1 (everything) took longer than 0.2 s"),
        (knowing("other"), (), 2, "its graph is not the one that CMD compiles"),
    ],
)
def test_when_there_is_no_culprit(
    kernelweld_command: Command,
    target: Callable[[int], fx.GraphModule],
    command: str,
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    target(2)
    start = time.monotonic()
    done = kernelweld_command("bisect", "chain", "--check", command, *options)
    assert done.exit_code == code
    assert message in (done.stdout if code == 1 else done.stderr)
    assert "Traceback" not in done.stderr
    assert code == 1 or done.stdout == ""
    assert "how to proceed: " in done.stderr or code == 1
    assert time.monotonic() - start < 30, "what hangs is ended"
    if code == 1:
        assert "it says   at fault" in done.stdout
        assert "merge_gemms" in done.stdout


def test_what_hangs_is_ended_with_all_that_it_started(
    kernelweld_command: Command, target: Callable[[int], fx.GraphModule], tmp_path: Path
) -> None:
    target(1)
    done = kernelweld_command(
        "bisect", "chain", "--check", f"(sleep 2; touch {tmp_path}/late) & wait", "--timeout", "0.2"
    )
    assert done.exit_code == 2
    time.sleep(2.5)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chain",), "Missing option '--check'"),
        (("chain", "--check", "true", "-p", "raise,plam"), "did you mean 'plan'"),
        (("chain", "--check", "true", "--timeout", "-1"), "--timeout"),
    ],
)
def test_mistakes(kernelweld_command: Command, arguments: tuple[str, ...], message: str) -> None:
    done = kernelweld_command("bisect", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.usefixtures("plugin")
def test_a_pass_that_raises_leaves_its_graph_unsearched(
    kernelweld_command: Command, target: Callable[[int], fx.GraphModule], tmp_path: Path
) -> None:
    target(1)
    module = sys.modules.setdefault("spoilers", importlib.import_module("spoilers"))
    broken = "def run(self, gm, context):\n        raise RuntimeError('on purpose')"
    (tmp_path / "spoilers.py").write_text(
        re.sub(r"def run\(.*?return [^\n]*", broken, PLUGIN, flags=re.DOTALL)
    )
    importlib.reload(module)
    check = f"case ${VARIABLE} in *spoil*) exit 1;; esac"
    done = kernelweld_command("bisect", "chain", "--check", check, "-p", "raise,spoil-graph,plan,lower")
    assert done.exit_code == 0, done.stderr
    assert "warning: pass 'spoil-graph' failed: RuntimeError: on purpose; the welds of" in done.stderr
    assert done.stdout.startswith("pass spoil-graph is at fault")


# --- the executable ---


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)}


@pytest.mark.slow
def test_the_executable(models: str, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "kernelweld.cli", "bisect", f"{models}:target", "--verbose", "--check")
    check = "echo seen; case $KERNELWELD_PIPELINE in *without=*|*only-welds,*) exit 0;; esac; exit 1"
    done = subprocess.run(
        [*command, check], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("weld 1 of 1 is at fault: residual_add_rms_norm__gate_mul, id ")
    assert f"{models}.py:" in done.stdout
    assert done.stderr.count("seen\n") == 3 and "seen\n" not in done.stdout


CHECK = """
import sys, torch, kernelweld
import {models} as models

step, args, _ = models.target()
fused = kernelweld.fuse(step, backend="eager", options={{"pipeline": {pipeline!r}}})
with torch.no_grad():
    moved = max((a - b).abs().max() for a, b in zip(fused(*args), step(*args)))
print(moved)
sys.exit(bool(moved > 0.1))
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("plugin")
def test_a_program_that_fuses_its_model(models: str, tmp_path: Path) -> None:
    pipeline = "canonicalize,raise,spoil-weld,plan,lower"
    (tmp_path / "check.py").write_text(CHECK.format(models=models, pipeline=pipeline))
    command = [sys.executable, "-m", "kernelweld.cli", "bisect", f"{models}:target", "-p", pipeline, "--json"]
    command += ["--check", f"{sys.executable} check.py"]
    done = subprocess.run(
        command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["weld"]["name"] == "residual_add_rms_norm__gate_mul"
    assert [trial["passes"] for trial in found["checks"]] == [False, True, False]
