"""Parts of one tensor that one kernel may not write together, and places that it may not write at all."""

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
    codes,
    f32,
    norm,
    random,
    reasons,
    run,
    u8,
)

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline

TOKENS, KV_HEADS, D, BLOCKS, BLOCK, PAGE, PAGES = 5, 2, 16, 7, 4, 64, 3
SLOTS = torch.tensor([27, 0, 9, 14, 3])
SCALE = torch.tensor(0.02)


def overlapping(cache: Tensor, k: Tensor, v: Tensor, w: Tensor, slots: Tensor) -> None:
    cache[0, ..., :10][slots // BLOCK, slots % BLOCK] = norm(k, w)[..., :10]
    cache[0, ..., 8:][slots // BLOCK, slots % BLOCK] = norm(v, w)[..., 8:]


def one_part_twice(cache: Tensor, k: Tensor, v: Tensor, w: Tensor, slots: Tensor) -> None:
    cache[0][slots // BLOCK, slots % BLOCK] = norm(k, w)
    cache[0][slots // BLOCK, slots % BLOCK] = norm(v, w)


def read_between(cache: Tensor, k: Tensor, v: Tensor, w: Tensor, slots: Tensor) -> Tensor:
    cache[0][slots // BLOCK, slots % BLOCK] = norm(k, w)
    before = cache.float().sum(0)
    cache[1][slots // BLOCK, slots % BLOCK] = norm(v, w)
    return before


@pytest.mark.parametrize(
    "chain",
    [overlapping, one_part_twice, read_between],
    ids=lambda chain: chain.__name__,
)
def test_writes_that_depend_on_their_order_are_two_launches(chain: Callable[..., object]) -> None:
    torch.manual_seed(0)
    rows = [random(TOKENS, KV_HEADS, D) for _ in range(2)]
    inputs = [random(2, BLOCKS, BLOCK, KV_HEADS, D), *rows, random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 2 and found.clones == []
    assert as_in_eager(found, chain, inputs)


def test_scales_over_codes_are_written_behind_them() -> None:
    """The rest of the chain stays one kernel."""

    def chain(cache: Tensor, x: Tensor, w: Tensor, slots: Tensor) -> None:
        at, (values, scales) = (slots // BLOCK, slots % BLOCK), by_group(norm(x, w))
        cache[..., :256].view(E4M3)[at] = values
        cache[..., 252:260].view(f32)[at] = scales

    inputs = [cache_of((BLOCKS, BLOCK, 264), u8), random(TOKENS, 256), random(256), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 2 and found.clones == []
    assert as_in_eager(found, chain, inputs)


def test_pages_that_are_read_between_two_writes() -> None:
    def chain(pages: Tensor, x: Tensor, w: Tensor, slots: Tensor) -> Tensor:
        rows = pages.view(PAGES, -1)
        values = codes(norm(x, w), SCALE)
        rows[:, : PAGE * 128].view(E4M3).view(-1, PAGE, 128)[slots // PAGE, slots % PAGE] = values
        before = pages.float().sum()
        rows[:, PAGE * 128 :].view(f32)[slots // PAGE, slots % PAGE] = by_group(x)[1][:, 0]
        return before

    slots = torch.tensor([PAGES * PAGE - 1, 0, 70, 5, 64])
    inputs = [cache_of((PAGES, PAGE, 132), u8), random(TOKENS, 128), random(128), slots]
    found = run(chain, inputs)
    assert found.kernels == 2 and found.clones == []
    assert as_in_eager(found, chain, inputs)


def test_a_part_is_not_written_by_a_kernel_that_reads_another() -> None:
    """Two parts have one storage: which of its bytes a kernel reads is not looked into."""

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        cache[0][slots // BLOCK, slots % BLOCK] = norm(k, w)
        cache[1][slots // BLOCK, slots % BLOCK] = norm(cache[0].view(-1, KV_HEADS, D)[:TOKENS], w)

    inputs = [random(2, BLOCKS, BLOCK, KV_HEADS, D), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 1
    assert "the kernel would read the cache that it writes" in reasons(found)
    assert as_in_eager(found, chain, inputs)


@pytest.mark.parametrize("updated", [False, True], ids=["old-rows", "new-rows"])
def test_a_copy_of_a_cache_is_a_read_of_it(*, updated: bool) -> None:
    """The kernel would read what the copy is of, not the copy: it must not write there as well."""

    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> Tensor:
        old = cache[:TOKENS].transpose(0, 1).contiguous().view(-1, D)
        cache[slots] = norm(k, w)
        new = cache[:TOKENS].transpose(0, 1).contiguous().view(-1, D)
        return norm(new if updated else old, w)

    slots = torch.tensor([4, 0, 2, 1, 3])
    inputs = [random(BLOCKS, KV_HEADS, D), random(TOKENS, KV_HEADS, D), random(D), slots]
    found = run(chain, inputs)
    assert found.kernels == 2
    assert as_in_eager(found, chain, inputs)


def test_beside_a_write_that_is_none() -> None:
    def chain(cache: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        cache[0][slots // BLOCK, slots % BLOCK] = norm(k, w)
        cache[1][slots // BLOCK, slots % BLOCK, slots % KV_HEADS] = k[:, 0]

    inputs = [random(2, BLOCKS, BLOCK, KV_HEADS, D), random(TOKENS, KV_HEADS, D), random(D), SLOTS.clone()]
    found = run(chain, inputs)
    assert found.kernels == 1
    assert as_in_eager(found, chain, inputs)


def test_values_between_multiples_of_their_size_are_refused_with_the_reason() -> None:
    def chain(cache: Tensor, x: Tensor, w: Tensor, slots: Tensor) -> None:
        cache[..., 2:18][slots // BLOCK, slots % BLOCK] = norm(x, w).view(u8)

    inputs = [cache_of((BLOCKS, BLOCK, 32), u8), torch.randn(TOKENS, 4), torch.randn(4), SLOTS.clone()]
    found = run(chain, inputs)
    assert "values of 4 bytes do not lie at multiples of their size in the cache" in reasons(found)
    assert as_in_eager(found, chain, inputs)


def test_slots_beyond_the_keys_do_not_reach_the_values() -> None:
    """Right behind the last key lies the first value. Torch raises there: the kernel is launched alone."""

    def chain(kv: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        kv[0].view(-1, KV_HEADS, D)[slots] = norm(k, w)

    last = BLOCKS * BLOCK
    kv, rows = random(2, BLOCKS, BLOCK, KV_HEADS, D), random(TOKENS, KV_HEADS, D)
    captured = capture(chain, (kv.clone(), rows, random(D), SLOTS.clone()))
    Pipeline.from_text(VERIFIED, strict=True).run(captured.graphs[0])
    slots = torch.tensor([last, 4, last + 3, -last - 1, 2])
    given = [slots if isinstance(x, Tensor) and x.dtype == torch.int64 else x for x in captured.inputs[0]]
    (mine,) = (x for x in given if isinstance(x, Tensor) and x.dim() == 5)
    before = mine.clone()
    with exact_casts():
        captured.graphs[0](*given)
    changed = (mine != before).view(2 * last, -1).any(-1).nonzero().flatten()
    assert changed.tolist() == [2, 4]


def test_padding_slots_write_nothing() -> None:
    def chain(kv: Tensor, k: Tensor, w: Tensor, slots: Tensor) -> None:
        how = {"dims": [0, 1], "place": 0, "negative": "nowhere"}
        kv.copy_(torch.ops.kernelweld.cache_write(kv[1], norm(k, w), slots, None, kv, **how))

    slots = torch.tensor([-1, 4, -1, 11, -1])
    inputs = [random(2, BLOCKS, BLOCK, KV_HEADS, D), random(TOKENS, KV_HEADS, D), random(D), slots]
    found = run(chain, inputs)
    assert found.kernels == 1 and found.clones == []
    assert as_in_eager(found, chain, inputs)
