"""A program while it is being written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random

import torch

from graphfuzz.program import NAMESPACE, Input, Line, Program, Value, run_lines


class Draft:
    """Collects inputs and lines. Every line runs on the meta device at once, so shapes and dtypes are
    known.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.meant: Counter[str] = Counter()
        self.inputs: list[Input] = []
        self.lines: list[Line] = []
        self._count = count()

    def input(
        self, shape: Sequence[int], dtype: torch.dtype, code: str = "r({0})", layout: str = ""
    ) -> Value:
        """A new input; ``code`` gives float32 values of shape ``{0}``, ``layout`` is applied to them
        in ``dtype``.
        """
        cast = "" if dtype == torch.float32 else f".to({dtype})"
        text = f"({code.format(', '.join(map(str, shape)))}){cast}{layout}"
        scope = {**NAMESPACE, "r": lambda *sizes: torch.empty(sizes, device="meta")}
        value = Value(self._name(), eval(text, scope))
        self.inputs.append(Input(value, text))
        return value

    def like(self, x: Value) -> Value:
        """A tensor of the shape and dtype of ``x``: one that is there already, or a new input."""
        known = [v for v in self.values() if v.shape == x.shape and v.dtype == x.dtype]
        return self.rng.choice(known) if known and self.chance(0.3) else self.input(x.shape, x.dtype)

    def values(self) -> list[Value]:
        """All inputs and results so far."""
        return [i.value for i in self.inputs] + [r for line in self.lines for r in line.results]

    def do(self, template: str, *operands: Value) -> Value:
        """Adds a line with one result; ``{0}``, ``{1}`` … stand for the operands."""
        value = Value(self._name(), run_lines(template, operands))
        self.lines.append(Line((value,), template, operands))
        return value

    def parts(self, template: str, *operands: Value) -> tuple[Value, ...]:
        """Adds a line with several results, the parts of a split."""
        results = tuple(Value(self._name(), part) for part in run_lines(template, operands))
        self.lines.append(Line(results, template, operands))
        return results

    def one(self, *options: str) -> str:
        """One of ``options``."""
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        """True with ``probability``."""
        return self.rng.random() < probability

    def program(self, outputs: Sequence[Value], writes: Sequence[tuple[Value, Value]] = ()) -> Program:
        """The program that returns ``outputs``."""
        program = Program(tuple(self.inputs), tuple(self.lines), tuple(outputs), tuple(writes), self.meant)
        return program.pruned()

    def _name(self) -> str:
        return f"v{next(self._count)}"
