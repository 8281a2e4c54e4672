"""What the pass does when vLLM calls it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

from torch import fx

from kernelweld.codegen.tuning_file import gpu_name, read_tuning
from kernelweld.integrations.hook import KernelweldPass, Welded
from kernelweld.integrations.settings import Settings, chosen_pipeline
from kernelweld.integrations.vllm import versions
from kernelweld.integrations.vllm.log import log
from kernelweld.integrations.vllm.options import Options
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
            log.warning("a graph was left as it was: %s: %s", type(error).__name__, error)
            return
        self._tell(welded)

    def _tell(self, welded: Welded) -> None:
        piece = STATISTICS.add(_tokens(), welded.report)
        if welded.failure is not None:
            log.warning("a graph was left as it was: %s", welded.failure.what)
        log.info("%s", piece)
        log.debug("welds of piece %d: %s", piece.number, ", ".join(piece.welds))

    def refusal(self) -> str | None:
        """Why nothing is welded, whatever the graphs are."""
        if not self.options.enabled:
            return 'KERNELWELD_OPTIONS says {"enabled": false}'
        return versions.refusal(versions.installed(), self.options.untested_vllm)

    def announce(self) -> None:
        """Logs, once, why nothing will be welded."""
        reason = self.refusal()
        if reason is not None:
            _say_once(reason)

    def uuid(self) -> str:
        """While graphs are dumped another one in each process: vLLM takes no None, and what comes from a cache
        was not seen by a pass.
        """
        inner = hook(self.options).uuid() or _own_uuid()
        found = f"vLLM {versions.installed()}"
        return hashlib.sha256("\n".join((inner, self.options.to_json(), found)).encode()).hexdigest()

    def applies(self, compile_range: object) -> bool:
        limit = self.options.max_tokens
        return limit is None or int(compile_range.end) <= limit  # type: ignore[attr-defined]


@cache
def hook(options: Options) -> KernelweldPass:
    """Inductor's hook that carries ``options`` out. Raises BadPipeline, or UnknownName for a pass."""
    settings = Settings(
        pipeline=options.pipeline or DEFAULT,
        verify=options.verify,
        strict=options.strict,
        tuned=options.tuned,
    )
    text = chosen_pipeline(settings.text)
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
