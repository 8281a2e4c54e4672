"""The pass that Inductor calls: it runs the pipeline and never breaks the compilation."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import triton
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

import kernelweld
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.tuning import Tuning
from kernelweld.errors import KernelweldWarning, PassFailed
from kernelweld.integrations import dump
from kernelweld.integrations.offered import offers
from kernelweld.ir.report import GraphReport
from kernelweld.passes.editing import lower_of
from kernelweld.passes.effects import sort
from kernelweld.passes.pipeline import DEFAULT, Pipeline, module_of
from kernelweld.passes.restore import restore_all
from kernelweld.passes.summary import run_reported

_REPORTS: ContextVar[list[GraphReport] | None] = ContextVar("kernelweld_reports", default=None)


@contextmanager
def collecting() -> Iterator[list[GraphReport]]:
    """Collects the reports of the graphs that are compiled inside."""
    reports: list[GraphReport] = []
    token = _REPORTS.set(reports)
    try:
        yield reports
    finally:
        _REPORTS.reset(token)


@dataclass(frozen=True)
class Welded:
    """What became of a graph; after a ``failure`` it is as it was. ``left_out`` as in ``PassContext``."""

    report: GraphReport
    failure: PassFailed | None
    left_out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KernelweldPass(CustomGraphPass):
    """``post_grad_custom_post_pass``: kernelweld's pipeline on a post-grad graph.

    Picklable and deep-copyable: it holds its options and nothing else. ``uuid`` covers the options, the
    measured launches in ``tuning``, every source file of the package and of those that offer words, patterns
    or passes, and the versions of torch, triton and the GPU, so a compile cache never serves an artefact of
    other code. It is None while graphs are dumped, which means no cache.
    """

    pipeline: str = DEFAULT
    strict: bool = False
    tuning: Tuning | None = None

    def __call__(self, graph: fx.Graph) -> None:
        failure = self.weld(graph).failure
        if failure is not None:
            warn_failure(failure)

    def weld(self, graph: fx.Graph) -> Welded:
        """Runs the pipeline in place, and says what it did. With ``strict`` raises PassFailed."""
        sort(graph)  # passes of an engine leave nodes before what they read
        pipeline = Pipeline.from_text(self.pipeline, strict=self.strict, tuning=self.tuning)
        dumped = dump.dump(module_of(graph)) if dump.wanted() else None
        result, report = run_reported(pipeline, graph)
        if lower_of(pipeline.passes) is None:  # a plan that nobody carries out
            report = replace(report, welds=())
        if dumped is not None:
            dumped.report(report)
        restore_all(module_of(graph))  # a pipeline without `lower` leaves words, which are there to be read
        reports = _REPORTS.get()
        if reports is not None:
            reports.append(report)
        return Welded(report, result.failure, tuple(result.context.left_out))

    def uuid(self) -> str | None:
        if dump.wanted():  # what comes from a cache was not seen by a pass, and cannot be written
            return None
        tuning = "untuned" if self.tuning is None else self.tuning.digest
        covered = (self.pipeline, str(self.strict), tuning, environment(), *offers(self.pipeline))
        return hashlib.sha256("\n".join(covered).encode()).hexdigest()


def warn_failure(failure: PassFailed) -> None:
    """One line for a pass that failed; the graph is as it was and the model still runs."""
    place = f" at {failure.source}" if failure.source else ""
    warnings.warn(
        KernelweldWarning(
            f"{failure.what}{place}; the graph was left as it was", "Pass strict=True to see the error."
        ),
        stacklevel=2,
    )


@cache
def environment() -> str:
    """What compiled artefacts depend on beside the options: sources, versions, GPU, and whether kernels are
    interpreted, which decides whether welds of a CPU can be verified.
    """
    gpu = gpu_kind() if torch.cuda.is_available() else "no GPU"
    versions = f"torch {torch.__version__} triton {triton.__version__} python {platform.python_version()}"
    return "\n".join((source_digest(), versions, gpu, "interpreted" if interpreting() else "compiled"))


def gpu_kind() -> str:
    """What kernels are compiled for: the same for every GPU of a kind, so that workers share artefacts."""
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    size = f"{gpu.multi_processor_count} multiprocessors, {gpu.total_memory} bytes"
    return f"{gpu.name}, {gpu.major}.{gpu.minor}, {size}"


@cache
def source_digest() -> str:
    """A hash of every source file of the package."""
    root = Path(kernelweld.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
