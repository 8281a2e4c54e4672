"""What must hold for every program: the same plan twice, valid graphs, results within contract."""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import fx

from graphfuzz.runs import Checked, Jittered, run_all
from graphfuzz.trace import finish, recorded
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.errors import KernelweldWarning, PassFailed
from kernelweld.ir import verifier
from kernelweld.ir.printer import format_graph
from kernelweld.passes.base import PassResult
from kernelweld.passes.instruments.base import Instrument, Step
from kernelweld.passes.pipeline import DEFAULT, Pipeline, PipelineResult
from kernelweld.passes.verification.contract import compare
from kernelweld.passes.verification.truth import run_float64

NORMS = ("rms_norm", "layer_norm", "l2_norm")
#: How often the untouched graph is run with other roundings before an error is held against a weld.
JITTERS = 12


class Subject(Protocol):
    """What can be checked: a function, its inputs by seed, and how many words of each kind it spells."""

    @property
    def meant(self) -> Counter[str]: ...

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]: ...

    def tensors(self, seed: int) -> list[torch.Tensor]: ...


@dataclass(frozen=True)
class Settings:
    """How one program is checked.

    ``joint``: Inductor's joint-graph rewrites come first. ``plan``: the options of the plan pass.
    ``interpret``: kernels are not only generated but interpreted, too.
    """

    joint: bool = False
    plan: str = "keep-all=true"
    interpret: bool = True

    @classmethod
    def of(cls, seed: int, interpret_every: int = 10) -> Settings:
        """The settings of ``seed``: mostly every chain is welded, sometimes what is worth it or in
        small packs.
        """
        plan = {3: "", 4: "keep-all=true max-tasks=2"}.get(seed % 7, "keep-all=true")
        return cls(seed % 4 == 0, plan, interpret_every > 0 and seed % interpret_every == 0)

    def pipeline(self, target: str) -> str:
        """The default pipeline with these settings."""
        steps = {"plan": f"plan{{{self.plan}}}", "lower": f"lower{{target={target}}}"}
        return ",".join(steps.get(name, name) for name in DEFAULT.split(","))


@dataclass(frozen=True)
class Failure:
    """What went wrong. ``kind`` stays the same while a program shrinks; ``detail`` is for people."""

    kind: str
    detail: str


@dataclass
class Outcome:
    """What was seen of one program."""

    failure: Failure | None = None
    words: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    welds: int = 0
    tasks: int = 0
    second_looks: int = 0


class Broken(Exception):
    """Something that must hold does not."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(kind, detail)


def check(subject: Subject, seed: int, settings: Settings) -> Outcome:
    """Runs the passes on ``subject`` twice and compares the plans, and what is computed with what was."""
    outcome = Outcome()
    try:
        _Check(subject, seed, settings, outcome).run()
    except Broken as broken:
        outcome.failure = broken.failure
    return outcome


class _Check:
    def __init__(self, subject: Subject, seed: int, settings: Settings, outcome: Outcome) -> None:
        self.subject, self.seed, self.settings, self.outcome = subject, seed, settings, outcome
        self.original = finish(recorded(subject.function(), self.inputs()), joint=settings.joint)

    def inputs(self) -> list[torch.Tensor]:
        return self.subject.tensors(self.seed)

    def run(self) -> None:
        first = self._lowered("reference", [VerifyChanged()], run=True)
        second = self._lowered("triton", [], run=self.settings.interpret)
        if first != second:
            raise Broken("plan", f"two plans of one graph differ:\n{first}\n{second}")

    def _lowered(self, target: str, instruments: Sequence[Instrument], *, run: bool) -> str:
        """Runs the passes, and what they made; the plan as text."""
        gm = fx.GraphModule(self.original, copy.deepcopy(self.original.graph))
        result = _passes(gm, self.settings.pipeline(target), instruments)
        verifier.check(gm.graph)
        self._count(result)
        if run:
            self._compare(target, _run(gm, self.inputs(), target))
        return repr(result.context.plan)

    def _count(self, result: PipelineResult) -> None:
        plan, meant = result.context.plan, self.subject.meant
        assert plan is not None
        self.outcome.words = words = Counter(plan.words)
        self.outcome.misses = Counter(
            f"{miss.kind}: {_general(miss.reason)}" for miss in result.context.near_misses
        )
        self.outcome.welds = len(plan.welds)
        self.outcome.tasks = sum(len(weld.chains) for weld in plan.welds)
        norms, spelled = (sum(c[kind] for kind in NORMS) for c in (words, meant))
        if norms > spelled or words["rope"] > meant["rope"]:
            raise Broken("false word", f"raised {dict(words)}, spelled {dict(meant)}")

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        return run_all(fx.Interpreter(self.original).run, self.original, self.inputs())

    @cached_property
    def truth(self) -> list[torch.Tensor]:
        def run(*wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return run_float64(self.original, wide)

        return run_all(run, self.original, [x.double() for x in self.inputs()])

    def _compare(self, target: str, results: Sequence[torch.Tensor]) -> None:
        for i, (got, wanted, truth) in enumerate(zip(results, self.expected, self.truth, strict=True)):
            if got.dtype != wanted.dtype or got.shape != wanted.shape:
                kinds = (f"{x.dtype} {tuple(x.shape)}" for x in (got, wanted))
                raise Broken("type", "result {} is {}, was {}".format(i, *kinds))
            report = compare(f"result {i}", got, wanted, truth)
            if not report.holds and not self._by_luck(i, got):
                raise Broken(f"numerics {target}", f"{report}\n{_worst(got, wanted, truth)}")

    def _by_luck(self, index: int, got: torch.Tensor) -> bool:
        """Whether the untouched graph, rounded a little differently, is as far from the truth as ``got``.

        One run of it may be closer than its arithmetic promises, above all when a result has few elements.
        """
        self.outcome.second_looks += 1
        truth = self.truth[index]
        runs = (
            run_all(Jittered(self.original, seed).run, self.original, self.inputs())
            for seed in range(JITTERS)
        )
        return any(compare("", got, run[index], truth).holds for run in runs)


class VerifyChanged(Instrument):
    """Checks the rules of the IR before the first pass and after every one that changed the graph,
    whatever it says.
    """

    def __init__(self) -> None:
        self._text = ""

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        verifier.check(gm.graph)
        self._text = format_graph(gm.graph)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        text = format_graph(gm.graph)
        if text != self._text:
            verifier.check(gm.graph)
        self._text = text


def _passes(gm: fx.GraphModule, text: str, instruments: Sequence[Instrument]) -> PipelineResult:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", KernelweldWarning)
            return Pipeline.from_text(text, instruments, strict=True).run(gm)
    except PassFailed as failed:
        raise Broken("pass", str(failed)) from failed


def _run(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], target: str) -> list[torch.Tensor]:
    """The results of a lowered graph; kernels address memory by recorded strides, so for them those
    must be true.
    """
    with exact_casts(), np.errstate(all="ignore"):
        checked = Checked(gm, strides=target == "triton")
        results = run_all(checked.run, gm, inputs)
    if checked.wrong:
        raise Broken(f"value {target}", checked.wrong[0])
    return results


def _worst(got: torch.Tensor, wanted: torch.Tensor, truth: torch.Tensor) -> str:
    """The element that is furthest off."""
    distance = (got.double() - truth).abs().nan_to_num(torch.inf).flatten()
    at = int(distance.argmax())
    values = (float(t.flatten()[at]) for t in (got, wanted, truth))
    return "element {}: {!r}, untouched graph {!r}, float64 {!r}".format(at, *values)


def _general(reason: str) -> str:
    """A reason without the names and sizes of one graph."""
    return re.sub(r"\d+", "N", re.sub(r"%\w+", "%", reason))
