"""What is decided about a task before a line is written: the widths of its values and their register
pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelweld.codegen.emitters.table import emitter_of
from kernelweld.codegen.layout import Partition, solve
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.task import Apply, Concat, Elementwise, Load, Reduce, RowTask, Slice, TaskStep, Value

#: The widest value that one program can hold.
MAX_WIDTH = 65536


def plan_task(task: RowTask) -> dict[str, Partition]:
    """The register pieces of every value of ``task``. Raises ``Refused`` when the task cannot be laid out."""
    widths: dict[str, int] = {}
    for value in (value for step in task.steps for value in outputs(step)):
        if value.name in widths:
            raise Refused(f"value `{value.name}` is defined twice")
        widths[value.name] = value.width
    for name, width in widths.items():
        if not 1 <= width * task.heads <= MAX_WIDTH:
            raise Refused(
                f"value `{name}` has {width * task.heads} elements in a row (1 to {MAX_WIDTH} are generated)"
            )
    return solve(widths, [alignment for step in task.steps for alignment in emitter_of(step).align(step)])


def outputs(step: TaskStep) -> Iterator[Value]:
    """The values that ``step`` defines."""
    if isinstance(step, Apply):
        yield from step.outs
    elif isinstance(step, (Load, Elementwise, Reduce, Slice, Concat)):
        yield step.out
