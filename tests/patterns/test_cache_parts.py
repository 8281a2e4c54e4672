"""Writes to parts of a tensor become cache writes that return all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import CacheWrite
from kernelweld.ir.printer import format_graph
from kernelweld.patterns.aliasing import storage_root

E4M3, f32 = torch.float8_e4m3fn, torch.float32
STACKED = torch.randn(2, 5, 2, 4, 8)  # keys and values, blocks, rows of a block, heads, D
BY_BLOCK = torch.randn(5, 2, 2, 4, 8)  # blocks, keys and values, rows of a block, heads, D
ROWS = torch.randn(3, 4, 8)
SLOTS = torch.tensor([7, 0, 4])


def unbound(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    keys, values = cache.unbind(0)
    keys[slots // 2, slots % 2] = rows
    values[slots // 2, slots % 2] = rows + 1
    return cache


def selected(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[0].view(-1, 4, 8)[slots] = rows
    cache[1].view(-1, 4, 8)[slots] = rows + 1
    return cache


def unbound_by_block(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    keys, values = cache.unbind(1)
    keys[slots // 2, slots % 2] = rows
    values[slots // 2, slots % 2] = rows + 1
    return cache


def indexed_by_block(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 2, 0, slots % 2] = rows
    cache[slots // 2, 1, slots % 2] = rows + 1
    return cache


def heads_first(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    for part, value in zip(cache.transpose(-2, -3).unbind(1), (rows, rows + 1), strict=True):
        part[slots // 2, :, slots % 2] = value
    return cache


def slices(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[0, ..., :5][slots // 2, slots % 2] = rows[..., :5]
    cache[0, ..., 5:][slots // 2, slots % 2] = rows[..., 5:]
    return cache


BOTH = [
    (unbound, STACKED, CacheWrite((0, 1))),
    (selected, STACKED, CacheWrite((0,))),
    (unbound_by_block, BY_BLOCK, CacheWrite((0, 1))),
    (indexed_by_block, BY_BLOCK, CacheWrite((0, 1))),
    (heads_first, BY_BLOCK, CacheWrite((0, 2))),
    (slices, STACKED, CacheWrite((0, 1))),
]


@pytest.mark.parametrize(("graph", "cache", "word"), BOTH, ids=[case[0].__name__ for case in BOTH])
def test_two_parts(
    raised: Callable[..., Any], graph: Callable[..., Any], cache: Tensor, word: CacheWrite
) -> None:
    result = raised(graph, cache, ROWS, SLOTS)
    first, second = result.calls
    assert result.words == [word, word] and result.misses == ()
    assert storage_root(first.args[4]).op == "placeholder" and storage_root(second.args[4]) is first


def test_the_graph_of_two_parts(raised: Callable[..., Any], golden: Callable[[str], None]) -> None:
    golden(format_graph(raised(unbound, STACKED, ROWS, SLOTS).gm.graph))


def test_one_part(raised: Callable[..., Any]) -> None:
    """The other half is read only: the word still returns the whole."""

    def graph(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        cache[1].view(-1, 4, 8)[slots] = rows
        return cache[0]

    result = raised(graph, STACKED, ROWS, SLOTS)
    assert result.only == CacheWrite((0,)) and result.misses == ()


BYTES = torch.randint(0, 120, (5, 2, 24)).to(torch.uint8)


def codes_as_bytes(cache: Tensor, x: Tensor, slots: Tensor) -> Tensor:
    cache[slots // 2, slots % 2] = x.to(E4M3).view(torch.uint8)
    return cache


def bytes_as_codes(cache: Tensor, x: Tensor, slots: Tensor) -> Tensor:
    cache.view(E4M3)[slots // 2, slots % 2] = x.to(E4M3)
    return cache


def numbers_of_bytes(cache: Tensor, x: Tensor, slots: Tensor) -> Tensor:
    cache.view(f32).view(-1, 6)[slots, 2:4] = x[:, :2]
    return cache


def a_slice_as_numbers(cache: Tensor, x: Tensor, slots: Tensor) -> Tensor:
    cache[..., 8:16].view(f32)[slots // 2, slots % 2] = x[:, :2]
    return cache


def numbers_as_a_slice(cache: Tensor, x: Tensor, slots: Tensor) -> Tensor:
    cache[..., 8:16][slots // 2, slots % 2] = x[:, :2].clone().view(torch.uint8)
    return cache


@pytest.mark.parametrize(
    "graph",
    [codes_as_bytes, bytes_as_codes, numbers_of_bytes, a_slice_as_numbers, numbers_as_a_slice],
    ids=lambda graph: graph.__name__,
)
def test_bytes(raised: Callable[..., Any], graph: Callable[..., Any]) -> None:
    """What is written is no view of bytes: those are what others compute."""
    result = raised(graph, BYTES, torch.randn(3, 24), SLOTS)
    (call,) = result.calls
    assert result.only.kind == "cache_write" and result.misses == ()
    assert call.args[1].meta["val"].dtype == (E4M3 if "codes" in graph.__name__ else f32)


def elsewhere(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Written keys in the place of the values."""
    written = cache[0].index_put((slots // 2, slots % 2), rows)
    cache.copy_(torch.select_scatter(cache, written, 0, 1))
    return cache


def in_another_order(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    part = cache[0].permute(2, 1, 0, 3)  # square in its first dimensions
    written = part.index_put((slots // 2, slots % 2), rows.transpose(0, 1)[:3, :4])
    cache.copy_(torch.select_scatter(cache, written, 0, 0))
    return cache


def behind_another(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    cache[0].mul_(2)
    cache[1, slots // 2, slots % 2] = rows
    return cache


def twice_in_part(cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    written = cache[0].index_put((slots // 2, slots % 2), rows)
    cache.copy_(torch.select_scatter(cache, written, 0, 0))
    return written


NEAR = [
    (elsewhere, STACKED, ROWS, "is written as a part of %cache_1, but not put back there"),
    (in_another_order, torch.randn(2, 4, 4, 4, 8), torch.randn(4, 3, 8), "but not put back there"),
    (
        behind_another,
        STACKED,
        ROWS,
        "its cache is written before by %select_scatter, which is no cache write",
    ),
    (twice_in_part, STACKED, ROWS, "is also used by"),
]


@pytest.mark.parametrize(("graph", "cache", "rows", "reason"), NEAR, ids=[case[0].__name__ for case in NEAR])
def test_near_misses(
    raised: Callable[..., Any], graph: Callable[..., Any], cache: Tensor, rows: Tensor, reason: str
) -> None:
    result = raised(graph, cache, rows, SLOTS)
    assert result.of("cache_write") == []
    assert reason in result.reason("cache_write")
