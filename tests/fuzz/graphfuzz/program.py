"""Random programs as runnable Python: inputs, lines of torch code, outputs, writes to inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

#: What the code of a program may use.
NAMESPACE = {"torch": torch, "F": F, "aten": torch.ops.aten}


@dataclass(frozen=True)
class Value:
    """A tensor of a program: its name, and a meta tensor that looks like it."""

    name: str
    like: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.like.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype

    @property
    def width(self) -> int:
        return self.shape[-1]

    def shares(self, other: Value) -> bool:
        """Whether both lie in one memory."""
        return self.like.untyped_storage()._cdata == other.like.untyped_storage()._cdata


@dataclass(frozen=True)
class Input:
    """An input: ``code`` makes it with ``r``, a function that returns random numbers of a shape."""

    value: Value
    code: str


@dataclass(frozen=True)
class Line:
    """``template``, with the names of ``operands`` for ``{0}``, ``{1}`` …, assigned to ``results``."""

    results: tuple[Value, ...]
    template: str
    operands: tuple[Value, ...]

    def __str__(self) -> str:
        names = ", ".join(r.name for r in self.results)
        shown = ", ".join(f"{str(r.dtype).removeprefix('torch.')}{list(r.shape)}" for r in self.results)
        return f"{names} = {self.template.format(*(o.name for o in self.operands))}  # {shown}"


@dataclass(frozen=True)
class Program:
    """A function of ``inputs``: runs ``lines``, writes ``writes`` (input, value), returns ``outputs``.

    ``meant`` counts the words that were spelled on purpose: passes may find fewer, never more.
    """

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[Value, ...]
    writes: tuple[tuple[Value, Value], ...] = ()
    meant: Counter[str] = field(default_factory=Counter)

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The program as a Python function."""
        scope: dict[str, Any] = dict(NAMESPACE)
        exec(compile(self.body(), "<program>", "exec"), scope)
        function: Callable[..., tuple[torch.Tensor, ...]] = scope["program"]
        return function

    def tensors(self, seed: int) -> list[torch.Tensor]:
        """Fresh inputs; the same for the same ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        scope = {**NAMESPACE, "r": lambda *shape: torch.randn(shape, generator=generator)}
        return [eval(i.code, scope) for i in self.inputs]

    def body(self) -> str:
        """The source of the function."""
        lines = [f"def program({self._names()}):"]
        lines += [f"    {line}" for line in self.lines]
        lines += [f"    {target.name}.copy_({value.name})" for target, value in self.writes]
        return "\n".join([*lines, f"    return ({''.join(f'{o.name}, ' for o in self.outputs)})"])

    def source(self, seed: int) -> str:
        """The source of a script that makes the inputs and calls the function."""
        head = (
            "import torch, torch.nn.functional as F",
            "aten = torch.ops.aten",
            f"g = torch.Generator().manual_seed({seed})",
            "r = lambda *shape: torch.randn(shape, generator=g)",
        )
        made = [f"{i.value.name} = {i.code}" for i in self.inputs]
        return "\n".join([*head, *made, self.body(), f"program({self._names()})"])

    def _names(self) -> str:
        return ", ".join(i.value.name for i in self.inputs)

    def pruned(self) -> Program:
        """The program without lines and inputs that no output and no write needs."""
        needed = {v.name for v in (*self.outputs, *(v for write in self.writes for v in write))}
        lines: list[Line] = []
        for line in reversed(self.lines):
            if any(r.name in needed for r in line.results):
                needed.update(o.name for o in line.operands)
                lines.append(line)
        inputs = tuple(i for i in self.inputs if i.value.name in needed)
        return replace(self, inputs=inputs, lines=tuple(reversed(lines)))


def run_lines(template: str, operands: Sequence[Value]) -> Any:
    """What a line makes of its operands, on the meta device."""
    code = template.format(*(f"v[{i}]" for i in range(len(operands))))
    return eval(code, {**NAMESPACE, "v": [o.like for o in operands]})
