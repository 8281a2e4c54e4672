"""Triton kernels of ``route``: the router's GEMM and the choice of experts in one launch, or only the choice.

In one launch, ``tiles * splits`` programs multiply a tile of experts by a part of K and write partial sums; a
few more programs wait for those of a token, add them in the order of the parts, and choose. A partial sum
says itself whether it is there: the workspace is full of ``ABSENT``, a NaN that no sum is, and whoever has
read a sum puts ``ABSENT`` back for the next launch. So there are no counters, fences or clears, a graph
replays, and a result does not depend on who comes first. Programs that wait depend only on programs that do
not, so a GPU with more places than there are waiting programs cannot get stuck; should sums stay absent all
the same, waiting ends after ``PATIENCE`` looks and gives NaN.
"""
# mypy: disable-error-code="untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

# fmt: off  (one parameter a line would be pages)

#: The bits of a partial sum that is not there yet. Sums that are NaN are written with other bits.
ABSENT = tl.constexpr(-1)
#: How often to look for partial sums, seconds in all.
PATIENCE = tl.constexpr(1 << 22)
#: Sort keys: of NaN, which is the largest number as in torch; of -inf; of what is no expert.
_NAN = tl.constexpr(0x7FFFFFFF)
_MINUS_INFINITY = tl.constexpr(-0x7F800001)
_NOTHING = tl.constexpr(-0x80000000)


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
def _two_largest(
    a: tl.tensor, second_a: tl.tensor, b: tl.tensor, second_b: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Of two pairs of a largest and a second, those of all four."""
    return tl.maximum(a, b), tl.maximum(tl.minimum(a, b), tl.maximum(second_a, second_b))


@triton.jit
def _is_kept(
    key: tl.tensor, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, PAIRS: tl.constexpr,
) -> tl.tensor:
    """Which groups, [groups, 1], are among the best by their largest choice, or the sum of their two."""
    group = tl.arange(0, key.shape[0])
    if PAIRS:
        best, second = tl.reduce((key, tl.full(key.shape, _NOTHING, tl.int32)), 1, _two_largest)
        best = _sort_key(_of_key(best) + _of_key(second))
    else:
        best = tl.max(key, 1)
    best = tl.where(group < GROUPS, best, _NOTHING)
    other, earlier = best[None, :], group[None, :] < group[:, None]
    ahead = (other > best[:, None]) | ((other == best[:, None]) & earlier)
    return (tl.sum(ahead.to(tl.int32), 1) < TOP_GROUPS)[:, None]


@triton.jit
def _largest(values: tl.tensor) -> tl.tensor:
    """The largest int32 of [groups, size]; one instruction within a warp."""
    return tl.max(tl.reshape(values, [values.shape[0] * values.shape[1]]), 0)


@triton.jit
def _choose(
    logits: tl.tensor, offsets: tl.tensor, expert: tl.tensor, exists: tl.tensor, weights: tl.tensor,
    ids: tl.tensor, token: tl.tensor, scale: tl.tensor, K: tl.constexpr, PADDED_K: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr,
    RENORMALISE: tl.constexpr,
) -> None:
    """Writes the K experts of one token and their weights. ``logits``, what to add for the choice, the
    numbers ``expert`` and ``exists`` are [groups, size], both padded to powers of two.
    """
    scores = _scores(logits, exists, SIGMOID)
    key = tl.where(exists, _sort_key(scores + offsets if BIASED else scores), _NOTHING)
    if TOP_GROUPS < GROUPS:
        kept = _is_kept(key, GROUPS, TOP_GROUPS, BIASED)
        key = tl.where(exists & (kept == 0), _MINUS_INFINITY, key)
    bits = tl.where(exists, scores.to(tl.int32, bitcast=True), _NOTHING)
    place = tl.arange(0, PADDED_K)
    chosen, chosen_bits = tl.zeros([PADDED_K], tl.int32), tl.zeros([PADDED_K], tl.int32)
    total = 0.0
    for k in range(K):
        # of equal choices the lowest number is taken
        number = -_largest(tl.where(key == _largest(key), -expert, _NOTHING))
        is_chosen = expert == number
        key = tl.where(is_chosen, _NOTHING, key)
        score_bits = _largest(tl.where(is_chosen, bits, _NOTHING))
        chosen = tl.where(place == k, number, chosen)
        chosen_bits = tl.where(place == k, score_bits, chosen_bits)
        total += score_bits.to(tl.float32, bitcast=True)
    chosen_scores = chosen_bits.to(tl.float32, bitcast=True)
    if RENORMALISE:
        chosen_scores = chosen_scores / (total + 1e-20)
    at = token * K + place
    tl.store(weights + at, chosen_scores * scale, mask=place < K)
    tl.store(ids + at, chosen.to(tl.int64), mask=place < K)


@triton.jit
def _offsets(
    bias: tl.tensor, stride: tl.tensor, expert: tl.tensor, exists: tl.tensor, BIASED: tl.constexpr,
) -> tl.tensor:
    """The bias of each expert, zeros without one."""
    if BIASED:
        return tl.load(bias + expert * stride, mask=exists, other=0.0).to(tl.float32)
    return tl.zeros(expert.shape, tl.float32)


@triton.jit
def _sum_products(
    x: tl.tensor, weight: tl.tensor, partials: tl.tensor, rows: tl.tensor, x_row: tl.tensor,
    x_column: tl.tensor, w_row: tl.tensor, w_column: tl.tensor, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    TILES: tl.constexpr, EVEN: tl.constexpr,
) -> None:
    """Writes one program's partial sums for BLOCK_M rows, each by itself. All weights are asked for first;
    x and weight have one layout, so that no product waits for shared memory.
    """
    tile, split = tl.program_id(0) % TILES, tl.program_id(0) // TILES
    expert = tile * BLOCK_E + tl.arange(0, BLOCK_E)
    w_place = weight + expert.to(tl.int64)[:, None] * w_row
    first = split * STEPS * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    w = ()
    for step in tl.static_range(STEPS):
        column = first + step * BLOCK_K
        if EVEN:
            w += (tl.load(w_place + column * w_column),)
        else:
            w += (tl.load(w_place + column * w_column, mask=(expert < E)[:, None] & (column < D), other=0.0),)
    sums = ()
    for token in tl.static_range(BLOCK_M):
        products = tl.zeros([BLOCK_E, BLOCK_K], tl.float32)
        # past the last row it is computed once more, rather than masked
        row = x + tl.minimum(token, rows - 1).to(tl.int64) * x_row
        for step in tl.static_range(STEPS):
            column = first + step * BLOCK_K
            place = row + column * x_column
            a = tl.load(place) if EVEN else tl.load(place, mask=column < D, other=0.0)
            products += a.to(tl.float32) * w[step].to(tl.float32)
        sums += (tl.sum(products, 1),)
    for token in tl.static_range(BLOCK_M):
        at = partials + (split * rows + token) * E + expert
        tl.store(at, _present(sums[token]), mask=expert < tl.where(token < rows, E, 0))


@triton.jit
def _present(total: tl.tensor) -> tl.tensor:
    """The bits of sums; those of NaN are not ``ABSENT``."""
    return tl.where(total != total, float("nan"), total).to(tl.int32, bitcast=True)


@triton.jit
def _multiply(
    x: tl.tensor, weight: tl.tensor, partials: tl.tensor, rows: tl.tensor, x_row: tl.tensor,
    x_column: tl.tensor, w_row: tl.tensor, w_column: tl.tensor, D: tl.constexpr, E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    """Writes one program's partial sums, to [splits, rows, E], on the tensor cores. Stages for all steps
    and one more ask for everything before the first product.
    """
    tile, split = tl.program_id(0) % TILES, tl.program_id(0) // TILES
    expert, token = tile * BLOCK_E + tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_M)
    w_place = weight + expert.to(tl.int64)[:, None] * w_row
    x_place = x + token.to(tl.int64)[:, None] * x_row
    is_expert, is_token = (expert < E)[:, None], (token < rows)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for step in tl.range(STEPS, num_stages=STEPS + 1):
        column = (split * STEPS + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        exists = (column < D)[None, :]
        w = tl.load(w_place + column[None, :] * w_column, mask=is_expert & exists, other=0.0)
        a = tl.load(x_place + column[None, :] * x_column, mask=is_token & exists, other=0.0)
        if w.dtype == a.dtype:
            total = tl.dot(a, tl.trans(w), total, input_precision="ieee")
        else:
            total = tl.dot(a.to(tl.float32), tl.trans(w.to(tl.float32)), total, input_precision="ieee")
    at = partials + (split * rows + token[:, None]) * E + expert[None, :]
    tl.store(at, _present(total), mask=is_token & (expert < E)[None, :])


@triton.jit
def _awaited(
    partials: tl.tensor, token: tl.tensor, rows: tl.tensor, expert: tl.tensor, exists: tl.tensor,
    E: tl.constexpr, SPLITS: tl.constexpr,
) -> tl.tensor:
    """The logits of one token, added up once all parts are there; leaves ``ABSENT`` behind.

    The parts are tiles of their own: a sum over a dimension of a larger tile leaves a layout in which
    threads hold the same values, and reductions in some of these are wrong in Triton 3.6.
    """
    place = partials + token * E + expert
    looks = 0
    total = tl.zeros(expert.shape, tl.float32)
    while looks < PATIENCE:
        absent = tl.zeros(expert.shape, tl.int32)
        total = tl.zeros(expert.shape, tl.float32)
        for split in tl.static_range(SPLITS):
            bits = tl.load(place + split * rows * E, mask=exists, other=0, volatile=True)
            absent |= (bits == ABSENT).to(tl.int32)
            total += bits.to(tl.float32, bitcast=True)
        looks = tl.where(_largest(absent) > 0, looks + 1, PATIENCE)
    for split in tl.static_range(SPLITS):
        tl.store(place + split * rows * E, tl.full(expert.shape, ABSENT, tl.int32), mask=exists)
    return total


@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, weights: tl.tensor, ids: tl.tensor, partials: tl.tensor,
    rows: tl.tensor, x_row: tl.tensor, x_column: tl.tensor, w_row: tl.tensor, w_column: tl.tensor,
    bias_stride: tl.tensor, scale: tl.tensor, D: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    PADDED_K: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, SIGMOID: tl.constexpr,
    BIASED: tl.constexpr, RENORMALISE: tl.constexpr, LOGITS: tl.constexpr, PADDED_GROUPS: tl.constexpr,
    PADDED_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
    STEPS: tl.constexpr, TILES: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr, DOT: tl.constexpr,
) -> None:
    """GEMM and choice: x [rows, D], weight [E, D], bias [E], out weights and ids [rows, K]; ``partials``
    int32 [splits, rows, E], all ``ABSENT`` before and after. ``EVEN``: the programs' parts divide weight.
    """
    waiting = tl.program_id(0) - TILES * SPLITS
    if waiting < 0:
        if DOT:
            _multiply(
                x, weight, partials, rows, x_row, x_column, w_row, w_column, D, E, BLOCK_M, BLOCK_E, BLOCK_K,
                STEPS, TILES,
            )
        else:
            _sum_products(
                x, weight, partials, rows, x_row, x_column, w_row, w_column, D, E, BLOCK_M, BLOCK_E, BLOCK_K,
                STEPS, TILES, EVEN,
            )
    else:
        group, place = tl.arange(0, PADDED_GROUPS)[:, None], tl.arange(0, PADDED_SIZE)[None, :]
        expert = group * (E // GROUPS) + place
        exists = (group < GROUPS) & (place < E // GROUPS)
        offsets = _offsets(bias, bias_stride, expert, exists, BIASED)
        for token in range(waiting, rows, tl.num_programs(0) - TILES * SPLITS):
            logits = _awaited(partials, token, rows, expert, exists, E, SPLITS)
            _choose(
                logits.to(LOGITS).to(tl.float32), offsets, expert, exists, weights, ids, token, scale, K,
                PADDED_K, GROUPS, TOP_GROUPS, SIGMOID, BIASED, RENORMALISE,
            )


@triton.jit
def choose_kernel(
    logits: tl.tensor, bias: tl.tensor, weights: tl.tensor, ids: tl.tensor, bias_stride: tl.tensor,
    scale: tl.tensor, E: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr, GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr, SIGMOID: tl.constexpr, BIASED: tl.constexpr, RENORMALISE: tl.constexpr,
    LOGITS: tl.constexpr, PADDED_GROUPS: tl.constexpr, PADDED_SIZE: tl.constexpr,
) -> None:
    """The choice alone, a program a token: logits [rows, E] float32, out weights and ids [rows, K]."""
    group, place = tl.arange(0, PADDED_GROUPS)[:, None], tl.arange(0, PADDED_SIZE)[None, :]
    expert = group * (E // GROUPS) + place
    exists = (group < GROUPS) & (place < E // GROUPS)
    token = tl.program_id(0).to(tl.int64)
    offsets = _offsets(bias, bias_stride, expert, exists, BIASED)
    row = tl.load(logits + token * E + expert, mask=exists, other=0.0)
    _choose(
        row.to(LOGITS).to(tl.float32), offsets, expert, exists, weights, ids, token, scale, K, PADDED_K,
        GROUPS, TOP_GROUPS, SIGMOID, BIASED, RENORMALISE,
    )
