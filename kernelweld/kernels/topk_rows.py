"""The kernel of ``index_topk``; its module says how a program chooses its way."""

from __future__ import annotations

import triton
import triton.language as tl

from kernelweld.kernels.bracket import ABSENT, LOWEST, NAN, keys_of, load_keys, places, search

_GROUP = tl.constexpr(8)  # neighbours in a sample: one sector of memory
LANES = tl.constexpr(64)  # the most programs of a row
_PIECE = tl.constexpr(64)  # what the programs keep is padded to pieces


@triton.jit  # type: ignore[untyped-decorator]
def _edge(
    row: tl.tensor, n: tl.tensor, K: tl.constexpr, SAMPLE: tl.constexpr, VECTOR: tl.constexpr
) -> tl.tensor:
    """A key that about ``2 * K`` to ``3 * K`` scores of a row are at least, by a sample of groups of
    neighbours: the same in every program of the row.
    """
    place = tl.arange(0, SAMPLE)
    step = n // (SAMPLE // _GROUP * VECTOR) * VECTOR
    keys = load_keys(row, (place // _GROUP) * step + place % _GROUP, n, VECTOR)
    least = tl.maximum((2 * K * SAMPLE) // n, 16)
    most = least + least // 2
    lo, hi, n_lo, _ = search(keys, row, SAMPLE, LOWEST, NAN + 1, SAMPLE, 0, least, most, SAMPLE, True, VECTOR)
    return tl.where(n_lo > most, hi, lo)  # above a score that is very frequent


@triton.jit  # type: ignore[untyped-decorator]
def _scatter(out: tl.tensor, place: tl.tensor, value: tl.tensor, chosen: tl.tensor) -> None:
    """Stores chosen values to their places.

    The hint leaves every value in the thread that has it: else all of them, and their addresses, first go
    through shared memory. The mask, which is not constant over any neighbours, keeps the stores scalar.
    """
    target = tl.max_contiguous(tl.multiple_of(out + place, 16), 4)
    tl.store(target, value, mask=chosen)


@triton.jit  # type: ignore[untyped-decorator]
def _slots(table: tl.tensor, column: tl.tensor, here: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """What is written for columns: they themselves, or their slots."""
    if BLOCK > 0:
        page = tl.load(table + column // BLOCK, mask=here, other=0)
        column = page * BLOCK + column % BLOCK
    return column


@triton.jit  # type: ignore[untyped-decorator]
def _copy(
    n: tl.tensor, table: tl.tensor, out: tl.tensor, K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
) -> None:
    """All columns of a row of at most ``K``, then -1."""
    for first in range(0, K, TILE):
        column = first + tl.arange(0, TILE)
        slot = tl.where(column < n, _slots(table, column, column < n, BLOCK), -1)
        tl.store(out + column, slot, mask=column < K)


@triton.jit  # type: ignore[untyped-decorator]
def _select(
    keys: tl.tensor,
    column: tl.tensor,
    here: tl.tensor,
    n: tl.tensor,
    total: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Chooses ``K`` of ``total`` keys, held in registers, of a row of ``n``. Pages are read for all columns
    before the search, or for the chosen ones after it.
    """
    if EARLY:
        column = _slots(table, column, here, BLOCK)
    lo, hi, _, n_hi = search(keys, out, n, LOWEST, NAN + 1, total, 0, K, K, TILE, True, 1)
    chosen, place, _, _ = places(keys, lo, hi, 0, 0, K - n_hi)
    if not EARLY:
        column = _slots(table, column, chosen, BLOCK)
    _scatter(out, place, column, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def _wide(
    row: tl.tensor,
    n: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    TILE: tl.constexpr,
    VECTOR: tl.constexpr,
) -> None:
    """Chooses ``K`` of the ``n`` columns of a row."""
    column = tl.arange(0, TILE)
    keys = load_keys(row, column, n, VECTOR)
    _select(keys, column, column < n, n, n, table, out, K, BLOCK, EARLY, TILE)


@triton.jit  # type: ignore[untyped-decorator]
def _sweep(
    row: tl.tensor,
    n: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    lo: tl.tensor,
    hi: tl.tensor,
    n_hi: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    VECTOR: tl.constexpr,
) -> None:
    """Chooses the ``n_hi`` columns of keys from ``hi`` on and the first in the bracket, tile by tile."""
    above, tied = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    for first in range(0, n, TILE):
        column = first + tl.arange(0, TILE)
        chosen, place, above, tied = places(load_keys(row, column, n, VECTOR), lo, hi, above, tied, K - n_hi)
        _scatter(out, place, _slots(table, column, chosen, BLOCK), chosen)


@triton.jit  # type: ignore[untyped-decorator]
def _keep(
    row: tl.tensor,
    edge: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    kept: tl.tensor,
    shift: tl.tensor,
    CHUNK: tl.constexpr,
    KEPT: tl.constexpr,
    VECTOR: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Keeps key and column of what is at least ``edge`` in a share of a row, in order, padded to whole
    pieces, as far as there is room. Gives how many these are, and how many lie just below.
    """
    count, tied = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    following = load_keys(row, first + tl.arange(0, CHUNK), end, VECTOR)
    for start in range(first, end, CHUNK):
        column, keys = start + tl.arange(0, CHUNK), following
        following = load_keys(row, column + CHUNK, end, VECTOR)  # arrives while these are placed
        here = (keys >= edge).to(tl.int32)
        both = tl.sum(here + ((keys == edge - 1).to(tl.int32) << 16))
        place = count + tl.cumsum(here, 0) - 1
        fits = (here > 0) & (place < KEPT)
        _scatter(kept, place, keys, fits)
        _scatter(kept + shift, place, column, fits)
        count += both & 0xFFFF
        tied += both >> 16
    pad = count + tl.arange(0, _PIECE)
    tl.store(kept + pad, ABSENT, mask=(pad < tl.cdiv(count, _PIECE) * _PIECE) & (pad < KEPT))
    return count, tied


@triton.jit  # type: ignore[untyped-decorator]
def _kept(
    kept: tl.tensor,
    shift: tl.tensor,
    pieces: tl.tensor,
    total: tl.tensor,
    KEPT: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Keys and columns that the programs of a row kept, joined, and where there are some; ``pieces [LANES]``
    of each program.
    """
    piece = tl.arange(0, KEPT // _PIECE)
    ended = tl.cumsum(pieces, 0)[None, :] <= piece[:, None]
    skipped = tl.sum(tl.where(ended, KEPT // _PIECE - pieces[None, :], 0), 1)
    place = (piece + skipped)[:, None] * _PIECE + tl.arange(0, _PIECE)[None, :]
    here = (piece < total)[:, None] & (place >= 0)
    place, here = tl.reshape(place, [KEPT]), tl.reshape(here, [KEPT])
    keys = tl.load(kept + place, mask=here, other=ABSENT)
    return keys, tl.load(kept + shift + place, mask=here, other=0), here & (keys != ABSENT)


@triton.jit  # type: ignore[untyped-decorator]
def _finish(
    row: tl.tensor,
    n: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    edge: tl.tensor,
    kept: tl.tensor,
    shift: tl.tensor,
    tallies: tl.tensor,
    active: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    CHUNK: tl.constexpr,
    KEPT: tl.constexpr,
    VECTOR: tl.constexpr,
) -> None:
    """Chooses among what the ``active`` programs of a row kept if the ``K`` largest are there, else goes over
    the whole row, from what the counts say about the edge.
    """
    lane = tl.arange(0, LANES)
    tally = tl.load(tallies + lane, mask=lane < active, other=0)
    counts, total, tied = tally.to(tl.int32), tl.sum(tally.to(tl.int32)), tl.sum(tally >> 32).to(tl.int32)
    pieces = tl.cdiv(counts, _PIECE)
    used = tl.sum(pieces)
    if (total >= K) & (used * _PIECE <= KEPT):
        keys, column, here = _kept(kept, shift, pieces, used, KEPT)
        _select(keys, column, here, n, total, table, out, K, BLOCK, EARLY, KEPT)
    else:
        enough, just = total >= K, (total < K) & (total + tied >= K)
        lo, n_lo = tl.where(enough, edge, LOWEST), tl.where(enough, total, n)
        hi, n_hi = tl.where(enough, NAN + 1, edge), tl.where(enough, 0, total)
        lo, n_lo = tl.where(just, edge - 1, lo), tl.where(just, total + tied, n_lo)
        if just == 0:
            lo, hi, n_lo, n_hi = search(row, row, n, lo, hi, n_lo, n_hi, K, K, CHUNK, False, VECTOR)
        _sweep(row, n, table, out, lo, hi, n_hi, K, BLOCK, CHUNK, VECTOR)


@triton.jit  # type: ignore[untyped-decorator]
def _long(
    row: tl.tensor,
    n: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    kept: tl.tensor,
    shift: tl.tensor,
    tallies: tl.tensor,
    arrivals: tl.tensor,
    part: tl.tensor,
    parts: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    CHUNK: tl.constexpr,
    SAMPLE: tl.constexpr,
    KEPT: tl.constexpr,
    VECTOR: tl.constexpr,
) -> None:
    """One program's part in a row that is too long for registers; the last to arrive finishes the row."""
    share = tl.cdiv(tl.cdiv(n, CHUNK), parts) * CHUNK
    active = tl.cdiv(n, share)
    if part < active:
        edge = _edge(row, n, K, SAMPLE, VECTOR)
        end = tl.minimum((part + 1) * share, n)
        mine = kept + part * KEPT
        count, tied = _keep(row, edge, part * share, end, mine, shift, CHUNK, KEPT, VECTOR)
        tl.store(tallies + part, (tied.to(tl.int64) << 32) | count)
        tl.debug_barrier()  # what all threads kept, before the one that arrives
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == active - 1:
            tl.store(arrivals, 0)
            _finish(
                row, n, table, out, edge, kept, shift, tallies, active, K, BLOCK, EARLY, CHUNK, KEPT, VECTOR
            )
            tl.debug_barrier()  # before the next row is kept in the same place


@triton.jit(do_not_specialize=["rows", "columns", "parts", "length_stride", "table_stride"])  # type: ignore[untyped-decorator]
def topk_rows(
    scores: tl.tensor, lengths: tl.tensor, table: tl.tensor, out: tl.tensor,
    kept: tl.tensor, tallies: tl.tensor, arrivals: tl.tensor,
    rows: tl.tensor, columns: tl.tensor, parts: tl.tensor,
    row_stride: tl.tensor, length_stride: tl.tensor, table_stride: tl.tensor,
    K: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr, TILE: tl.constexpr,
    CHUNK: tl.constexpr, SAMPLE: tl.constexpr, KEPT: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr,
    VECTOR: tl.constexpr,
) -> None:  # fmt: skip
    """``parts`` programs for a row; see the module."""
    program = tl.program_id(0)
    part, first = program % parts, program // parts
    shift = tl.num_programs(0).to(tl.int64) * KEPT  # from the keys to their columns
    region = (program - part).to(tl.int64)
    for index in range(first, rows, tl.num_programs(0) // parts):
        at = tl.full([], index, tl.int64)
        row = scores + at * row_stride
        target = out + at * K
        pages = table + at * table_stride
        column = tl.arange(0, SMALL)
        if EARLY:  # what only a short row needs, before the length is there
            readable = tl.where(part == 0, columns // VECTOR, 0) * VECTOR
            bits = tl.load(row + column, mask=column < readable, other=0)
        n = tl.minimum(tl.load(lengths + at * length_stride), columns)
        if (n > TILE) & (n > K):
            if LONG:
                _long(
                    row, n, pages, target, kept + region * KEPT, shift, tallies + region, arrivals + first,
                    part, parts, K, BLOCK, EARLY, CHUNK, SAMPLE, KEPT, VECTOR,
                )  # fmt: skip
        elif part == 0:
            if n <= K:
                _copy(n, pages, target, K, BLOCK, SMALL)
            elif n <= SMALL:
                if not EARLY:
                    bits = tl.load(row + column, mask=column < tl.cdiv(n, VECTOR) * VECTOR, other=0)
                here = column < n
                _select(keys_of(bits, column, n), column, here, n, n, pages, target, K, BLOCK, EARLY, SMALL)
            else:
                _wide(row, n, pages, target, K, BLOCK, EARLY, TILE, VECTOR)
