"""What the pass does when vLLM calls it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

import torch
from torch import fx

from kernelweld.codegen.tuning_file import gpu_name, read_tuning
from kernelweld.errors import KernelweldError
from kernelweld.integrations.hook import KernelweldPass, Welded
from kernelweld.integrations.settings import Settings, chosen_pipeline
from kernelweld.integrations.vllm import versions
from kernelweld.integrations.vllm.log import log
from kernelweld.integrations.vllm.options import VARIABLE, Options
from kernelweld.integrations.vllm.statistics import STATISTICS
from kernelweld.passes.editing import on_the_plan
from kernelweld.passes.only_welds import OnlyWeldsPass
from kernelweld.passes.pipeline import DEFAULT, Pipeline


@dataclass(frozen=True)
class Welder:
    """The pass under its options."""

    options: Options

    def __call__(self, graph: fx.Graph) -> None:
        if self.refusal() is not None:
            return
        try:
            welded = hook(self.options).weld(graph)
        except Exception as error:
            if self.options.strict:
                raise
            what = error.what if isinstance(error, KernelweldError) else f"{type(error).__name__}: {error}"
            log.warning("a graph was left as it was: %s", " ".join(what.split()))
            return
        self._tell(welded, kernels=_runs_kernels(graph))

    def _tell(self, welded: Welded, *, kernels: bool) -> None:
        piece = STATISTICS.add(_tokens(), welded.report, kernels=kernels, left_out=welded.left_out)
        if welded.failure is not None:
            log.warning("a graph was left as it was: %s", welded.failure.what)
        log.info("%s", piece)
        for miss in welded.report.near_misses:
            log.debug("near miss in piece %d: %s at %s: %s", piece.number, miss.kind, miss.node, miss.reason)

    def refusal(self) -> str | None:
        """Why nothing is welded, whatever the graphs are."""
        if not self.options.enabled:
            return 'KERNELWELD_OPTIONS says {"enabled": false}'
        return versions.refusal(versions.installed(), self.options.untested_vllm)

    def announce(self) -> bool:
        """Whether nothing will be welded; logs why, once a process."""
        reason = self.refusal()
        if reason is not None:
            _say_once(reason)
        return reason is not None

    def uuid(self) -> str:
        """While graphs are dumped another one in each process: vLLM takes no None, and what comes from a
        cache was not seen by a pass.
        """
        inner = hook(self.options).uuid() or _own_uuid()
        found = f"vLLM {versions.installed()}"
        return hashlib.sha256("\n".join((inner, self.options.to_json(), found)).encode()).hexdigest()

    def applies(self, compile_range: object) -> bool:
        limit = self.options.max_tokens
        return limit is None or int(compile_range.end) <= limit  # type: ignore[attr-defined]


def _runs_kernels(graph: fx.Graph) -> bool:
    values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


@cache
def hook(options: Options) -> KernelweldPass:
    """Inductor's hook that carries ``options`` out. Raises BadPipeline, or UnknownName for a pass."""
    try:
        return _hook(options)
    except KernelweldError as error:
        error.source = error.source or f"the environment variable {VARIABLE}"
        raise


def _hook(options: Options) -> KernelweldPass:
    settings = Settings(
        pipeline=chosen_pipeline(options.pipeline or DEFAULT),
        verify=options.verify,
        strict=options.strict,
        tuned=options.tuned,
    )
    text = settings.text
    if options.without:
        passes = on_the_plan(Pipeline.from_text(text).passes, OnlyWeldsPass(without=options.without))
        text = str(Pipeline(passes))
    return KernelweldPass(text, options.strict, read_tuning(gpu_name()) if options.tuned else None)


@cache
def _own_uuid() -> str:
    return uuid4().hex


@cache
def _say_once(reason: str) -> None:
    log.warning("inactive: %s", reason)


def _tokens() -> str:
    """The range of tokens that vLLM compiles for, ``1..2048``; empty outside of vLLM."""
    home = sys.modules.get("vllm.compilation.passes.inductor_pass")
    context = getattr(home, "_pass_context", None)
    if context is None:
        return ""
    found = context.compile_range
    return str(found.end) if found.start == found.end else f"{found.start}..{found.end}"
