"""Selection of the k largest keys by a bracket that closes on the k-th, as Triton functions.

Keys are int32 in the order of the float32 scores. A round counts the keys above two thresholds; interpolation
expects the k-th between them. Six or seven rounds are usual, and thirty the most.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Keys are int32 in the order of the scores. No score has the key of an absent column, and all NaN have one.
ABSENT = tl.constexpr(-(2**31))
LOWEST = tl.constexpr(-0x7F800001)  # of -inf
NAN = tl.constexpr(0x7F800001)
_PATIENCE = tl.constexpr(16)  # rounds before thresholds stop to depend on the scores


@triton.jit  # type: ignore[untyped-decorator]
def _key(bits: tl.tensor) -> tl.tensor:
    """The key of a float32 given by its bits: as ordered as the numbers, -0.0 as 0.0, NaN on top."""
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(key == -1, 0, key)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, NAN, key)


@triton.jit  # type: ignore[untyped-decorator]
def _value(key: tl.tensor) -> tl.tensor:
    """The float32 of a key (int64)."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _key_of(value: tl.tensor) -> tl.tensor:
    """The key (int64) of a float32."""
    return _key(value.to(tl.int32, bitcast=True)).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def load_keys(row: tl.tensor, column: tl.tensor, n: tl.tensor) -> tl.tensor:
    """The keys of columns of a row of ``n``."""
    here = column < n
    return tl.where(here, _key(tl.load(row + column, mask=here, other=0)), ABSENT)


@triton.jit  # type: ignore[untyped-decorator]
def _tally(
    keys: tl.tensor,
    row: tl.tensor,
    n: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    TILE: tl.constexpr,
    HELD: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """How many keys are at least ``low`` and how many ``high``: of held ``keys``, else of the row."""
    low, high = low.to(tl.int32), high.to(tl.int32)
    if HELD:
        both = tl.sum((keys >= low).to(tl.int32) + ((keys >= high).to(tl.int32) << 16))
        n_low, n_high = both & 0xFFFF, both >> 16
    else:
        lows, highs = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
        for first in range(0, n, TILE):
            part = load_keys(row, first + tl.arange(0, TILE), n)
            lows += (part >= low).to(tl.int32)
            highs += (part >= high).to(tl.int32)
        n_low, n_high = tl.sum(lows), tl.sum(highs)
    return n_low, n_high


@triton.jit  # type: ignore[untyped-decorator]
def _extent(
    keys: tl.tensor,
    row: tl.tensor,
    n: tl.tensor,
    lo: tl.tensor,
    hi: tl.tensor,
    TILE: tl.constexpr,
    HELD: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """The smallest bracket around the keys from ``lo`` to below ``hi``, of which there are some."""
    lo, hi = lo.to(tl.int32), hi.to(tl.int32)
    if HELD:
        least, most = tl.where(keys >= lo, keys, NAN), tl.where(keys < hi, keys, ABSENT)
    else:
        least, most = tl.full([TILE], NAN, tl.int32), tl.full([TILE], ABSENT, tl.int32)
        for first in range(0, n, TILE):
            part = load_keys(row, first + tl.arange(0, TILE), n)
            least = tl.minimum(least, tl.where(part >= lo, part, NAN))
            most = tl.maximum(most, tl.where(part < hi, part, ABSENT))
    return tl.min(least).to(tl.int64), tl.max(most).to(tl.int64) + 1


@triton.jit  # type: ignore[untyped-decorator]
def _thresholds(
    lo: tl.tensor,
    hi: tl.tensor,
    n_lo: tl.tensor,
    n_hi: tl.tensor,
    rank: tl.tensor,
    turn: tl.tensor,
    stalled: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Two keys inside the bracket, around the one that ``rank`` keys are expected to be at least.

    The scores are taken to be spread evenly over the bracket; after a round that said little the middle of
    the keys is tried as well, and where values cannot be interpolated the keys are quartered.
    """
    width, base = hi - lo, _value(lo)
    span = _value(hi) - base
    share = (n_lo - rank) / (n_lo - n_hi).to(tl.float32)
    first = _key_of(base + span * tl.where(stalled, share, tl.maximum(share - 0.0625, 0.0)))
    last = tl.where(stalled, lo + (width >> 1), _key_of(base + span * tl.minimum(share + 0.0625, 1.0)))
    even = (span < float("inf")) & (turn < _PATIENCE)
    first, last = tl.where(even, first, lo + (width >> 2)), tl.where(even, last, lo + width - (width >> 2))
    low, high = tl.minimum(first, last), tl.maximum(first, last)
    return tl.minimum(tl.maximum(low, lo + 1), hi - 1), tl.minimum(tl.maximum(high, lo + 1), hi - 1)


@triton.jit  # type: ignore[untyped-decorator]
def search(
    keys: tl.tensor,
    row: tl.tensor,
    n: tl.tensor,
    lo: tl.tensor,
    hi: tl.tensor,
    n_lo: tl.tensor,
    n_hi: tl.tensor,
    least: tl.tensor,
    most: tl.tensor,
    TILE: tl.constexpr,
    HELD: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Narrows the bracket ``[lo, hi)`` until from ``least`` to ``most`` keys are at least ``lo``, or one key
    is left in it. ``n_lo`` and ``n_hi`` keys are at least ``lo`` and ``hi``; ``n_lo >= least > n_hi``.
    """
    turn, stalled, rank = 0, False, (least + most) * 0.5
    n_lo, n_hi = tl.cast(n_lo, tl.int32), tl.cast(n_hi, tl.int32)
    lo, hi = tl.cast(lo, tl.int64), tl.cast(hi, tl.int64)
    lo, hi = _extent(keys, row, n, lo, hi, TILE, HELD)
    while (n_lo > most) & (hi - lo > 1):
        low, high = _thresholds(lo, hi, n_lo, n_hi, rank, turn, stalled)
        n_low, n_high = _tally(keys, row, n, low, high, TILE, HELD)
        before = n_lo - n_hi
        above, between = n_high >= least, n_low >= least
        lo, n_lo = (
            tl.where(above, high, tl.where(between, low, lo)),
            tl.where(above, n_high, tl.where(between, n_low, n_lo)),
        )
        hi, n_hi = (
            tl.where(above, hi, tl.where(between, high, low)),
            tl.where(above, n_hi, tl.where(between, n_high, n_low)),
        )
        stalled = (n_lo - n_hi) * 2 > before
        turn += 1
        if turn % 4 == 0:
            lo, hi = _extent(keys, row, n, lo, hi, TILE, HELD)
    return lo, hi, n_lo, n_hi


@triton.jit  # type: ignore[untyped-decorator]
def places(
    keys: tl.tensor, lo: tl.tensor, hi: tl.tensor, above: tl.tensor, tied: tl.tensor, spare: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Which keys are chosen and their places: all from ``hi`` on and the first ``spare`` in the bracket.

    ``above`` and ``tied`` count the keys of both kinds before these; they come back with these.
    """
    over = keys >= hi.to(tl.int32)
    even = (keys >= lo.to(tl.int32)) & (keys < hi.to(tl.int32))
    both = over.to(tl.int32) + (even.to(tl.int32) << 16)
    before = tl.cumsum(both, 0) - both
    evens = tied + (before >> 16)
    chosen = over | (even & (evens < spare))
    place = above + (before & 0xFFFF) + tl.minimum(evens, spare)
    total = tl.sum(both)
    return chosen, place, above + (total & 0xFFFF), tied + (total >> 16)
