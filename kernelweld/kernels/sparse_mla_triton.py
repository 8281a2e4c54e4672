"""The Triton kernel of ``sparse_mla``: flash attention over gathered rows; the last split combines all."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    cache: tl.tuple,  # latent, rope, scales
    page: tl.tensor,  # [TILE]
    line: tl.tensor,  # [TILE]
    chosen: tl.tensor,  # [TILE]
    first: tl.tensor,
    rank: tl.constexpr,
    strides: tl.constexpr,
    kind: tl.constexpr,
    dot: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """``[TILE, COLUMNS]`` of the latent from column ``first`` on, in the type of the products."""
    column = first + tl.arange(0, COLUMNS)
    at = cache[0] + (page * strides[0] + line * strides[1])[:, None] + column[None, :]
    tile = tl.load(at, chosen[:, None] & (column < rank)[None, :], 0.0)
    if kind == "packed":
        groups: tl.constexpr = COLUMNS // 128
        group = first // 128 + tl.arange(0, groups)
        at = cache[2] + (page * strides[4] + line * strides[5])[:, None] + group[None, :]
        scale = tl.load(at, chosen[:, None], 0.0)
        tile = tl.reshape(tile.to(tl.float32), (tile.shape[0], groups, 128)) * scale[:, :, None]
        tile = tl.reshape(tile, (tile.shape[0], COLUMNS))
    return tile.to(dot)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    query: tl.tuple,  # where the heads are [HEADS], their elements' stride, which exist [HEADS]
    cache: tl.tuple,
    places: tl.tuple,  # where the token's slots are, their stride, the first, the end
    first: tl.tensor,
    factor: tl.tensor,
    sizes: tl.constexpr,
    strides: tl.constexpr,
    kind: tl.constexpr,
    dot: tl.constexpr,
    tiles: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tuple:
    """Attention over one split of the slots: largest scores ``[HEADS]`` (of base 2), sums of weights
    ``[HEADS]``, and weighted sums ``[HEADS, COLUMNS]`` of the values from column ``first`` on.
    """
    rank: tl.constexpr = sizes[1]
    at, exists = query[0][:, None], query[2][:, None]
    d, r = tl.arange(0, tiles[1]), tl.arange(0, tiles[2])
    turned = (r < sizes[2])[None, :]
    q_latent = tl.load(at + d[None, :] * query[1], exists & (d < rank)[None, :], 0.0).to(dot)
    q_rope = tl.load(at + (rank + r)[None, :] * query[1], exists & turned, 0.0).to(dot)
    state = _nothing(q_latent.shape[0], COLUMNS)
    for start in tl.range(places[2], places[3], tiles[0]):
        k = start + tl.arange(0, tiles[0])
        slot = tl.load(places[0] + k * places[1], k < places[3], -1)
        chosen, page, line = slot >= 0, (slot // sizes[3]).to(tl.int64), slot % sizes[3]
        keys = _rows(cache, page, line, chosen, 0, rank, strides, kind, dot, tiles[1])
        tail = cache[1] + (page * strides[2] + line * strides[3])[:, None] + r[None, :]
        tail = tl.load(tail, chosen[:, None] & turned, 0.0).to(dot)
        scores = tl.dot(q_rope, tl.trans(tail), input_precision="tf32x3")
        scores = tl.dot(q_latent, tl.trans(keys), scores, input_precision="tf32x3")
        if tiles[1] > COLUMNS:
            values = _rows(cache, page, line, chosen, first, rank, strides, kind, dot, COLUMNS)
        else:
            values = keys
        state = _add(state, tl.where(chosen[None, :], scores * factor, float("-inf")), values, dot)
    return state


@triton.jit  # type: ignore[untyped-decorator]
def _nothing(HEADS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tuple:
    """The state of attention before any slot: largest scores, sums of weights, weighted sums."""
    top = tl.full([HEADS], float("-inf"), tl.float32)
    return top, tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, COLUMNS], tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _add(state: tl.tuple, scores: tl.tensor, values: tl.tensor, dot: tl.constexpr) -> tl.tuple:
    """``state`` with scores ``[HEADS, TILE]`` and values ``[TILE, COLUMNS]`` in it: the online softmax."""
    top, total, weighted = state
    above = tl.maximum(top, tl.max(scores, 1))
    base = _finite(above)
    weights, fade = tl.exp2(scores - base[:, None]), tl.exp2(top - base)
    total = total * fade + tl.sum(weights, 1)
    weighted = tl.dot(weights.to(dot), values, weighted * fade[:, None], input_precision="tf32x3")
    return above, total, weighted


@triton.jit  # type: ignore[untyped-decorator]
def _finite(top: tl.tensor) -> tl.tensor:
    """What scores are taken relative to: 0 where there are none, as -inf less -inf is a NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit  # type: ignore[untyped-decorator]
def _is_last(scratch: tl.tuple, program: tl.tensor, state: tl.tuple, SPLITS: tl.constexpr) -> tl.tensor:
    """Leaves a split's state in the scratch; whether all splits of the group now have."""
    top, total, weighted = state
    head, column = tl.arange(0, weighted.shape[0]), tl.arange(0, weighted.shape[1])
    own = program.to(tl.int64) * weighted.shape[0] + head
    tl.store(scratch[1] + 2 * own, top)
    tl.store(scratch[1] + 2 * own + 1, total)
    tl.store(scratch[0] + own[:, None] * weighted.shape[1] + column[None, :], weighted)
    tl.debug_barrier()  # all threads have stored before one of them counts
    return tl.atomic_add(scratch[2] + program // SPLITS, 1, sem="acq_rel") == SPLITS - 1


@triton.jit  # type: ignore[untyped-decorator]
def _combined(
    scratch: tl.tuple, group: tl.tensor, HEADS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr
) -> tl.tuple:
    """Sums of weights ``[HEADS]`` and weighted sums ``[HEADS, COLUMNS]`` of all splits, in their order."""
    head, column, split = tl.arange(0, HEADS), tl.arange(0, COLUMNS), tl.arange(0, SPLITS)
    own = group.to(tl.int64) * SPLITS * HEADS + head
    tops = tl.load(scratch[1] + 2 * (own[None, :] + split[:, None] * HEADS), cache_modifier=".cg")
    base = _finite(tl.max(tops, 0))
    total, weighted = tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, COLUMNS], tl.float32)
    for i in tl.static_range(0, SPLITS):
        row = own + i * HEADS
        share = tl.exp2(tl.load(scratch[1] + 2 * row, cache_modifier=".cg") - base)
        total += share * tl.load(scratch[1] + 2 * row + 1, cache_modifier=".cg")
        at = scratch[0] + row[:, None] * COLUMNS + column[None, :]
        weighted += share[:, None] * tl.load(at, cache_modifier=".cg")
    tl.store(scratch[2] + group, 0)
    return total, weighted


@triton.jit  # type: ignore[untyped-decorator]
def _store(
    out: tl.tensor,  # [HEADS], where the heads are
    exists: tl.tensor,
    total: tl.tensor,
    weighted: tl.tensor,
    first: tl.tensor,
    rank: tl.constexpr,
) -> None:
    """Stores the quotients; zeros where no slot was chosen."""
    column = first + tl.arange(0, weighted.shape[1])
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    mask = exists[:, None] & (column < rank)[None, :]
    tl.store(out[:, None] + column[None, :], result.to(out.dtype.element_ty), mask)


@triton.jit  # type: ignore[untyped-decorator]
def sparse_mla_kernel(
    q: tl.tensor,  # [T, H, rank + rope]
    cache: tl.tuple,  # latent [pages, block, rank], rope [pages, block, rope], scales where packed
    slots: tl.tensor,  # [T, K]
    scale_kv: tl.tensor,  # [1] where scaled
    out: tl.tensor,  # [T, H, rank]
    scratch: tl.tuple,  # sums [programs, HEADS, COLUMNS], scores and totals [programs, HEADS, 2], counters
    scale: tl.tensor,
    count: tl.tensor,
    share: tl.tensor,  # slots of a split
    q_strides: tl.tuple,
    slot_strides: tl.tuple,
    sizes: tl.constexpr,  # H, rank, rope, block
    strides: tl.constexpr,  # page and row of each part of the cache
    kind: tl.constexpr,
    dot: tl.constexpr,
    tiles: tl.constexpr,  # TILE, RANK, ROPE
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One token, ``HEADS`` heads, one split of its slots, and ``COLUMNS`` columns of the values."""
    group, parts = tl.program_id(0) // SPLITS, tiles[1] // COLUMNS
    first, block = group % parts * COLUMNS, group // parts
    blocks = tl.cdiv(sizes[0], HEADS)
    token, h = (block // blocks).to(tl.int64), block % blocks * HEADS + tl.arange(0, HEADS)
    unit = tl.load(scale_kv) if kind == "scaled" else 1.0
    begin = tl.program_id(0) % SPLITS * share
    query = (q + token * q_strides[0] + h * q_strides[1], q_strides[2], h < sizes[0])
    places = (slots + token * slot_strides[0], slot_strides[1], begin, tl.minimum(begin + share, count))
    factor = scale * unit * 1.4426950408889634  # exp2 in place of exp
    state = _attend(query, cache, places, first, factor, sizes, strides, kind, dot, tiles, COLUMNS)
    at = out + (token * sizes[0] + h) * sizes[1]
    if SPLITS == 1:
        _store(at, h < sizes[0], state[1], state[2] * unit, first, sizes[1])
    elif _is_last(scratch, tl.program_id(0), state, SPLITS):
        total, weighted = _combined(scratch, group, HEADS, COLUMNS, SPLITS)
        _store(at, h < sizes[0], total, weighted * unit, first, sizes[1])
