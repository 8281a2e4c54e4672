"""What an instrument is: an observer of a pipeline run, for timing, printing, dumping and checking."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.passes.base import Pass, PassContext, PassResult


@dataclass(frozen=True)
class Step:
    """One pass at its place in a pipeline, counted from 1; ``text`` is how the pipeline writes it."""

    index: int
    run: Pass
    text: str

    @property
    def name(self) -> str:
        return self.run.name


class Instrument:
    """Observes the run of a pipeline; every method does nothing unless a subclass says otherwise.

    An instrument must not change the graph. What one raises around a pass counts as a failure of that pass;
    what it raises before or after the pipeline (a folder that cannot be written, say) goes to the caller.
    """

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        """Before the first pass. ``text`` is the whole pipeline."""

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        """Before each pass."""

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        """After each pass that did not fail."""

    def on_error(self, step: Step, gm: fx.GraphModule, error: Exception) -> None:
        """After a pass that failed, while the graph is still as it left it."""

    def after_pipeline(self, gm: fx.GraphModule, context: PassContext) -> None:
        """After the last pass, or after the graph was put back because one failed."""
