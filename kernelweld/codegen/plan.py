"""What is decided about a task before a line is written: its values' widths and their register pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelweld.codegen.emitters.table import emitter_of
from kernelweld.codegen.layout import Partition, solve
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.task import (
    Apply,
    Concat,
    Elementwise,
    Load,
    Reduce,
    RowTask,
    Slice,
    Store,
    TaskStep,
    Value,
)
from kernelweld.codegen.tile import padded

#: The most elements that one program can hold of a value: heads and width, each padded to a power of two.
MAX_WIDTH = 65536


def plan_task(task: RowTask) -> dict[str, Partition]:
    """The register pieces of every value of ``task``. Raises ``Refused`` when the task cannot be laid out."""
    widths: dict[str, int] = {}
    for step in task.steps:
        _check_inputs(step, widths)
        for value in outputs(step):
            if value.name in widths:
                raise Refused(f"value `{value.name}` is defined twice")
            _check_width(value, task.heads)
            widths[value.name] = value.width
    return solve(widths, [alignment for step in task.steps for alignment in emitter_of(step).align(step)])


def _check_inputs(step: TaskStep, widths: Mapping[str, int]) -> None:
    for value in inputs(step):
        if value.name not in widths:
            raise Refused(f"value `{value.name}` is used before it is defined")
        if value.width != widths[value.name]:
            raise Refused(
                f"value `{value.name}` is used with width {value.width} and has {widths[value.name]}"
            )


def _check_width(value: Value, heads: int) -> None:
    if value.width < 1:
        raise Refused(f"value `{value.name}` has no elements")
    if padded(value.width) * padded(heads) > MAX_WIDTH:
        shape = f"{heads} heads of {value.width}" if heads > 1 else str(value.width)
        raise Refused(
            f"value `{value.name}` has {shape} elements in a row (at most {MAX_WIDTH}, in powers of two)"
        )


def inputs(step: TaskStep) -> Iterator[Value]:
    """The values that ``step`` reads."""
    if isinstance(step, (Load, Store)):
        yield from (index.value for index in step.operand.indices)
    if isinstance(step, (Apply, Elementwise)):
        yield from (value for value in step.ins if isinstance(value, Value))
    elif isinstance(step, (Store, Reduce, Slice)):
        yield step.value
    elif isinstance(step, Concat):
        yield from step.values


def outputs(step: TaskStep) -> Iterator[Value]:
    """The values that ``step`` defines."""
    if isinstance(step, Apply):
        yield from step.outs
    elif isinstance(step, (Load, Elementwise, Reduce, Slice, Concat)):
        yield step.out
