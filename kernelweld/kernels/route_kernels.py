"""Triton kernels of ``route``: the router's GEMM and the choice of experts in one launch, or only the choice.

In one launch, ``tiles * splits`` programs multiply a tile of experts by a part of K and write partial sums; a
few more programs wait for those of a token, add them in the order of the parts, and choose. A partial sum
says itself whether it is there: the workspace is full of ``ABSENT``, a NaN that no sum is, and whoever has
read a sum puts ``ABSENT`` back for the next launch. So there are no counters, fences or clears, a graph
replays, and a result does not depend on who comes first. Programs that wait depend only on programs that do
not, so a GPU with more places than there are waiting programs cannot get stuck; should sums stay absent all
the same, waiting ends after ``PATIENCE`` looks and gives NaN.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# One parameter a line would be pages:
# fmt: off

#: The bits of a partial sum that is not there yet. Sums that are NaN are written with other bits.
ABSENT = tl.constexpr(-1)
#: How often to look for partial sums, seconds in all.
PATIENCE = tl.constexpr(1 << 22)
#: Sort keys: of NaN, which is the largest number as in torch; of -inf; of what is no expert.
_NAN = tl.constexpr(0x7FFFFFFF)
_MINUS_INFINITY = tl.constexpr(-0x7F800001)
_NOTHING = tl.constexpr(-0x80000000)
_TAKEN = tl.constexpr(-0x8000000000000000)


@triton.jit
def _sort_key(x: tl.tensor) -> tl.tensor:
    """Integers that order as the float32 values ``x`` do in torch: NaN is largest, -0.0 is 0.0."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, _NAN, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def _of_key(key: tl.tensor) -> tl.tensor:
    """The float32 values with these sort keys."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _scores(logits: tl.tensor, exists: tl.tensor, SIGMOID: tl.constexpr) -> tl.tensor:
    """Sigmoid or softmax of the logits of one token, [groups, size] float32."""
    if SIGMOID:
        return 1.0 / (1.0 + tl.exp(-logits))
    powers = tl.where(exists, tl.exp(logits - tl.max(tl.where(exists, logits, float("-inf")))), 0.0)
    return powers / tl.sum(powers)


@triton.jit
def _is_kept(
    key: tl.tensor, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIRS: tl.constexpr,
) -> tl.tensor:
    """Which groups, [groups, 1], are among the best by their largest choice, or the sum of their two."""
    group = tl.arange(0, key.shape[0])
    place = tl.arange(0, key.shape[1])[None, :]
    best = tl.max(key, 1)
    if PAIRS:
        first = tl.min(tl.where(key == best[:, None], place, key.shape[1]), 1)
        second = tl.max(tl.where(place == first[:, None], _NOTHING, key), 1)
        best = _sort_key(_of_key(best) + _of_key(second))
    best = tl.where(group < GROUPS, best, _NOTHING)
    other, earlier = best[None, :], group[None, :] < group[:, None]
    ahead = (other > best[:, None]) | ((other == best[:, None]) & earlier)
    return (tl.sum(ahead.to(tl.int32), 1) < TOP_GROUPS)[:, None]


@triton.jit
def _choose(
    logits: tl.tensor, expert: tl.tensor, exists: tl.tensor, bias: tl.tensor, bias_stride: tl.tensor,
    weights: tl.tensor, ids: tl.tensor, token: tl.tensor, scale: tl.tensor, K: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    RENORMALISE: tl.constexpr,
) -> None:
    """Writes the K experts of one token and their weights. ``logits``, the numbers ``expert`` and ``exists``
    are [groups, size], both padded to powers of two.
    """
    scores = _scores(logits, exists, SIGMOID)
    choice = scores
    if BIASED:
        choice += tl.load(bias + expert * bias_stride, mask=exists, other=0.0).to(tl.float32)
    key = tl.where(exists, _sort_key(choice), _NOTHING)
    if TOP_GROUPS < GROUPS:
        kept = _is_kept(key, GROUPS, TOP_GROUPS, BIASED)
        key = tl.where(exists & (kept == 0), _MINUS_INFINITY, key)
    size: tl.constexpr = key.shape[0] * key.shape[1]
    number = tl.reshape(expert, [size])
    scores = tl.reshape(scores, [size])
    # of equal choices the lowest number is the largest
    order = (tl.reshape(key, [size]).to(tl.int64) << 32) | (0x7FFFFFFF - number).to(tl.int64)
    rank = tl.full([size], K, tl.int32)
    for place in range(K):
        is_best = order == tl.max(order, 0)
        rank = tl.where(is_best, place, rank)
        order = tl.where(is_best, _TAKEN, order)
    chosen = rank < K
    if RENORMALISE:
        scores = scores / (tl.sum(tl.where(chosen, scores, 0.0), 0) + 1e-20)
    at = token * K + rank
    tl.store(weights + at, scores * scale, mask=chosen)
    tl.store(ids + at, number.to(tl.int64), mask=chosen)


@triton.jit
def _multiply(
    x: tl.tensor, weight: tl.tensor, partials: tl.tensor, rows: tl.tensor, x_row: tl.tensor,
    x_column: tl.tensor, w_row: tl.tensor, w_column: tl.tensor, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    TILES: tl.constexpr, DOT: tl.constexpr,
) -> None:
    """Writes one program's partial sums, to [splits, rows, E]."""
    tile, split = tl.program_id(0) % TILES, tl.program_id(0) // TILES
    expert, token = tile * BLOCK_E + tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_M)
    w_place = weight + expert.to(tl.int64)[:, None] * w_row
    x_place = x + token.to(tl.int64)[:, None] * x_row
    is_expert, is_token = (expert < E)[:, None], (token < rows)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    if not DOT:
        products = tl.zeros([BLOCK_M, BLOCK_E, BLOCK_K], tl.float32)
    for step in tl.static_range(STEPS):
        column = (split * STEPS + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        exists = (column < D)[None, :]
        w = tl.load(w_place + column[None, :] * w_column, mask=is_expert & exists, other=0.0)
        a = tl.load(x_place + column[None, :] * x_column, mask=is_token & exists, other=0.0)
        if not DOT:
            products += a.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
        elif w.dtype == a.dtype:
            total = tl.dot(a, tl.trans(w), total, input_precision="ieee")
        else:
            total = tl.dot(a.to(tl.float32), tl.trans(w.to(tl.float32)), total, input_precision="ieee")
    if not DOT:
        total = tl.sum(products, 2)
    total = tl.where(total != total, float("nan"), total)
    at = partials + (split * rows + token[:, None]) * E + expert[None, :]
    tl.store(at, total.to(tl.int32, bitcast=True), mask=is_token & (expert < E)[None, :])


@triton.jit
def _awaited(
    partials: tl.tensor, token: tl.tensor, rows: tl.tensor, expert: tl.tensor, exists: tl.tensor,
    E: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr,
) -> tl.tensor:
    """The logits of one token, added up once all parts are there; leaves ``ABSENT`` behind."""
    split = tl.arange(0, PARTS)[:, None, None]
    at = partials + (split * rows + token) * E + expert[None, :, :]
    wanted = (split < SPLITS) & exists[None, :, :]
    bits = tl.load(at, mask=wanted, other=0, volatile=True)
    looks = 0
    while (tl.max((bits == ABSENT).to(tl.int32)) > 0) & (looks < PATIENCE):
        bits = tl.load(at, mask=wanted, other=0, volatile=True)
        looks += 1
    tl.store(at, tl.full(at.shape, ABSENT, tl.int32), mask=wanted)
    return tl.sum(bits.to(tl.float32, bitcast=True), 0)


@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, weights: tl.tensor, ids: tl.tensor, partials: tl.tensor,
    rows: tl.tensor, x_row: tl.tensor, x_column: tl.tensor, w_row: tl.tensor, w_column: tl.tensor,
    bias_stride: tl.tensor, scale: tl.tensor, D: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    RENORMALISE: tl.constexpr, LOGITS: tl.constexpr, PADDED_GROUPS: tl.constexpr, PADDED_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    TILES: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
) -> None:
    """GEMM and choice: x [rows, D], weight [E, D], bias [E], out weights and ids [rows, K]; ``partials``
    int32 [splits, rows, E], all ``ABSENT`` before and after.
    """
    waiting = tl.program_id(0) - TILES * SPLITS
    if waiting < 0:
        _multiply(
            x, weight, partials, rows, x_row, x_column, w_row, w_column, D, E, BLOCK_M, BLOCK_E, BLOCK_K,
            STEPS, TILES, DOT,
        )
    else:
        group, place = tl.arange(0, PADDED_GROUPS)[:, None], tl.arange(0, PADDED_SIZE)[None, :]
        expert = group * (E // GROUPS) + place
        exists = (group < GROUPS) & (place < E // GROUPS)
        for token in range(waiting, rows, tl.num_programs(0) - TILES * SPLITS):
            logits = _awaited(partials, token, rows, expert, exists, E, SPLITS, PARTS)
            _choose(
                logits.to(LOGITS).to(tl.float32), expert, exists, bias, bias_stride, weights, ids, token,
                scale, K, GROUPS, TOP_GROUPS, SIGMOID, BIASED, RENORMALISE,
            )


@triton.jit
def choose_kernel(
    logits: tl.tensor, bias: tl.tensor, weights: tl.tensor, ids: tl.tensor, bias_stride: tl.tensor,
    scale: tl.tensor, E: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr, BIASED: tl.constexpr, RENORMALISE: tl.constexpr, LOGITS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr, PADDED_SIZE: tl.constexpr,
) -> None:
    """The choice alone, a program a token: logits [rows, E] float32, out weights and ids [rows, K]."""
    group, place = tl.arange(0, PADDED_GROUPS)[:, None], tl.arange(0, PADDED_SIZE)[None, :]
    expert = group * (E // GROUPS) + place
    exists = (group < GROUPS) & (place < E // GROUPS)
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(logits + token * E + expert, mask=exists, other=0.0)
    _choose(
        row.to(LOGITS).to(tl.float32), expert, exists, bias, bias_stride, weights, ids, token, scale, K,
        GROUPS, TOP_GROUPS, SIGMOID, BIASED, RENORMALISE,
    )
