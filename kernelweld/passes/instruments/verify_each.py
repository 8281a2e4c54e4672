"""``VerifyEach``: the graph keeps the IR's rules, and on request its results, after every pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import fx

from kernelweld.errors import InvalidGraph
from kernelweld.ir.printer import format_value
from kernelweld.ir.verifier import Violation, check
from kernelweld.passes.base import PassResult
from kernelweld.passes.example_inputs import example_inputs
from kernelweld.passes.instruments.base import Instrument, Step

#: How far a result may move, relative to its largest element: another summation order, no new rounding point.
ALLOWED: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
)


class VerifyEach(Instrument):
    """Checks the graph before the first pass and after each one; what fails counts as the pass's failure.

    ``run`` also runs the graph eagerly on random inputs and compares outputs and written inputs with those of
    the graph before the first pass: floats within ``ALLOWED``, everything else exactly.
    """

    def __init__(self, *, run: bool = False, seed: int = 0) -> None:
        self._run = run
        self._seed = seed
        self._expected: list[object] = []

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        check(gm.graph)
        if self._run:
            self._expected = run_graph(gm, self._seed)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        check(gm.graph)
        if self._run and (moved := differences(run_graph(gm, self._seed), self._expected)):
            raise InvalidGraph(tuple(map(str, moved)))


def run_graph(gm: fx.GraphModule, seed: int) -> list[object]:
    """The outputs and then the inputs of ``gm``, run eagerly, node by node, on random inputs."""
    inputs = example_inputs(gm.graph, seed)
    with torch.no_grad():
        outputs = fx.Interpreter(gm).run(*inputs)
    return [*(outputs if isinstance(outputs, (tuple, list)) else (outputs,)), *inputs]


def differences(actual: list[object], expected: list[object]) -> tuple[Violation, ...]:
    """Where two runs differ by more than is allowed."""
    if len(actual) != len(expected):
        return (Violation("result", f"{len(actual)} results instead of {len(expected)}", "return"),)
    pairs = enumerate(zip(actual, expected, strict=True))
    problems = ((i, _problem(a, b)) for i, (a, b) in pairs)
    return tuple(Violation("result", problem, f"result {i}") for i, problem in problems if problem)


def _problem(actual: object, expected: object) -> str | None:
    if not (isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor)):
        return None if actual == expected else f"it is {actual!r} instead of {expected!r}"
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"it is {format_value(actual)} instead of {format_value(expected)}"
    allowed, moved = ALLOWED.get(actual.dtype, 0.0), _distance(actual, expected)
    return (
        None if moved <= allowed else f"it moved by {moved:.3g} of the largest element, allowed {allowed:.3g}"
    )


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest finite element; infinite if other elements are finite."""
    a, b = actual.double(), expected.double()
    finite = b.isfinite()
    if not torch.equal(finite, a.isfinite()):
        return math.inf
    if not finite.any():
        return 0.0
    moved, largest = (a[finite] - b[finite]).abs().max().item(), b[finite].abs().max().item()
    return moved / largest if largest else moved
