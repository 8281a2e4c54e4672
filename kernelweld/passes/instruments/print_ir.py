"""``PrintIR``: the graph as text around passes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TextIO

from torch import fx

from kernelweld.ir.printer import format_graph
from kernelweld.passes.base import PassResult
from kernelweld.passes.instruments.base import Instrument, Step

When = Literal["before", "after", "changed"]


class PrintIR(Instrument):
    """Prints the graph to ``file`` ``before`` passes, ``after`` them, or after those that ``changed`` it.

    ``passes`` restricts it to passes of these names; None means all. What a failing pass left is
    always printed.
    """

    def __init__(self, file: TextIO, when: When = "after", passes: Collection[str] | None = None) -> None:
        self._file = file
        self._when = when
        self._passes = passes
        self._before = ""

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        if not self._watches(step):
            return
        if self._when == "before":
            self._print(f"before {step.text}", format_graph(gm.graph))
        elif self._when == "changed":
            self._before = format_graph(gm.graph)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        if self._when == "before" or not self._watches(step):
            return
        text = format_graph(gm.graph)
        if self._when == "after" or text != self._before:
            self._print(f"after {step.text}", text)
        else:
            self._print(f"after {step.text}: unchanged", "")

    def on_error(self, step: Step, gm: fx.GraphModule, error: Exception) -> None:
        self._print(f"after {step.text} failed: {error}", format_graph(gm.graph))

    def _watches(self, step: Step) -> bool:
        return self._passes is None or step.name in self._passes

    def _print(self, title: str, text: str) -> None:
        self._file.write(f"# {title}\n{text}\n" if text else f"# {title}\n")
