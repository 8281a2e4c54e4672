"""The runner: passes in order on one graph, which is put back as it was when one of them fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelweld.codegen.tuning import Tuning
from kernelweld.errors import KernelweldError, PassFailed
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.instruments.base import Instrument, Step
from kernelweld.passes.pause import paused_collector
from kernelweld.passes.snapshot import Snapshot
from kernelweld.passes.spec import build, format_pass, parse
from kernelweld.passes.table import load

#: The pipeline that ``fuse`` and the command line run unless told otherwise.
DEFAULT = "canonicalize,dialect,raise,route,page-slots,skinny-gemm,plan,lower"


@dataclass(frozen=True)
class StepResult:
    """One pass that ran: its text, what it returned, and its own time without that of instruments."""

    text: str
    result: PassResult
    seconds: float


@dataclass(frozen=True)
class PipelineResult:
    """What a run left behind. After a ``failure`` the graph is as before the run, and there is no plan."""

    context: PassContext
    steps: tuple[StepResult, ...]
    failure: PassFailed | None = None

    @property
    def seconds(self) -> Mapping[str, float]:
        """The time of each pass, by its text; passes that ran twice count together."""
        total: Counter[str] = Counter()
        for step in self.steps:
            total[step.text] += step.seconds  # type: ignore[assignment]
        return dict(total)


@dataclass(frozen=True)
class Pipeline:
    """Passes in order. If one fails, ``strict`` decides between an error and a result that says so.

    Kernels are launched as ``tuning`` says, where it says anything.
    """

    passes: tuple[Pass, ...]
    instruments: tuple[Instrument, ...] = ()
    strict: bool = False
    tuning: Tuning | None = None

    @classmethod
    def from_text(
        cls,
        text: str = DEFAULT,
        instruments: Sequence[Instrument] = (),
        *,
        strict: bool = False,
        tuning: Tuning | None = None,
    ) -> Pipeline:
        """The pipeline that ``text`` describes. Raises BadPipeline or, for a pass or option, UnknownName."""
        passes = tuple(build(text, spec, load(spec.name)) for spec in parse(text))
        return cls(passes, tuple(instruments), strict, tuning)

    def __str__(self) -> str:
        return ",".join(map(format_pass, self.passes))

    def run(self, target: fx.GraphModule | fx.Graph) -> PipelineResult:
        """Runs the passes in place.

        ``target`` is a graph module, which is recompiled afterwards, or a bare graph as a compiler's hook
        gets it, which its owner recompiles. If a pass fails and the pipeline is strict, raises PassFailed.
        """
        gm = module_of(target) if isinstance(target, fx.Graph) else target
        # A compiler's hook runs under its fake mode; passes also compute with numbers.
        with paused_collector(), unset_fake_temporarily():
            result = _Run(self, gm, PassContext(tuning=self.tuning)).result()
            if isinstance(target, fx.GraphModule):
                target.recompile()
        return result


def module_of(graph: fx.Graph) -> fx.GraphModule:
    """The module that owns ``graph``, or a new one around it if it has none."""
    return graph.owning_module or fx.GraphModule(torch.nn.Module(), graph)


@dataclass
class _Run:
    """One run of a pipeline on one graph."""

    pipeline: Pipeline
    gm: fx.GraphModule
    context: PassContext
    done: list[StepResult] = field(default_factory=list)

    def result(self) -> PipelineResult:
        for instrument in self.pipeline.instruments:
            instrument.before_pipeline(self.gm, str(self.pipeline))
        failure = self._all_or_nothing()
        for instrument in self.pipeline.instruments:
            instrument.after_pipeline(self.gm, self.context)
        return PipelineResult(self.context, tuple(self.done), failure)

    def _all_or_nothing(self) -> PassFailed | None:
        snapshot = Snapshot(self.gm.graph)
        for index, p in enumerate(self.pipeline.passes, 1):
            step = Step(index, p, format_pass(p))
            try:
                self._one(step)
            except Exception as error:  # whatever a pass raises, the model must still run
                self._put_back(step, error, snapshot)
                failure = _failed(step, error)
                if self.pipeline.strict:
                    raise failure from error
                return failure
        return None

    def _one(self, step: Step) -> None:
        for instrument in self.pipeline.instruments:
            instrument.before_pass(step, self.gm)
        start = time.perf_counter()
        result = step.run.run(self.gm, self.context)
        self.done.append(StepResult(step.text, result, time.perf_counter() - start))
        for instrument in self.pipeline.instruments:
            instrument.after_pass(step, self.gm, result)

    def _put_back(self, step: Step, error: Exception, snapshot: Snapshot) -> None:
        try:
            for instrument in self.pipeline.instruments:
                instrument.on_error(step, self.gm, error)
        finally:
            snapshot.restore(self.gm.graph)
            self.context.plan = None
            self.context.operators.clear()


def _failed(step: Step, error: Exception) -> PassFailed:
    if isinstance(error, KernelweldError):
        return PassFailed(step.name, error.what, source=error.source, excerpt=error.excerpt)
    reason = " ".join(str(error).split()) or "no message"
    return PassFailed(step.name, f"{type(error).__name__}: {reason}")
