"""Rotary embedding in every spelling becomes one word with the right fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import Rope

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16 = torch.bfloat16
HEAD, ROTARY = 16, 8


def inputs(dtype: torch.dtype, table: int, head: int = HEAD) -> list[Tensor]:
    """x [2, 4, 7, head], cos and sin [1, 1, 7, table]."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 7, head), (1, 1, 7, table), (1, 1, 7, table))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def neox(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


def neox_other_order(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return sin * rotate_half(x) + cos * x


def neox_chunked(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second * -1, first), -1) * sin


def neox_inverse_table(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos - rotate_half(x) * sin


def neox_inverse_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, -first), -1) * sin


def neox_twice_inverted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos - torch.cat((second, -first), -1) * sin


def in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    h = x.float()
    return (h * cos.float() + rotate_half(h) * sin.float()).to(x.dtype)


def sliced_before_the_upcast(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x[..., : HEAD // 2].float(), x[..., HEAD // 2 :].float()
    return (x.float() * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_pairs(x) * sin


def halves_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def halves_apart_other_order(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((cos * first - sin * second, sin * first + cos * second), -1)


def halves_apart_inverse(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos + second * sin, second * cos - first * sin), -1)


def halves_apart_two_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, -1), sin.chunk(2, -1)
    return torch.cat((first * cos_a - second * sin_a, second * cos_b + first * sin_b), -1)


def pairs_apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def pairs_to_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """DeepSeek's MLA."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)


def pairs_apart_two_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    (cos_a, cos_b), (sin_a, sin_b) = ((t[..., 0::2], t[..., 1::2]) for t in (cos, sin))
    return torch.stack((even * cos_a - odd * sin_a, odd * cos_b + even * sin_b), -1).flatten(-2)


def pairs_unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs as a dimension of their own, as code that began with complex numbers has them."""
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def halves_unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.reshape(*x.shape[:-1], 2, -1).unbind(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


NEOX = Rope(HEAD, product_dtype=BF16, dtype=BF16)
PAIRS = replace(NEOX, style="interleaved", table="pairs")
HALF = replace(NEOX, table="half")

#: Spelling, width of the table, the word in bfloat16.
SPELLINGS = [
    (neox, HEAD, NEOX),
    (neox_other_order, HEAD, NEOX),
    (neox_chunked, HEAD, NEOX),
    (neox_inverse_table, HEAD, replace(NEOX, inverse=True)),
    (neox_inverse_rotation, HEAD, replace(NEOX, inverse=True)),
    (neox_twice_inverted, HEAD, NEOX),
    (in_float32, HEAD, replace(NEOX, product_dtype=torch.float32)),
    (interleaved, HEAD, PAIRS),
    (halves_apart, HEAD // 2, HALF),
    (halves_apart_other_order, HEAD // 2, HALF),
    (halves_apart_inverse, HEAD // 2, replace(HALF, inverse=True)),
    (halves_apart_two_tables, HEAD, NEOX),
    (pairs_apart, HEAD // 2, replace(HALF, style="interleaved")),
    (pairs_apart_two_tables, HEAD, PAIRS),
    (pairs_unbound, HEAD // 2, replace(HALF, style="interleaved")),
    (halves_unbound, HEAD // 2, HALF),
    (pairs_to_halves, HEAD // 2, replace(HALF, style="interleaved_to_halves")),
]


def in_dtype(word: Rope, dtype: torch.dtype) -> Rope:
    fields = ("product_dtype", "dtype")
    return replace(word, **{f: dtype for f in fields if getattr(word, f) == BF16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "table", "word"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spelling(
    raised: Callable[..., Any], spelling: Callable[..., Tensor], table: int, word: Rope, dtype: torch.dtype
) -> None:
    result = raised(spelling, *inputs(dtype, table))
    assert result.only == in_dtype(word, dtype)
    assert result.operands == ["x_1", "cos_1", "sin_1"]
    assert result.misses == ()


def partial(spelling: Callable[..., Tensor], start: int, stop: int) -> Callable[..., Tensor]:
    """The rotation of ``x[..., start:stop]`` with the rest passed through."""

    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = spelling(x[..., start:stop], cos, sin)
        return torch.cat([t for t in (x[..., :start], turned, x[..., stop:]) if t.shape[-1]], -1)

    return graph


PARTIAL = [(spelling, table // 2, word) for spelling, table, word in SPELLINGS if spelling is not in_float32]


@pytest.mark.parametrize("start", [0, 4, 8])
@pytest.mark.parametrize(("spelling", "table", "word"), PARTIAL, ids=lambda v: getattr(v, "__name__", ""))
def test_partial(
    raised: Callable[..., Any], spelling: Callable[..., Tensor], table: int, word: Rope, start: int
) -> None:
    """The rest of the head is copied by the word, wherever the rotary part lies."""
    result = raised(partial(spelling, start, start + ROTARY), *inputs(BF16, table))
    assert result.only == replace(word, rotary_dim=ROTARY, offset=start)
    assert result.operands == ["x_1", "cos_1", "sin_1"]


@pytest.mark.parametrize("start", [0, 8])
def test_part_without_its_rest(raised: Callable[..., Any], start: int) -> None:
    """The rotary part alone is kept: the word reads the slice."""
    result = raised(lambda x, c, s: neox(x[..., start : start + ROTARY], c, s), *inputs(BF16, ROTARY))
    assert result.only == replace(NEOX, rotary_dim=ROTARY)
    assert result.operands[0].startswith("slice")


def test_split_of_three(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, middle, right = x.split([4, 8, 4], -1)
        return torch.cat((left, neox(middle, cos, sin), right), -1)

    assert raised(graph, *inputs(BF16, ROTARY)).only == replace(NEOX, rotary_dim=ROTARY, offset=4)


def test_partial_in_float32(raised: Callable[..., Any]) -> None:
    """Upcast, turned in part, joined, and rounded once."""

    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = x.float()
        return torch.cat((neox(h[..., :ROTARY], cos, sin), h[..., ROTARY:]), -1).to(x.dtype)

    word = replace(NEOX, rotary_dim=ROTARY, product_dtype=torch.float32)
    assert raised(graph, *inputs(BF16, ROTARY)).only == word


def test_float32_tables(raised: Callable[..., Any]) -> None:
    """OLMo-2: the products are promoted to float32 by the tables and rounded after the sum."""
    x, _, _ = inputs(BF16, HEAD)
    _, cos, sin = inputs(torch.float32, HEAD)
    result = raised(lambda x, cos, sin: neox(x, cos, sin).to(x.dtype), x, cos, sin)
    assert result.only == replace(NEOX, product_dtype=torch.float32)


def test_expanded_tables_are_read_as_they_are(raised: Callable[..., Any]) -> None:
    x, cos, sin = inputs(BF16, HEAD)

    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return neox(x, cos.squeeze(0).unsqueeze(1).expand(2, 1, 7, HEAD), sin)

    result = raised(graph, x, cos, sin)
    assert result.only == NEOX
    assert result.operands == ["x_1", "expand", "sin_1"]


def test_cos_and_sin_of_one_row(raised: Callable[..., Any]) -> None:
    """Both tables are halves of one cached row, as vLLM keeps them."""
    x, row, _ = inputs(BF16, HEAD)
    result = raised(lambda x, row: halves_apart(x, *row.chunk(2, -1)), x, row)
    assert result.only == HALF


def test_query_and_key_share_tables(raised: Callable[..., Any]) -> None:
    x, cos, sin = inputs(BF16, HEAD)
    result = raised(lambda q, k, c, s: (neox(q, c, s), neox(k, c, s)), x, x[:, :2].clone(), cos, sin)
    assert result.words == [NEOX, NEOX]
