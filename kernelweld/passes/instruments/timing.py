"""``Timing``: how long each pass took, also as a trace that chrome://tracing and Perfetto open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from kernelweld.passes.base import PassResult
from kernelweld.passes.instruments.base import Instrument, Step


@dataclass(frozen=True)
class Span:
    """One pass: its text, and when it began and how long it ran, in seconds of the instrument's clock."""

    text: str
    start: float
    seconds: float


class Timing(Instrument):
    """Collects one span a pass over all graphs that it watches; a pass that failed has one too."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.spans: list[Span] = []
        self._clock = clock
        self._start = 0.0

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        self._start = self._clock()

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        self._end(step)

    def on_error(self, step: Step, gm: fx.GraphModule, error: Exception) -> None:
        self._end(step)

    def _end(self, step: Step) -> None:
        self.spans.append(Span(step.text, self._start, self._clock() - self._start))

    def chrome_trace(self) -> str:
        """The spans in the trace-event format, as complete events in microseconds."""
        events = [
            {"name": s.text, "ph": "X", "pid": 0, "tid": 0, "ts": s.start * 1e6, "dur": s.seconds * 1e6}
            for s in self.spans
        ]
        return json.dumps({"traceEvents": events}, indent=2)
