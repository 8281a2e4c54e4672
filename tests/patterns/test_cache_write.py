"""Cache writes in every spelling become one word; what only looks like one says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import CacheWrite, Quant

CACHE = torch.randn(5, 2, 4, 8)  # blocks, rows of a block, heads, D
HEADS_FIRST = torch.randn(5, 4, 2, 8)
STATIC = torch.randn(1, 4, 10, 8)
ROWS = torch.randn(3, 4, 8)
SLOTS = torch.tensor([7, 0, 4])


def by_slot(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.view(-1, 4, 8)[slots] = rows
    return cache


def by_block_and_offset(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 2, slots % 2] = rows
    return cache


def rounded_down(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[torch.div(slots, 2, rounding_mode="floor"), torch.remainder(slots, 2)] = rows
    return cache


def by_other_blocks(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 4, slots % 2] = rows
    return cache


def heads_before_the_block(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 2, :, slots % 2] = rows
    return cache


def heads_before_the_block_by_a_view(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.transpose(1, 2)[slots // 2, slots % 2] = rows
    return cache


def in_place(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.view(-1, 4, 8).index_put_((slots,), rows)
    return cache


def by_index_copy(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.index_copy_(2, slots, rows.transpose(0, 1)[None])
    return cache


def in_the_middle(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[:, :, slots] = rows.transpose(0, 1)[None]
    return cache


SPELLINGS: list[tuple[Callable[..., Any], Tensor, CacheWrite, bool]] = [
    (by_slot, CACHE, CacheWrite((0,)), False),
    (in_place, CACHE, CacheWrite((0,)), False),
    (by_block_and_offset, CACHE, CacheWrite((0, 1)), False),
    (rounded_down, CACHE, CacheWrite((0, 1)), False),
    (by_other_blocks, CACHE, CacheWrite((0, 1)), True),
    (heads_before_the_block, HEADS_FIRST, CacheWrite((0, 2)), False),
    (heads_before_the_block_by_a_view, HEADS_FIRST, CacheWrite((0, 1)), False),
    (by_index_copy, STATIC, CacheWrite((2,), 2), False),
    (in_the_middle, STATIC, CacheWrite((2,), 2), False),
]


@pytest.mark.parametrize(
    ("graph", "cache", "word", "two"), SPELLINGS, ids=[case[0].__name__ for case in SPELLINGS]
)
def test_spellings(
    raised: Callable[..., Any], graph: Callable[..., Any], cache: Tensor, word: CacheWrite, two: bool
) -> None:
    result = raised(graph, cache, ROWS, SLOTS)
    assert result.only == word
    assert (result.operands[3] is not None) == two
    assert result.misses == ()


def test_codes_are_written_to_a_cache_of_codes(raised: Callable[..., Any]) -> None:
    def graph(cache: Tensor, rows: Tensor, scale: Tensor, slots: Tensor) -> Tensor:
        codes = (rows / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        cache.view(-1, 4, 8)[slots] = codes
        return cache

    result = raised(graph, CACHE.to(torch.float8_e4m3fn), ROWS, torch.tensor(0.01), SLOTS)
    assert result.words == [Quant(-448.0, 448.0), CacheWrite((0,))]


def masked(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.view(-1, 4, 8)[slots] = rows[:1]
    return cache


def three_indices(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 2, slots % 2, slots % 3] = rows[:, 0]
    return cache


def a_column_of_blocks(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots[:1, None] // 2, (slots % 2)[None]] = rows[None]
    return cache


NEAR: list[tuple[Callable[..., Any], str]] = [
    (masked, "is broadcast to the places of"),
    (three_indices, "is indexed in 3 dimensions, not in one or two"),
    (a_column_of_blocks, "have different shapes"),
]


@pytest.mark.parametrize(("graph", "reason"), NEAR, ids=[case[0].__name__ for case in NEAR])
def test_near_misses(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    result = raised(graph, CACHE, ROWS, SLOTS)
    assert result.words == []
    assert reason in result.reason("cache_write")


def accumulated(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache.view(-1, 4, 8).index_put_((slots,), rows, accumulate=True)
    return cache


def of_a_value(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    values = cache.view(-1, 4, 8) * 2
    values[slots] = rows
    return values


@pytest.mark.parametrize("graph", [accumulated, of_a_value])
def test_others_are_no_near_miss(raised: Callable[..., Any], graph: Callable[..., Any]) -> None:
    result = raised(graph, CACHE, ROWS, SLOTS)
    assert result.words == [] and result.misses == ()
