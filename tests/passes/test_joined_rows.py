"""Rows joined of bytes of several dtypes are written piece by piece in one launch, or as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cache_runs import (
    E4M3,
    VERIFIED,
    Tensor,
    as_in_eager,
    by_group,
    cache_of,
    norm,
    random,
    reasons,
    rope,
    run,
    u8,
)
from torch import fx

from kernelweld.integrations.aot import capture
from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.pipeline import Pipeline
from kernelweld.passes.raise_words import unraise

TOKENS, BLOCKS, BLOCK = 5, 7, 4
SLOTS = torch.tensor([27, 0, 9, 14, 3])
JOINED = VERIFIED.replace("raise", "dialect,raise")

Join = Callable[[Tensor, Tensor], Tensor]


def latent(c: Tensor, k: Tensor) -> Tensor:
    """656 bytes: 512 codes, 4 scales, 64 values."""
    values, scales = by_group(c)
    return torch.cat([values.view(u8), scales.view(u8), k.view(u8)], -1)


def latent_of_tiles(c: Tensor, k: Tensor) -> Tensor:
    """The same, seen as bytes before they are rows."""
    values, scales = by_group(c)
    tiles, each = values.unflatten(-1, (4, 128)), scales.unsqueeze(-1)
    return torch.cat([tiles.view(u8).flatten(1), each.view(u8).flatten(1), k.view(u8)], -1)


def key(c: Tensor, k: Tensor) -> Tensor:
    """132 bytes: 128 codes and a scale."""
    values, scales = by_group(c[:, :128], powers=True)
    return torch.cat([values.view(u8), scales.view(u8)], -1)


def by_block(cache: Tensor, row: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = row


def by_slot(cache: Tensor, row: Tensor, slots: Tensor) -> None:
    cache.view(-1, cache.shape[-1])[slots] = row


def of_a_layer(cache: Tensor, row: Tensor, slots: Tensor) -> None:
    cache[1][slots // BLOCK, slots % BLOCK] = row


Write = Callable[[Tensor, Tensor, Tensor], None]


def chain(join: Join, write: Write) -> Callable[..., None]:
    def call(cache: Tensor, kv: Tensor, w: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        c, k = kv.split([512, 64], -1)
        write(cache, join(norm(c, w), rope(k[:, None], cos, sin)[:, 0]), slots)

    return call


def inputs(width: int, *lead: int) -> list[Tensor]:
    torch.manual_seed(0)
    cache = cache_of((*lead, BLOCKS, BLOCK, width), u8)
    return [cache, random(TOKENS, 576), random(512), random(TOKENS, 64), random(TOKENS, 64), SLOTS.clone()]


ROWS: dict[str, tuple[Join, Write, list[Tensor], int]] = {
    "656 by block": (latent, by_block, inputs(656), 3),
    "656 by slot": (latent, by_slot, inputs(656), 3),
    "656 of tiles": (latent_of_tiles, by_block, inputs(656), 3),
    "656 of a layer": (latent, of_a_layer, inputs(656, 2), 3),
    "132 by block": (key, by_block, inputs(132), 2),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_joined_row_is_one_launch_from_norm_to_cache(name: str) -> None:
    join, write, given, count = ROWS[name]
    found = run(chain(join, write), given, JOINED)
    plan = found.result.context.plan
    assert plan is not None
    kinds = [w.kind for weld in plan.welds for c in weld.chains for w in c.words]
    assert kinds.count("cache_write") == count
    assert found.kernels == 1 and found.clones == [], reasons(found)
    assert as_in_eager(found, chain(join, write), given)


def writes_of(gm: fx.GraphModule) -> list[str]:
    """What joins and writes the row; casts are not shared any more."""
    casts = "prims.convert_element_type.default"
    return sorted(str(node.target) for node in gm.graph.nodes if str(node.target) != casts)


@pytest.mark.parametrize("name", ROWS)
def test_it_is_put_back_as_one_write(name: str) -> None:
    join, write, given, _ = ROWS[name]
    gm = capture(chain(join, write), tuple(x.clone() for x in given)).graphs[0]
    Pipeline.from_text("canonicalize", strict=True).run(gm)
    before = writes_of(gm)
    Pipeline.from_text("dialect,raise", strict=True).run(gm)
    assert any(isinstance(word_of(node), CacheWrite) for node in gm.graph.nodes)
    unraise(gm)
    gm.graph.eliminate_dead_code()
    assert writes_of(gm) == before


def test_pieces_that_are_not_all_welded_are_one_write_again() -> None:
    """A matrix product stands before one piece: nothing of the row is a chain."""

    def product(cache: Tensor, c: Tensor, m: Tensor, slots: Tensor) -> None:
        by_block(cache, torch.cat([(c @ m).to(E4M3).view(u8), (c @ m[:, :1]).float().view(u8)], -1), slots)

    given = [cache_of((BLOCKS, BLOCK, 132), u8), random(TOKENS, 64), random(64, 128), SLOTS.clone()]
    found = run(product, given, JOINED.replace("{keep-all=true}", ""))
    assert found.kernels == 0 and as_in_eager(found, product, given)


def codes_alone(c: Tensor, k: Tensor) -> Tensor:
    return torch.cat([c.to(E4M3).view(u8), k.to(E4M3).view(u8)], -1)


def whole_bytes(c: Tensor, k: Tensor) -> Tensor:
    return torch.cat([c.view(u8), k.view(u8)], -1)


@pytest.mark.parametrize(("join", "width"), [(codes_alone, 576), (whole_bytes, 1152)])
def test_rows_of_one_dtype_stay_one_write(join: Join, width: int) -> None:
    gm = capture(chain(join, by_block), tuple(x.clone() for x in inputs(width))).graphs[0]
    Pipeline.from_text("canonicalize,dialect", strict=True).run(gm)
    assert not any(isinstance(word_of(node), CacheWrite) for node in gm.graph.nodes)


def test_rows_joined_of_whole_rows_stay_one_write() -> None:
    """Joined along another dimension, no byte of a row is a piece."""

    def stacked(cache: Tensor, a: Tensor, b: Tensor, slots: Tensor) -> None:
        by_block(cache, torch.cat([a.view(u8), b.view(u8)], 0), slots)

    rows = [random(TOKENS - 2, 8), torch.randn(2, 4)]
    gm = capture(stacked, (cache_of((BLOCKS, BLOCK, 16), u8), *rows, SLOTS.clone())).graphs[0]
    Pipeline.from_text("canonicalize,dialect", strict=True).run(gm)
    assert not any(isinstance(word_of(node), CacheWrite) for node in gm.graph.nodes)


def test_values_are_not_stored_where_memory_is_not_aligned_to_them() -> None:
    """A cache that begins one byte into its memory takes bytes, not float32 scales."""
    given = inputs(132)
    aligned = given[0]
    memory = torch.zeros(aligned.numel() + 1, dtype=u8)
    given[0] = memory[1:].view(aligned.shape)
    gm = capture(chain(key, by_block), tuple(given)).graphs[0]
    result = Pipeline.from_text(f"canonicalize,{JOINED.partition(',')[2]}", strict=True).run(gm)
    assert result.context.plan is not None
    kinds = [w.kind for weld in result.context.plan.welds for c in weld.chains for w in c.words]
    assert "cache_write" not in kinds
