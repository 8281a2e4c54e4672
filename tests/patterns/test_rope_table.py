"""Rotary tables in every spelling become one word of two results; what only looks like one says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import RopeTable

H = 8
BF16 = torch.bfloat16
POSITIONS = torch.arange(14).reshape(2, 7) + 3
INV_FREQ = 1.0 / 10000 ** (torch.arange(H) / H)


def halves(f: Tensor) -> Tensor:
    return torch.cat((f, f), -1)


def halves_expanded(f: Tensor) -> Tensor:
    """What Inductor makes of a cat of one value twice."""
    return f.unsqueeze(-2).expand(*f.shape[:-1], 2, H).clone().reshape(*f.shape[:-1], 2 * H)


def pairs(f: Tensor) -> Tensor:
    return f.repeat_interleave(2, -1)


def same(f: Tensor) -> Tensor:
    return f


def table(
    spread: Callable[[Tensor], Tensor], dtype: torch.dtype, scaling: float, *, late: bool = False
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A rotary table as model code writes it; ``late`` spreads after cos and sin are taken."""

    def graph(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        f = positions[..., None].float() * inv_freq
        if late:
            return tuple(spread(t * scaling).to(dtype) for t in (f.cos(), f.sin()))  # type: ignore[return-value]
        f = spread(f)
        return (f.cos() * scaling).to(dtype), (f.sin() * scaling).to(dtype)

    return graph


LAYOUTS = [(halves, "halves"), (halves_expanded, "halves"), (pairs, "pairs"), (same, "half")]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("scaling", [1.0, 1.3466])
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize(("spread", "layout"), LAYOUTS, ids=lambda v: getattr(v, "__name__", ""))
def test_from_frequencies(
    raised: Callable[..., Any],
    spread: Callable[[Tensor], Tensor],
    layout: str,
    dtype: torch.dtype,
    scaling: float,
    late: bool,
) -> None:
    result = raised(table(spread, dtype, scaling, late=late), POSITIONS, INV_FREQ)
    assert result.only == RopeTable(layout=layout, scaling=scaling, dtype=dtype)
    assert result.operands == ["positions_1", "inv_freq_1"]
    assert result.misses == ()


def test_in_float16(raised: Callable[..., Any]) -> None:
    result = raised(table(halves, torch.float16, 1.0), POSITIONS, INV_FREQ)
    assert result.only == RopeTable(dtype=torch.float16)


POSITION_SPELLINGS = [
    lambda p, f: p[..., None].float() * f,
    lambda p, f: p.float().unsqueeze(-1) * f[None, None],
    lambda p, f: f * p.to(torch.float32)[:, :, None],
    lambda p, f: p.int()[..., None].float() * f.expand(2, 7, H),
    lambda p, f: (f[None, :, None].expand(2, -1, 1) @ p[:, None].float()).transpose(1, 2),
    lambda p, f: (f[None, :, None] * p[:, None].float()).mT,
]


@pytest.mark.parametrize("angle", POSITION_SPELLINGS)
def test_positions(raised: Callable[..., Any], angle: Callable[..., Tensor]) -> None:
    result = raised(lambda p, f: (halves(angle(p, f)).cos(), halves(angle(p, f)).sin()), POSITIONS, INV_FREQ)
    assert result.only == RopeTable()


def test_turned_products_of_several_batch_dimensions(raised: Callable[..., Any]) -> None:
    """Three positions a token, as a model with mrope multiplies them; the batch of a product is one."""

    def graph(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        angle = (f[None, None, :, None].expand(3, 2, -1, 1) @ p[:, :, None].float()).transpose(2, 3)
        return halves(angle).cos(), halves(angle).sin()

    assert raised(graph, torch.stack([POSITIONS, POSITIONS + 1, POSITIONS]), INV_FREQ).only == RopeTable()


@pytest.mark.parametrize("dtype", [torch.int64, BF16])
def test_positions_rounded_before_are_not_looked_through(
    raised: Callable[..., Any], dtype: torch.dtype
) -> None:
    def graph(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        angle = p.to(dtype)[..., None].float() * f
        return halves(angle).cos(), halves(angle).sin()

    result = raised(graph, POSITIONS * 1.5, INV_FREQ)
    assert result.only == RopeTable()
    assert result.operands != ["p_1", "f_1"]


@pytest.mark.parametrize("rows", [1, 7])
def test_a_turned_product_without_a_batch(raised: Callable[..., Any], rows: int) -> None:
    """What Inductor makes of a batch of one on a GPU."""

    def graph(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        column, row = f[None, :, None].float().expand(1, -1, 1), p[:, None].float()
        angle = (column.squeeze(0) @ row.squeeze(0)).unsqueeze(0).transpose(1, 2)
        return halves(angle).cos(), halves(angle).sin()

    result = raised(graph, POSITIONS[:1, :rows], INV_FREQ)
    assert result.only == RopeTable()
    assert result.operands == ["p_1", "f_1"]


@pytest.mark.parametrize("past", [0, 5])
def test_one_position(raised: Callable[..., Any], past: int) -> None:
    """Decode: one position, made in the graph."""

    def graph(inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        positions = (torch.arange(1) + past).unsqueeze(0)
        return table(halves, BF16, 1.0)(positions, inv_freq)

    assert raised(graph, INV_FREQ).only == RopeTable(dtype=BF16)


@pytest.mark.parametrize("sections", [(3, 3, 2), (4, 2, 2), (2, 3, 3)])
def test_mrope_interleaved(raised: Callable[..., Any], sections: tuple[int, int, int]) -> None:
    """Qwen3.5: elements 1, 4, 7 … are the height's, elements 2, 5, 8 … the width's.

    Written as functionalisation leaves it, a chain of ``select_scatter`` and ``slice_scatter``.
    """

    def chosen(t: Tensor) -> Tensor:
        for row in (1, 2):
            stop = 3 * sections[row]
            first = torch.slice_scatter(t[0], t[row, ..., row:stop:3], -1, row, stop, 3)
            t = torch.select_scatter(t, first, 0, 0)
        return halves(t[0])

    def graph(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        f = positions[..., None].float() * inv_freq
        return chosen(f.cos()).to(BF16), chosen(f.sin()).to(BF16)

    positions = torch.stack((POSITIONS, POSITIONS * 2, POSITIONS * 3))
    result = raised(graph, positions, INV_FREQ)
    word = result.only
    assert isinstance(word, RopeTable)
    assert word == RopeTable(sections=word.sections, section_order="interleaved", dtype=BF16)
    wanted = [r if r and i < 3 * sections[r] else 0 for i, r in enumerate([0, 1, 2] * 3)][:H]
    assert word.rows(H) == wanted


@pytest.mark.parametrize("spread_first", [True, False])
@pytest.mark.parametrize("sliced_first", [True, False])
def test_mrope_plain(raised: Callable[..., Any], spread_first: bool, sliced_first: bool) -> None:
    """Qwen2-VL: consecutive runs of time, height and width, of the whole table or of its halves."""
    sections = [4, 2, 2]

    def chosen(t: Tensor) -> Tensor:
        runs = sections * 2 if spread_first else sections
        if sliced_first:
            return torch.cat([part[i % 3] for i, part in enumerate(t.split(runs, -1))], -1)
        starts = [sum(runs[:i]) for i in range(len(runs))]
        return torch.cat(
            [t[i % 3][..., s : s + n] for i, (s, n) in enumerate(zip(starts, runs, strict=True))], -1
        )

    def graph(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        f = positions[..., None].float() * inv_freq
        f = halves(f) if spread_first else f
        cos, sin = chosen(f.cos()), chosen(f.sin())
        return (cos, sin) if spread_first else (halves(cos), halves(sin))

    positions = torch.stack((POSITIONS, POSITIONS * 2, POSITIONS * 3))
    result = raised(graph, positions, INV_FREQ)
    assert result.only == RopeTable(sections=tuple(sections), section_order="plain")


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


LOOKUPS = [
    lambda cache, p: cache[p],
    lambda cache, p: torch.nn.functional.embedding(p, cache),
    lambda cache, p: cache.index_select(0, p),
]


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_from_a_cache(raised: Callable[..., Any], lookup: Any, dtype: torch.dtype) -> None:
    """vLLM: rows of cosines and sines looked up by position, read by a rope."""

    def graph(x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
        cos, sin = lookup(cache, positions).chunk(2, -1)
        return rope(x, cos.unsqueeze(-2), sin.unsqueeze(-2))

    x, cache = torch.randn(7, 4, 2 * H).to(dtype), torch.randn(32, 2 * H).to(dtype)
    result = raised(graph, x, cache, torch.arange(7) * 3)
    assert [word.kind for word in result.words] == ["rope_table", "rope"]
    assert result.words[0] == RopeTable(source="cache", layout="half", dtype=dtype)


def test_sines_first_in_the_cache(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
        sin, cos = cache[positions].chunk(2, -1)
        return rope(x, cos.unsqueeze(-2), sin.unsqueeze(-2))

    result = raised(graph, torch.randn(7, 4, 2 * H), torch.randn(32, 2 * H), torch.arange(7))
    assert result.of("rope_table") == []
    assert result.reason("rope_table") == "the first half of %index is read as sin and the second as cos"


def test_a_cache_read_by_others_too(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, cache: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cache[positions].chunk(2, -1)
        return rope(x, cos.unsqueeze(-2), sin.unsqueeze(-2)), cos.sum()

    result = raised(graph, torch.randn(7, 4, 2 * H), torch.randn(32, 2 * H), torch.arange(7))
    assert result.of("rope_table") == []
    assert "is read as cos/something else and the second as sin" in result.reason("rope_table")


EMBEDDINGS = [
    lambda e, p: e[p].chunk(2, -1)[0] * 2,
    lambda e, p: torch.mul(*e[p].chunk(2, -1)),
    lambda e, p: e[p] + 1,
]


@pytest.mark.parametrize("graph", EMBEDDINGS)
def test_an_embedding_is_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, torch.randn(32, 16), torch.arange(7))
    assert result.words == []
    assert result.misses == ()


def scaled_differently(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    angle = p[..., None].float() * f
    return angle.cos() * 1.5, angle.sin()


def rounded_differently(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    angle = p[..., None].float() * f
    return angle.cos().bfloat16(), angle.sin()


def spread_differently(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    angle = p[..., None].float() * f
    return halves(angle.cos()), pairs(angle.sin())


def angle_in_bfloat16(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    angle = p[..., None].bfloat16() * f.bfloat16()
    return angle.cos(), angle.sin()


def angle_used_outside(p: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    angle = p[..., None].float() * f
    return angle.cos(), angle.sin(), angle


NEGATIVES = [
    (scaled_differently, "cosines and sines are treated differently after %cos and %sin"),
    (rounded_differently, "cosines and sines are treated differently after %cos and %sin"),
    (spread_differently, "cosines and sines are treated differently after %cos and %sin"),
    (angle_in_bfloat16, "part of the angle, is bfloat16"),
    (angle_used_outside, "the inner value %mul is also used by %output"),
]


@pytest.mark.parametrize(("graph", "reason"), NEGATIVES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_a_table(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    result = raised(graph, POSITIONS, INV_FREQ)
    assert result.words == []
    assert reason in result.reason("rope_table")


def test_mrope_of_the_wrong_row(raised: Callable[..., Any]) -> None:
    """Every third element from 1 on comes from the width's row instead of the height's."""

    def chosen(t: Tensor) -> Tensor:
        return torch.select_scatter(t, torch.slice_scatter(t[0], t[2, ..., 1:8:3], -1, 1, 8, 3), 0, 0)[0]

    def graph(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        f = positions[..., None].float() * inv_freq
        return chosen(f.cos()), chosen(f.sin())

    result = raised(graph, torch.stack((POSITIONS,) * 3), INV_FREQ)
    assert result.words == []
    assert "does not write every third element from the row of that number" in result.reason("rope_table")


def test_mrope_runs_out_of_turn(raised: Callable[..., Any]) -> None:
    def chosen(t: Tensor) -> Tensor:
        parts = t.split([4, 2, 2], -1)
        return torch.cat((parts[0][0], parts[1][2], parts[2][1]), -1)

    def graph(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        f = positions[..., None].float() * inv_freq
        return chosen(f.cos()), chosen(f.sin())

    result = raised(graph, torch.stack((POSITIONS,) * 3), INV_FREQ)
    assert result.words == []
    assert "does not join runs of the three rows in turn" in result.reason("rope_table")


SOMETHING_ELSE = [
    lambda p, f: torch.cos(f),
    lambda p, f: (torch.cos(p[..., None].float() * f), p),
    lambda p, f: (f.cos(), f.sin()),
    lambda p, f: (
        (f[None, :, None] * p[:, None].float()).cos(),
        (f[None, :, None] * p[:, None].float()).sin(),
    ),
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_other_cosines_are_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, POSITIONS, INV_FREQ)
    assert result.words == []
    assert result.misses == ()


def test_a_batch_of_three_is_no_mrope(raised: Callable[..., Any]) -> None:
    """Three rows of positions, the table read by two layers in float32."""

    def graph(positions: Tensor, inv_freq: Tensor) -> list[Tensor]:
        f = positions[..., None].float() * inv_freq
        return [t.unsqueeze(1) * scale for t in (f.cos(), f.sin()) for scale in (2.0, 3.0)]

    assert raised(graph, torch.arange(21).reshape(3, 7), INV_FREQ).only == RopeTable(layout="half")
