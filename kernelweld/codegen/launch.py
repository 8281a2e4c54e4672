"""How a kernel is launched: rows per program and warps, chosen by width alone.

The choice never depends on the number of rows. So a row is always reduced by the same threads in the same
order, and gives the same bits at any batch size. Launches that were measured (``tuning``) depend on it; they
gave the bits of this choice on every draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kernelweld.codegen.layout import Partition
from kernelweld.codegen.plan import plan_task
from kernelweld.codegen.task import Apply, Reduce, RowTask, WeldProgram
from kernelweld.codegen.tile import padded
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.matvec import MatVec
from kernelweld.ir.quant_scale import QuantScale
from kernelweld.ir.rms_norm import RMSNorm
from kernelweld.ir.word import Word

#: Tile elements that one warp holds when rows are narrow or nothing is reduced: 8 for each of its 32 threads.
_WARP_ELEMENTS = 256
#: Tile elements that one warp holds of a wide row that is reduced: fewer warps take part in the reduction.
_REDUCING_WARP_ELEMENTS = 512
#: The same for a row that is quantized by its own magnitude, and so reduced twice.
_QUANTIZING_WARP_ELEMENTS = 1024
#: A warp can hold a row of so many elements alone: nothing of its reductions crosses warps.
_LONE_WARP_ELEMENTS = 512

#: The most tile elements that a warp holds in a launch worth measuring: 64 registers a thread.
_MOST_WARP_ELEMENTS = 2048
_CANDIDATE_WARPS = (1, 2, 4, 8, 16, 32)
_CANDIDATE_FACTORS = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))

_REDUCING = (RMSNorm, LayerNorm, L2Norm, QuantScale, MatVec)


@dataclass(frozen=True)
class Launch:
    """Launch parameters of one kernel. ``rows`` holds the rows per program of each task; 1 where heads
    fill the first axis. ``packed``: results that stay in registers are rounded to bfloat16 two at a time, by
    an instruction of NVIDIA's, so the kernel runs nowhere else.
    """

    num_warps: int
    num_stages: int
    rows: tuple[int, ...]
    packed: bool = False


def choose(program: WeldProgram, *, packed: bool = False) -> Launch:
    """Warps for the widest row, rows per program so that narrower tasks fill those warps. ``packed``: the GPU
    rounds pairs.

    Measured on an H200 at 1 to 8192 tokens: within about 5 % of the best of 2 to 16 warps and 1 to 64 rows.
    """
    extents = [_tile_elements(task) for task in program.tasks]
    warps = max(_warps(task, extent) for task, extent in zip(program.tasks, extents, strict=True))
    rows = [_rows(task, extent, warps) for task, extent in zip(program.tasks, extents, strict=True)]
    return Launch(num_warps=warps, num_stages=1, rows=tuple(rows), packed=packed)


def candidates(program: WeldProgram, *, packed: bool = False) -> tuple[Launch, ...]:
    """Launches worth measuring beside that of ``choose``: other warps, and a quarter to four times the rows a
    program, as far as a warp can hold them; with ``packed`` those that round pairs and those that do not.
    """
    default = choose(program, packed=packed)
    found = (
        Launch(warps, default.num_stages, tuple(_scaled(rows, factor) for rows in default.rows), pairs)
        for pairs in ((False, True) if packed else (False,))
        for warps in _CANDIDATE_WARPS
        for factor in _CANDIDATE_FACTORS
    )
    return tuple(
        launch
        for launch in dict.fromkeys(_limited(program, one) for one in found)
        if launch not in (None, default)
    )


def _scaled(rows: int, factor: Fraction) -> int:
    return max(1, int(rows * factor))


def _limited(program: WeldProgram, launch: Launch) -> Launch | None:
    """``launch`` with one row where heads fill the first axis; None if a warp would hold too much."""
    rows = tuple(1 if t.heads > 1 else r for t, r in zip(program.tasks, launch.rows, strict=True))
    tiles = (r * _tile_elements(task) for r, task in zip(rows, program.tasks, strict=True))
    most = max(tiles) // launch.num_warps
    return replace(launch, rows=rows) if most <= _MOST_WARP_ELEMENTS else None


def _warps(task: RowTask, elements: int) -> int:
    """4 to 8 warps up to 8192 elements, 2 to 4 where they are quantized, 16 to 16384, then 32."""
    if elements > 8192:
        return 16 if elements <= 16384 else 32
    if _applies(task, QuantScale) and elements >= 2 * _QUANTIZING_WARP_ELEMENTS:
        return min(4, elements // _QUANTIZING_WARP_ELEMENTS)
    share = _REDUCING_WARP_ELEMENTS if _reduces(task) else _WARP_ELEMENTS
    return min(8, max(4, elements // share))


def _rows(task: RowTask, elements: int, warps: int) -> int:
    """As many as fill ``warps``, and one for each warp where a warp can hold a row that is reduced."""
    if task.heads > 1:
        return 1
    filling = max(1, warps * _WARP_ELEMENTS // elements)
    return max(filling, warps) if _reduces(task) and elements <= _LONE_WARP_ELEMENTS else filling


def _reduces(task: RowTask) -> bool:
    return _applies(task, *_REDUCING) or any(isinstance(step, Reduce) for step in task.steps)


def _applies(task: RowTask, *words: type[Word]) -> bool:
    return any(isinstance(step, Apply) and isinstance(step.word, words) for step in task.steps)


def _tile_elements(task: RowTask) -> int:
    """The padded elements of the widest value of one row of ``task``, heads included, to a power of two."""
    partitions = plan_task(task).values()
    return padded(max(map(_padded_width, partitions)) * padded(task.heads))


def _padded_width(partition: Partition) -> int:
    return sum(padded(piece.count) for piece in partition)
