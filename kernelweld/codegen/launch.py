"""How a kernel is launched: rows per program and warps, chosen by width alone.

The choice never depends on the number of rows. So a row is always reduced by the same threads in the same
order, and gives the same bits at any batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelweld.codegen.layout import Partition
from kernelweld.codegen.plan import plan_task
from kernelweld.codegen.task import RowTask, WeldProgram
from kernelweld.codegen.tile import padded

#: Tile elements that one warp holds when a row is narrow: 8 for each of its 32 threads.
_WARP_ELEMENTS = 256


@dataclass(frozen=True)
class Launch:
    """Launch parameters of one kernel. ``rows`` holds the rows per program of each task; 1 where heads
    fill the first axis.
    """

    num_warps: int
    num_stages: int
    rows: tuple[int, ...]


def choose(program: WeldProgram) -> Launch:
    """Warps so that the widest row has 8 to 32 elements a thread; rows per program so that narrow
    tasks fill those warps.
    """
    extents = [_tile_elements(task) for task in program.tasks]
    warps = _warps(max(extents))
    rows = [
        1 if task.heads > 1 else max(1, warps * _WARP_ELEMENTS // extent)
        for task, extent in zip(program.tasks, extents, strict=True)
    ]
    return Launch(num_warps=warps, num_stages=1, rows=tuple(rows))


def _warps(elements: int) -> int:
    """4 to 8 warps up to 8192 elements, 16 to 16384, then 32."""
    if elements <= 8192:
        return min(8, max(4, elements // _WARP_ELEMENTS))
    return 16 if elements <= 16384 else 32


def _tile_elements(task: RowTask) -> int:
    """The padded elements of the widest value of one row of ``task``, heads included, to a power of two."""
    partitions = plan_task(task).values()
    return padded(max(map(_padded_width, partitions)) * padded(task.heads))


def _padded_width(partition: Partition) -> int:
    return sum(padded(piece.count) for piece in partition)
