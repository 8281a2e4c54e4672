"""What an emitter is, and the alignment that most of them use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernelweld.codegen.layout import Alignment, Span
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.scope import Scope
from kernelweld.codegen.task import Apply, TaskStep, Value

Step = TypeVar("Step", bound=TaskStep)


@dataclass(frozen=True)
class Emitter(Generic[Step]):
    """How one kind of step becomes source.

    ``align`` tells the layout solver which positions of its values meet; ``emit`` writes the step's lines.
    """

    align: Callable[[Step], Sequence[Alignment]]
    emit: Callable[[Scope, Step], None]


def no_alignment(step: TaskStep) -> Sequence[Alignment]:
    """The step relates no positions."""
    return ()


def equal_positions(*values: Value | None) -> Sequence[Alignment]:
    """Element ``k`` of every value meets element ``k`` of the others; values of width 1 are the same
    everywhere.
    """
    present = [v for v in values if v is not None]
    width = max(v.width for v in present)
    odd = [v for v in present if v.width not in (1, width)]
    if odd:
        raise Refused(f"value `{odd[0].name}` of width {odd[0].width} does not broadcast to {width}")
    spans = tuple(Span(v.name) for v in present if v.width == width)
    return (Alignment(width, spans),)


def same_positions(step: Apply) -> Sequence[Alignment]:
    """Alignment of a word that works element by element apart from its reductions."""
    return equal_positions(*step.outs, *step.ins)
