"""Chains that end in a cache: one launch with the queries, every byte outside the slots as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from cache_runs import (
    E4M3,
    VERIFIED,
    Tensor,
    as_in_eager,
    bf16,
    codes,
    norm,
    random,
    reasons,
    rope,
    run,
    same,
)

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline

TOKENS, HEADS, KV_HEADS, D, BLOCKS, BLOCK = 5, 6, 2, 16, 7, 4
SLOTS = torch.tensor([27, 0, 9, 14, 3])


def by_slot(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache.view(-1, KV_HEADS, D)[slots] = rows


def by_block(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = rows


def heads_first(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, :, slots % BLOCK] = rows


def static(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache.index_copy_(2, slots, rows.transpose(0, 1)[None])


@dataclass(frozen=True)
class Layout:
    """How a cache lies in memory and is written."""

    shape: tuple[int, ...]
    write: Callable[[Tensor, Tensor, Tensor], None]


LAYOUTS = {
    "slots": Layout((BLOCKS, BLOCK, KV_HEADS, D), by_slot),
    "NHD": Layout((BLOCKS, BLOCK, KV_HEADS, D), by_block),
    "HND": Layout((BLOCKS, KV_HEADS, BLOCK, D), heads_first),
    "static": Layout((1, KV_HEADS, BLOCKS * BLOCK, D), static),
}


def attention_inputs(layout: Layout, fp8: bool) -> list[Tensor]:
    torch.manual_seed(0)
    caches = [random(*layout.shape).to(E4M3 if fp8 else bf16) for _ in range(2)]
    qkv = random(TOKENS, (HEADS + 2 * KV_HEADS) * D)
    return [*caches, qkv, random(D), random(D), random(TOKENS, D), random(TOKENS, D), SLOTS.clone()]


def attention(layout: Layout, fp8: bool) -> Callable[..., Tensor]:
    scale = torch.tensor(0.02)

    def chain(
        k_cache: Tensor,
        v_cache: Tensor,
        qkv: Tensor,
        wq: Tensor,
        wk: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
    ) -> Tensor:
        q, k, v = (p.unflatten(-1, (-1, D)) for p in qkv.split([HEADS * D, KV_HEADS * D, KV_HEADS * D], -1))
        q, k = rope(norm(q, wq), cos, sin), rope(norm(k, wk), cos, sin)
        layout.write(k_cache, codes(k, scale) if fp8 else k, slots)
        layout.write(v_cache, codes(v, scale) if fp8 else v, slots)
        return q

    return chain


@pytest.mark.parametrize(
    ("name", "fp8"), [*((n, False) for n in LAYOUTS), ("slots", True), ("NHD", True), ("HND", True)]
)
def test_queries_keys_and_values_are_one_launch(name: str, fp8: bool) -> None:
    layout = LAYOUTS[name]
    inputs = attention_inputs(layout, fp8)
    found = run(attention(layout, fp8), inputs)
    assert found.kernels == 1
    assert found.clones == []
    assert as_in_eager(found, attention(layout, fp8), inputs, caches=2)


@pytest.mark.parametrize("parts", [(48, 16)])
def test_a_latent_of_a_norm_and_a_rotated_part_is_written_whole(parts: tuple[int, int]) -> None:
    def chain(cache: Tensor, kv: Tensor, w: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        latent, k = kv.split(list(parts), -1)
        row = torch.cat((norm(latent, w), rope(k[:, None], cos, sin)[:, 0]), -1)
        cache.view(-1, sum(parts))[slots] = row

    inputs = [
        random(BLOCKS, BLOCK, sum(parts)),
        random(TOKENS, sum(parts)),
        random(parts[0]),
        random(TOKENS, parts[1]),
        random(TOKENS, parts[1]),
        SLOTS.clone(),
    ]
    found = run(chain, inputs)
    assert found.kernels == 1
    assert as_in_eager(found, chain, inputs)


@pytest.mark.parametrize("part", ["gapped", "behind an offset", "both"])
def test_a_cache_that_is_a_part_of_another_tensor(part: str) -> None:
    """``verify-welds`` draws caches of the same strides."""
    whole = random(BLOCKS + 3, BLOCK, KV_HEADS, 2 * D)
    parts = {
        "gapped": whole[:BLOCKS, ..., :D],
        "behind an offset": whole.view(-1, BLOCK, KV_HEADS, D)[3 : 3 + BLOCKS],
        "both": whole[3:, ..., D:],
    }

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        by_block(cache, norm(k, w), slots)

    rest = [random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    gm = capture(chain, (parts[part], *rest)).graphs[0]
    result = Pipeline.from_text(VERIFIED, strict=True).run(gm)
    assert result.context.plan is not None and result.context.near_misses == []
    assert [weld.name for weld in result.context.plan.welds] == ["rms_norm_cache_write"]


def test_slots_beyond_the_cache_write_nothing() -> None:
    """The word itself raises there, as torch does: the kernel is launched alone."""

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        by_slot(cache, norm(k, w), slots)

    last = BLOCKS * BLOCK
    slots = torch.tensor([last, 4, last + 10**9, -last - 1, 2])
    caches = [random(*LAYOUTS["slots"].shape)]
    k, w = random(TOKENS, KV_HEADS, D), random(D)
    captured = capture(chain, (caches[0], k, w, SLOTS.clone()))
    Pipeline.from_text(VERIFIED, strict=True).run(captured.graphs[0])
    given = [slots if isinstance(x, Tensor) and same(x, SLOTS) else x for x in captured.inputs[0]]
    (mine,) = (x for x in given if isinstance(x, Tensor) and x.dim() == 4)
    mine.copy_(caches[0])
    before = mine.clone().view(-1, KV_HEADS, D)
    with exact_casts():
        captured.graphs[0](*given)
    changed = (mine.view(-1, KV_HEADS, D) != before).flatten(1).any(-1).nonzero().flatten()
    assert changed.tolist() == [2, 4]


def test_one_kernel_does_not_write_a_cache_twice() -> None:
    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
        write, how = torch.ops.kernelweld.cache_write, {"dims": [0, 1], "place": 0, "negative": "end"}
        other = write(cache, norm(k * 2, w), slots, None, None, **how)
        cache.copy_(write(cache, norm(k, w), slots, None, None, **how))
        return other

    inputs = [random(*LAYOUTS["NHD"].shape), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 2
    assert as_in_eager(found, chain, inputs)


@pytest.mark.parametrize("dims", [(0, 1), (0, 2)])
def test_padding_slots_write_nothing(dims: tuple[int, int]) -> None:
    shape = LAYOUTS["NHD" if dims == (0, 1) else "HND"].shape

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        rows = norm(k, w)
        write = torch.ops.kernelweld.cache_write
        cache.copy_(write(cache, rows, slots, None, None, dims=list(dims), place=0, negative="nowhere"))

    slots = torch.tensor([-1, 4, -1, 11, -1])
    inputs = [random(*shape), random(TOKENS, KV_HEADS, D), random(D), slots]
    found = run(chain, inputs)
    assert found.kernels == 1
    assert as_in_eager(found, chain, inputs)


def test_a_negative_slot_counts_from_the_end_as_in_torch() -> None:
    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        by_block(cache, norm(k, w), slots)

    inputs = [
        random(*LAYOUTS["NHD"].shape),
        random(TOKENS, KV_HEADS, D),
        random(D),
        torch.tensor([-1, -28, 2, -5, 9]),
    ]
    found = run(chain, inputs)
    assert found.kernels == 1 and as_in_eager(found, chain, inputs)


def test_values_join_keys_whose_tables_are_computed_first() -> None:
    """The keys wait for launches that the values do not wait for; the values can wait with them."""
    layout = LAYOUTS["NHD"]

    def chain(
        k_cache: Tensor, v_cache: Tensor, qkv: Tensor, ws: Tensor, angles: Tensor, slots: Tensor
    ) -> Tensor:
        tables = (angles @ angles.T @ angles).to(bf16)
        return attention(layout, False)(
            k_cache, v_cache, qkv, ws[0], ws[1], tables.cos(), tables.sin(), slots
        )

    caches = [random(*layout.shape) for _ in range(2)]
    qkv, angles = random(TOKENS, (HEADS + 2 * KV_HEADS) * D), torch.randn(TOKENS, D)
    found = run(chain, [*caches, qkv, random(2, D), angles, SLOTS.clone()])
    assert found.kernels == 1


def of_a_part(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    by_slot(cache, norm(k[1:3], w), slots[1:3])


def of_no_token(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    by_slot(cache, norm(k[:0], w), slots[:0])


def of_int32_slots(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    by_block(cache, norm(k, w), slots.int())


def of_flat_rows(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    cache.view(-1, KV_HEADS * D)[slots] = norm(k, w).flatten(1)


@pytest.mark.parametrize(
    "chain", [of_a_part, of_no_token, of_int32_slots, of_flat_rows], ids=lambda chain: chain.__name__
)
def test_parts_casts_and_views_of_slots(chain: Callable[..., object]) -> None:
    inputs = [random(*LAYOUTS["NHD"].shape), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert as_in_eager(found, chain, inputs)
    assert found.kernels == 1, reasons(found)


def test_a_kernel_does_not_write_the_cache_it_reads() -> None:
    def chain(cache: Tensor, w: Tensor, slots: Tensor) -> None:
        rows = cache.view(-1, KV_HEADS, D)[:TOKENS]
        by_slot(cache, norm(rows, w), slots)

    found = run(chain, [random(*LAYOUTS["NHD"].shape), random(D), SLOTS.clone()])
    assert found.kernels == 0
    assert "the kernel would read the cache that it writes" in reasons(found)


def beside_a_norm_of_the_cache(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
    by_slot(cache, k, slots)
    return norm(cache, w)


def beside_a_norm_of_a_copy(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
    by_slot(cache, k, slots)
    return norm(cache.transpose(1, 2).contiguous(), w)


def of_repeated_heads(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    by_slot(cache, norm(k[:, :1], w).expand(TOKENS, KV_HEADS, D), slots)


def of_interleaved_heads(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
    by_slot(cache, norm(k[:, :1], w).repeat_interleave(KV_HEADS, 1), slots)


@pytest.mark.parametrize(
    "chain",
    [beside_a_norm_of_the_cache, beside_a_norm_of_a_copy, of_repeated_heads, of_interleaved_heads],
    ids=lambda chain: chain.__name__,
)
def test_a_write_is_no_part_of_a_launch_that_it_waits_for(chain: Callable[..., object]) -> None:
    inputs = [random(*LAYOUTS["NHD"].shape), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 2
    assert as_in_eager(found, chain, inputs)


def test_places_along_the_tile_are_refused_with_the_reason() -> None:
    def chain(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
        cache[:, :, slots] = rows

    found = run(chain, [random(3, 4, 16), random(3, 4, TOKENS), torch.tensor([15, 0, 9, 14, 3])])
    assert found.kernels == 0
    assert "vary along the dimension that a tile holds" in reasons(found)


def test_a_chain_ends_where_a_cache_is_written() -> None:
    """As many slots as rows, so that the written cache would fit the chain."""

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
        cache[slots] = norm(k, w)
        return norm(cache, w)

    inputs = [random(TOKENS, KV_HEADS, D), random(TOKENS, KV_HEADS, D), random(D), torch.randperm(TOKENS)]
    found = run(chain, inputs)
    assert found.kernels == 2
    assert as_in_eager(found, chain, inputs)


def test_what_reads_the_written_cache_runs_behind_the_kernel() -> None:
    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
        by_slot(cache, norm(k, w), slots)
        return norm(cache.view(-1, KV_HEADS, D), w)

    inputs = [random(*LAYOUTS["NHD"].shape), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 2
    assert as_in_eager(found, chain, inputs)


def test_a_cache_that_is_read_behind_the_kernel_is_not_copied() -> None:
    """Inductor leaves out the copy of a cache only if the kernel's result shares no memory with the input."""

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor, q: Tensor) -> Tensor:
        by_slot(cache, norm(k, w), slots)
        return q @ cache.view(-1, KV_HEADS * D).T

    inputs = [random(*LAYOUTS["NHD"].shape), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, [*inputs, random(TOKENS, KV_HEADS * D)])
    assert found.kernels == 1 and found.clones == []
