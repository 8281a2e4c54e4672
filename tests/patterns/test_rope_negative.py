"""Graphs that look like a rotary embedding and are none: nothing is raised; the reason names the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import Rope
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.rope import RopePattern

HEAD = 16


def tensor(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., : HEAD // 2], x[..., HEAD // 2 :]


def rotate_half(x: Tensor) -> Tensor:
    first, second = halves(x)
    return torch.cat((-second, first), -1)


def neither_negated(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = halves(x)
    return x * cos + torch.cat((second, first), -1) * sin


def both_negated(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = halves(x)
    return x * cos + torch.cat((-second, -first), -1) * sin


def halves_in_source_order(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = halves(x)
    return x * cos + torch.cat((-first, second), -1) * sin


def halves_overlap(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 4:12], x[..., :8]), -1) * sin


def wrong_split(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 10:], x[..., :10]), -1) * sin


def halves_of_two_values(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-y[..., 8:], x[..., :8]), -1) * sin


def another_value_straight(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return y * cos + rotate_half(x) * sin


def a_part_straight(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x.repeat(1, 1, 1, 2)[..., 4:20] * cos + rotate_half(x) * sin


def not_multiplied(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x)


def not_added(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos * (rotate_half(x) * sin)


def subtracted_the_other_way(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotate_half(x) * sin - x * cos


def one_cosine_a_row(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos[..., :1] + rotate_half(x) * sin


def table_larger_than_x(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.expand(3, 1, 1, 7, HEAD), sin.expand(3, 1, 1, 7, HEAD)
    return x * cos + rotate_half(x) * sin


def products_rounded_differently(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    h = x.bfloat16()
    return h * cos + rotate_half(h) * sin.bfloat16()


def rotated_value_used_outside(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated = rotate_half(x)
    return x * cos + rotated * sin, rotated


def product_used_outside(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    product = x * cos
    return product + rotate_half(x) * sin, product


def in_float64(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    h = x.double()
    return h * cos.double() + rotate_half(h) * sin.double()


def float64_value(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    h = x.double()
    return h * cos + rotate_half(h) * sin


def halves_joined_by_pairs(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = halves(x)
    return x * cos + torch.stack((-second, first), -1).flatten(-2) * sin


def pairs_joined_end_to_end(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 1::2], x[..., 0::2]), -1) * sin


ROTATED = [
    (neither_negated, "neither half is negated in %cat"),
    (both_negated, "both halves are negated in %cat"),
    (halves_in_source_order, "are not the first and second elements of pairs, in this order"),
    (halves_overlap, "the halves %x_1[0:8] and %x_1[4:12] overlap"),
    (wrong_split, "the halves %x_1[0:10] and %x_1[10:16] are not of equal width"),
    (halves_of_two_values, "the halves are of different values, %x_1 and %y_1"),
    (another_value_straight, "multiplies %y_1, but %x_1[0:16] is rotated"),
    (a_part_straight, "but %x_1[0:16] is rotated"),
    (not_multiplied, "the rotated value %cat is not multiplied by a table"),
    (not_added, "is not added to x cos"),
    (subtracted_the_other_way, "subtracts x cos from the rotated part"),
    (one_cosine_a_row, "has shape [1, 1, 7, 1], not [..., 16]"),
    (table_larger_than_x, "of shape [3, 1, 1, 7, 16] is larger than [2, 4, 7, 16]"),
    (products_rounded_differently, "are float32 and bfloat16"),
    (rotated_value_used_outside, "the rotated value %cat is used by 2 nodes"),
    (product_used_outside, "is also used by %output"),
    (in_float64, "is float64"),
    (float64_value, "are float64 and float64"),
    (halves_joined_by_pairs, "joins neox halves by pairs"),
    (pairs_joined_end_to_end, "%cat joins interleaved halves end to end"),
]


@pytest.mark.parametrize(("graph", "reason"), ROTATED, ids=lambda v: getattr(v, "__name__", ""))
def test_no_rotation(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    x, y = tensor(2, 4, 7, HEAD), tensor(2, 4, 7, HEAD) + 1
    result = raised(graph, x, y, tensor(1, 1, 7, HEAD), tensor(1, 1, 7, HEAD) + 1)
    assert result.words == []
    assert reason in result.reason("rope")


def different_cosines(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    """As if the second half were at another position."""
    return torch.cat((a * cos - b * sin, b * other + a * sin), -1)


def different_sines(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((a * cos - b * sin, b * cos + a * other), -1)


def not_crossed(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((a * cos - b * sin, a * cos + b * sin), -1)


def one_half_twice(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((b * cos - b * sin, b * cos + a * sin), -1)


def both_subtract(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((a * cos - b * sin, b * cos - a * sin), -1)


def both_add(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((a * cos + b * sin, b * cos + a * sin), -1)


def joined_the_other_way(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, other: Tensor) -> Tensor:
    return torch.cat((b * cos - a * sin, a * cos + b * sin), -1)


APART = [
    (different_cosines, "the halves are turned by different cosines"),
    (different_sines, "the halves are turned by different sines"),
    (not_crossed, "the halves are turned by different cosines"),
    (one_half_twice, "of the difference are not those of the sum"),
    (both_subtract, "both halves subtract in %cat; a rotation subtracts in one"),
    (both_add, "both halves add in %cat; a rotation subtracts in one"),
    (joined_the_other_way, "are not the first and second elements of pairs, in this order"),
]


@pytest.mark.parametrize(("graph", "reason"), APART, ids=lambda v: getattr(v, "__name__", ""))
def test_halves_that_are_no_rotation(
    raised: Callable[..., Any], graph: Callable[..., Any], reason: str
) -> None:
    tables = [tensor(1, 1, 7, HEAD // 2) + i for i in range(3)]
    result = raised(lambda x, *tables: graph(*halves(x), *tables), tensor(2, 4, 7, HEAD), *tables)
    assert result.words == []
    assert reason in result.reason("rope")


def test_tables_laid_out_differently(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        (a, b), (cos_a, cos_b), (sin_a, sin_b) = halves(x), halves(cos), (sin[..., 0::2], sin[..., 1::2])
        return torch.cat((a * cos_a - b * sin_a, b * cos_b + a * sin_b), -1)

    result = raised(graph, tensor(2, 4, 7, HEAD), tensor(1, 1, 7, HEAD), tensor(1, 1, 7, HEAD) + 1)
    assert result.words == []
    assert result.reason("rope") == "the cosines lie in halves and the sines in pairs"


def test_part_without_its_rest(raised: Callable[..., Any]) -> None:
    """No node holds the rotary part alone, so the word would have nothing to read."""

    def graph(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x[..., :4], x[..., 4:8]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    result = raised(graph, tensor(2, 4, 7, HEAD), tensor(1, 1, 7, 4), tensor(1, 1, 7, 4) + 1)
    assert result.words == []
    assert result.reason("rope") == "%x_1[0:8] is turned, but not joined with the rest of %x_1"


def passed(rest: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The first half of the head turned, then joined with ``rest(x, y)``."""

    def graph(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        part = x[..., :8]
        turned = part * cos + torch.cat((-part[..., 4:], part[..., :4]), -1) * sin
        return torch.cat((turned, rest(x, y)), -1)

    return graph


RESTS = [
    (lambda x, y: y[..., 8:], "joins %slice_4, which is not the rest of %x_1"),
    (lambda x, y: x[..., :8], "joins %slice_1, which is not the rest of %x_1"),
    (lambda x, y: x[..., 9:], "joins %slice_4, which is not the rest of %x_1"),
    (lambda x, y: x[..., 8:12], "does not hold all of %x_1"),
]


@pytest.mark.parametrize(("rest", "reason"), RESTS, ids=["other", "same", "gap", "short"])
def test_what_is_joined_is_not_the_rest(
    raised: Callable[..., Any], rest: Callable[[Tensor, Tensor], Tensor], reason: str
) -> None:
    """The rotary part is a word on its own slice; the join stays outside."""
    x, y = tensor(2, 4, 7, HEAD), tensor(2, 4, 7, HEAD) + 1
    result = raised(passed(rest), x, y, tensor(1, 1, 7, 8), tensor(1, 1, 7, 8) + 1)
    assert result.only == Rope(8)
    (call,) = result.calls
    (joined,) = call.users
    assert joined.target is torch.ops.aten.cat.default
    stopped = [m.stopped for m in matches(result.before) if m.stopped is not None]
    assert len(stopped) == 1
    assert reason in stopped[0].reason


def matches(gm: torch.fx.GraphModule) -> list[Match]:
    """All matches of rope in a graph that still is canonical."""
    anchors = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    return [found for anchor in anchors if isinstance(found := RopePattern().match(anchor), Match)]


SOMETHING_ELSE = [
    lambda x, y: torch.cat((x, y), -2),
    lambda x, y: torch.cat((x, y), -1),
    lambda x, y: torch.cat((x, y, x), -1),
    lambda x, y: torch.cat((-x, y), -1) + 1,
    lambda x, y: torch.cat((x[..., 8:], y), -1) * 2,
    lambda x, y: torch.cat((x * y - y * y, x + y), -1),
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_another_join_is_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, tensor(2, 4, 7, HEAD), tensor(2, 4, 7, HEAD) + 1)
    assert result.words == []
    assert result.misses == ()
