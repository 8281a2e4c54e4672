"""Selection of the k largest keys by a bracket that closes on the k-th, as Triton functions.

Keys are int32 in the order of the float32 scores. A round counts the keys above two thresholds; interpolation
expects the k-th between them. In the first rounds it takes the scores of the whole row for about normal, so
that the share of the row that is above a score says how far out the score is (the probit of the share is a
line in the score); later, in a narrow bracket, for evenly spread. Four to six rounds are usual.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Keys are int32 in the order of the scores. No score has the key of an absent column, and all NaN have one.
ABSENT = tl.constexpr(-(2**31))
LOWEST = tl.constexpr(-0x7F800001)  # of -inf
NAN = tl.constexpr(0x7F800001)
_PATIENCE = tl.constexpr(16)  # rounds before thresholds stop to depend on the scores
_NORMAL = tl.constexpr(3)  # rounds that take the scores for about normal


@triton.jit  # type: ignore[untyped-decorator]
def _key(bits: tl.tensor) -> tl.tensor:
    """The key of a float32 given by its bits: as ordered as the numbers, -0.0 as 0.0, NaN on top."""
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(key == -1, 0, key)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, NAN, key)


@triton.jit  # type: ignore[untyped-decorator]
def _value(key: tl.tensor) -> tl.tensor:
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _key_of(value: tl.tensor) -> tl.tensor:
    """The key of a float32."""
    return _key(value.to(tl.int32, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def keys_of(bits: tl.tensor, column: tl.tensor, n: tl.tensor) -> tl.tensor:
    """The keys of loaded columns of a row of ``n``."""
    return tl.where(column < n, _key(bits), ABSENT)


@triton.jit  # type: ignore[untyped-decorator]
def load_keys(row: tl.tensor, column: tl.tensor, n: tl.tensor, VECTOR: tl.constexpr) -> tl.tensor:
    """The keys of columns of a row of ``n``, read ``VECTOR`` at a time: the row has a multiple of it."""
    return keys_of(tl.load(row + column, mask=column < tl.cdiv(n, VECTOR) * VECTOR, other=0), column, n)


@triton.jit  # type: ignore[untyped-decorator]
def _tally(
    keys: tl.tensor,
    row: tl.tensor,
    n: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    TILE: tl.constexpr,
    HELD: tl.constexpr,
    VECTOR: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """How many keys are at least ``low`` and how many ``high``: of held ``keys``, else of the row."""
    if HELD:
        both = tl.sum((keys >= low).to(tl.int32) + ((keys >= high).to(tl.int32) << 16))
        n_low, n_high = both & 0xFFFF, both >> 16
    else:
        lows, highs = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
        for first in range(0, n, TILE):
            part = load_keys(row, first + tl.arange(0, TILE), n, VECTOR)
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
    VECTOR: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """The smallest bracket around the keys from ``lo`` to below ``hi``, of which there are some."""
    if HELD:
        least, most = tl.where(keys >= lo, keys, NAN), tl.where(keys < hi, keys, ABSENT)
    else:
        least, most = tl.full([TILE], NAN, tl.int32), tl.full([TILE], ABSENT, tl.int32)
        for first in range(0, n, TILE):
            part = load_keys(row, first + tl.arange(0, TILE), n, VECTOR)
            least = tl.minimum(least, tl.where(part >= lo, part, NAN))
            most = tl.maximum(most, tl.where(part < hi, part, ABSENT))
    return tl.min(least), tl.max(most) + 1


@triton.jit  # type: ignore[untyped-decorator]
def _probit(count: tl.tensor, n: tl.tensor) -> tl.tensor:
    """How many standard deviations above the mean the score is that ``count`` of ``n`` normal ones exceed.

    Abramowitz and Stegun, 26.2.23; off by 5e-4 at most.
    """
    share = count / n
    t = tl.sqrt(-2.0 * tl.log(tl.minimum(tl.maximum(tl.minimum(share, 1.0 - share), 1e-7), 0.5)))
    lower = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / lower
    return tl.where(share > 0.5, -z, z)


@triton.jit  # type: ignore[untyped-decorator]
def _expected(
    lo: tl.tensor,
    hi: tl.tensor,
    n_lo: tl.tensor,
    n_hi: tl.tensor,
    n: tl.tensor,
    rank: tl.tensor,
    turn: tl.tensor,
    stalled: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Two keys, around the one that ``rank`` keys of a row of ``n`` are expected to be at least, and whether
    values can be interpolated at all.

    As far apart as chance makes likely; after a round that said little, one of them is in the middle.
    """
    base, left = _value(lo), (n_lo - n_hi).to(tl.float32)
    span = _value(hi) - base
    share = (n_lo - rank) / left
    reach = tl.minimum(1.25 * tl.sqrt(tl.maximum(share * (1.0 - share), 0.02) / left), 0.125)
    first, last = tl.where(stalled, share, tl.maximum(share - reach, 0.0)), tl.minimum(share + reach, 1.0)
    if turn < _NORMAL:
        wide = n.to(tl.float32)
        start = _probit(n_lo - 0.4, wide)
        scale = 1.0 / (_probit(n_hi + 0.6, wide) - start)
        first = (_probit(n_lo - tl.maximum(first * left, 0.5), wide) - start) * scale
        last = (_probit(n_lo - tl.minimum(last * left, left - 0.5), wide) - start) * scale
    middle = (lo >> 1) + (hi >> 1)
    low, high = _key_of(base + span * first), _key_of(base + span * last)
    return low, tl.where(stalled, middle, high), span < float("inf")


@triton.jit  # type: ignore[untyped-decorator]
def _thresholds(
    lo: tl.tensor,
    hi: tl.tensor,
    n_lo: tl.tensor,
    n_hi: tl.tensor,
    n: tl.tensor,
    rank: tl.tensor,
    turn: tl.tensor,
    stalled: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Two keys inside the bracket, between which the key is expected that ``rank`` keys are at least. Where
    values cannot be interpolated, or have not helped, the keys are quartered.
    """
    first, last, even = _expected(lo, hi, n_lo, n_hi, n, rank, turn, stalled)
    even = even & (turn < _PATIENCE)
    first = tl.where(even, first, lo - (lo >> 2) + (hi >> 2))  # the width itself may exceed 32 bits
    last = tl.where(even, last, (lo >> 2) + hi - (hi >> 2))
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
    VECTOR: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Narrows the bracket ``[lo, hi)`` until from ``least`` to ``most`` keys are at least ``lo``, or one key
    is left in it. ``n_lo`` and ``n_hi`` keys are at least ``lo`` and ``hi``; ``n_lo >= least > n_hi``.
    Held ``keys`` are a row of ``n``, or the largest of it.
    """
    turn, stalled, rank = 0, False, (least + most) * 0.5
    n_lo, n_hi = tl.cast(n_lo, tl.int32), tl.cast(n_hi, tl.int32)
    lo, hi, n = tl.cast(lo, tl.int32), tl.cast(hi, tl.int32), tl.cast(n, tl.int32)
    lo, hi = _extent(keys, row, n, lo, hi, TILE, HELD, VECTOR)
    while (n_lo > most) & (hi > lo + 1):
        low, high = _thresholds(lo, hi, n_lo, n_hi, n, rank, turn, stalled)
        n_low, n_high = _tally(keys, row, n, low, high, TILE, HELD, VECTOR)
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
            lo, hi = _extent(keys, row, n, lo, hi, TILE, HELD, VECTOR)
    return lo, hi, n_lo, n_hi


@triton.jit  # type: ignore[untyped-decorator]
def places(
    keys: tl.tensor, lo: tl.tensor, hi: tl.tensor, above: tl.tensor, tied: tl.tensor, spare: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Which keys are chosen and their places: all from ``hi`` on and the first ``spare`` in the bracket.

    ``above`` and ``tied`` count the keys of both kinds before these; they come back with these.
    """
    over = keys >= hi
    even = (keys >= lo) & (keys < hi)
    both = over.to(tl.int32) + (even.to(tl.int32) << 16)
    before = tl.cumsum(both, 0) - both
    evens = tied + (before >> 16)
    chosen = over | (even & (evens < spare))
    place = above + (before & 0xFFFF) + tl.minimum(evens, spare)
    total = tl.sum(both)
    return chosen, place, above + (total & 0xFFFF), tied + (total >> 16)
