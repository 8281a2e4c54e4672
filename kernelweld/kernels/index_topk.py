"""``index_topk``: the columns of the k largest scores of each row, exactly, in one launch.

A program chooses its way on the device, from the length of its row:

* at most ``k`` columns: all of them are chosen;
* up to ``tile`` columns: one program holds the row in registers and narrows a bracket of keys down to the
  k-th largest; every round counts the keys above two thresholds that interpolation expects around it;
* longer rows: several programs filter the row by a threshold that a sample of the row suggests, and the one
  that arrives last chooses among what they kept. Where the sample misled, it goes over the whole row.

No program waits for another, and the counter of arrivals is left at zero: nothing depends on how many
programs run at a time, and graphs may be replayed. Prefix sums in column order place the results, so they are
the same in every run. The sampled threshold is an idea of GVR (guess, verify, refine).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from kernelweld.errors import BadOperand
from kernelweld.kernels.operator import define

_SCHEMA = "index_topk(Tensor scores, Tensor lengths, Tensor? table=None, *, int k, int block=0) -> Tensor"
_RING, _SLICE = 1 << 18, 1 << 10  # counters of a device, and how many one call takes at most


@dataclass(frozen=True)
class Sizes:
    """Sizes of the kernel in columns, all powers of two, and how many programs there are at most.

    ``warps`` are for launches with more columns than ``small``. ``early`` reads scores before the length of
    their row is known, and pages before it is known which are needed.
    """

    small: int = 8192
    tile: int = 8192
    chunk: int = 4096
    sample: int = 2048
    programs: int = 132
    warps: int = 8
    small_warps: int = 8
    early: bool = False


DEFAULT = Sizes()


def reference(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None = None, *, k: int, block: int = 0
) -> torch.Tensor:
    """The ``k`` largest of ``scores[r, :lengths[r]]`` for each row, by a stable sort.

    ``scores [R, L]`` float32 with last stride 1, ``lengths [R]`` int32: more than L counts as L, negative as
    0. Gives int32 ``[R, k]``: column indices in ascending order, then -1. Of equal scores the lowest index
    wins; NaN counts as largest, and -0.0 equals 0.0. With ``table [R, P]`` int32 and ``block`` an index ``i``
    is written as its slot, ``table[r, i // block] * block + i % block``.
    Raises BadOperand for other operands.
    """
    _check(scores, lengths, table, k, block)
    width = scores.shape[1]
    column = torch.arange(width, device=scores.device)
    valid = column < lengths.clamp(max=width)[:, None]
    keys = _keys(scores).masked_fill(~valid, -(1 << 31))
    order = torch.sort(keys, dim=1, descending=True, stable=True).indices
    found = order[:, :k]
    found = found.masked_fill(~valid.gather(1, found), width).sort(1).values
    slots = found if table is None else _slots(found.clamp(max=max(width - 1, 0)), table, block)
    slots = slots.masked_fill(found == width, -1).int()
    return torch.nn.functional.pad(slots, (0, max(k - width, 0)), value=-1)


def _keys(scores: torch.Tensor) -> torch.Tensor:
    """Integers in the order of scores, by their bits alone: a sort of floats on CUDA takes NaN of negative
    sign for the least, and a comparison may take subnormals for zero.
    """
    bits = scores.view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = keys.masked_fill(keys == -1, 0)
    return keys.masked_fill((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF)


def _slots(column: torch.Tensor, table: torch.Tensor, block: int) -> torch.Tensor:
    """The slots of columns, by the pages of each row."""
    return table.long().gather(1, column // block) * block + column % block


def _shape(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None = None, *, k: int, block: int = 0
) -> torch.Tensor:
    """An empty result, for tracers."""
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


def kernel(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None = None, *, k: int, block: int = 0
) -> torch.Tensor:
    """As the reference, in one launch."""
    return launch(scores, lengths, table, k, block, DEFAULT)


def launch(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None, k: int, block: int, sizes: Sizes
) -> torch.Tensor:
    """``kernel`` with given sizes."""
    from kernelweld.kernels.topk_rows import LANES, topk_rows

    _check(scores, lengths, table, k, block)
    (rows, columns), device = scores.shape, scores.device
    out = torch.empty((rows, k), dtype=torch.int32, device=device)
    if rows == 0:
        return out
    tile = min(sizes.tile, _power_of_two(columns))
    long = columns > tile
    parts = max(1, min(-(-columns // sizes.chunk), sizes.programs // rows, LANES.value)) if long else 1
    programs = rows * parts if parts > 1 or not long else min(rows, sizes.programs)
    room = max(sizes.chunk, min(_power_of_two(4 * k), sizes.tile))
    kept = torch.empty((2, programs if long else 0, room), dtype=torch.int32, device=device)
    vectors = columns % 4 == scores.stride(0) % 4 == scores.data_ptr() % 16 == 0
    topk_rows[(programs,)](
        scores.view(torch.int32), lengths, out if table is None else table, out,
        kept, torch.empty(programs, dtype=torch.int64, device=device) if long else out,
        _counters(device) if long else out, rows, columns, parts,
        scores.stride(0), lengths.stride(0), 0 if table is None else table.stride(0),
        K=k, BLOCK=0 if table is None else block, SMALL=min(sizes.small, tile), TILE=tile,
        CHUNK=sizes.chunk, SAMPLE=sizes.sample, KEPT=room, LONG=long, EARLY=sizes.early,
        VECTOR=4 if vectors else 1,
        num_warps=sizes.warps if columns > sizes.small else sizes.small_warps,
    )  # fmt: skip
    return out


def _power_of_two(size: int) -> int:
    """The least power of two from ``size`` on."""
    return 1 << (max(size, 1) - 1).bit_length()


def _counters(device: torch.device) -> torch.Tensor:
    """Counters at zero, which a launch leaves at zero: the next ones of a ring, so that launches of several
    streams or graphs that overlap do not meet.

    The ring cannot be made while a graph is captured: it would be memory of that graph, at zero only once the
    graph has run. A launch captured before any call therefore has counters of its own, which its graph sets
    to zero in each replay; a call before the capture saves that.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing() and device not in _rings:
        return torch.zeros(_SLICE, dtype=torch.int32, device=device)
    if device not in _rings:
        _rings[device] = torch.zeros(_RING, dtype=torch.int32, device=device)
    first = next(_turns) * _SLICE % _RING
    return _rings[device][first : first + _SLICE]


_rings: dict[torch.device, torch.Tensor] = {}
_turns = itertools.count()


def _check(
    scores: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None, k: int, block: int
) -> None:
    """Raises BadOperand for what the kernel would read wrongly."""
    if k < 1:
        raise BadOperand("index_topk", "k", str(k), "1 or more")
    if scores.dim() != 2 or scores.dtype != torch.float32 or (scores.shape[1] > 1 and scores.stride(1) != 1):
        raise BadOperand("index_topk", "scores", _words(scores), "float32 [R, L] with a last stride of 1")
    if lengths.shape != scores.shape[:1] or lengths.dtype != torch.int32:
        raise BadOperand("index_topk", "lengths", _words(lengths), "int32, one for each row")
    if table is None:
        return
    wanted = f"int32, for each row pages of at least {scores.shape[1]} columns, with a last stride of 1"
    if table.dim() != 2 or table.dtype != torch.int32 or (table.shape[1] > 1 and table.stride(1) != 1):
        raise BadOperand("index_topk", "table", _words(table), wanted)
    if table.shape[0] != scores.shape[0] or table.shape[1] * block < scores.shape[1]:
        raise BadOperand("index_topk", "table", f"{_words(table)} with blocks of {block}", wanted)


def _words(tensor: torch.Tensor) -> str:
    """Dtype, shape and strides of a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"


index_topk = define(_SCHEMA, reference, kernel, _shape)
