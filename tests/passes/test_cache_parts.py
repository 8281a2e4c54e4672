"""Caches that share a tensor, and rows of several dtypes: one launch, every other byte as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from cache_runs import (
    E4M3,
    VERIFIED,
    Tensor,
    as_in_eager,
    bf16,
    by_group,
    cache_of,
    codes,
    f32,
    norm,
    random,
    reasons,
    rope,
    run,
    u8,
)
from torch.nn import functional as F

from kernelweld.codegen.crosscompile import compile_for
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline

TOKENS, HEADS, KV_HEADS, D, BLOCKS, BLOCK = 5, 6, 2, 16, 7, 4
SLOTS = torch.tensor([27, 0, 9, 14, 3])

Write = Callable[..., None]


def unbound(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    for cache, rows in zip(kv.unbind(0), (k, v), strict=True):
        cache[slots // BLOCK, slots % BLOCK] = rows


def by_slot(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    kv[0].view(-1, KV_HEADS, D)[slots] = k
    kv[1].view(-1, KV_HEADS, D)[slots] = v


def unbound_by_block(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    for cache, rows in zip(kv.unbind(1), (k, v), strict=True):
        cache[slots // BLOCK, slots % BLOCK] = rows


def heads_first(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    kv[slots // BLOCK, 0, :, slots % BLOCK] = k
    kv[slots // BLOCK, 1, :, slots % BLOCK] = v


def side_by_side(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Keys and values of a head in one row."""
    kv[..., :D][slots // BLOCK, slots % BLOCK] = k
    kv[..., D:][slots // BLOCK, slots % BLOCK] = v


SHARED: dict[str, tuple[Write, tuple[int, ...]]] = {
    "first keys": (unbound, (2, BLOCKS, BLOCK, KV_HEADS, D)),
    "first keys, by slot": (by_slot, (2, BLOCKS, BLOCK, KV_HEADS, D)),
    "by block": (unbound_by_block, (BLOCKS, 2, BLOCK, KV_HEADS, D)),
    "by block, heads first": (heads_first, (BLOCKS, 2, KV_HEADS, BLOCK, D)),
    "side by side": (side_by_side, (BLOCKS, BLOCK, KV_HEADS, 2 * D)),
}


def attention(write: Write, dtype: torch.dtype) -> Callable[..., object]:
    """Reads what it wrote, as attention does."""
    scale = torch.tensor(0.02)

    def stored(x: Tensor) -> Tensor:
        return x if dtype == bf16 else codes(x, scale).view(dtype)

    def chain(kv: Tensor, qkv: Tensor, ws: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> object:
        q, k, v = (p.unflatten(-1, (-1, D)) for p in qkv.split([HEADS * D, KV_HEADS * D, KV_HEADS * D], -1))
        q, k = rope(norm(q, ws[0]), cos, sin), rope(norm(k, ws[1]), cos, sin)
        write(kv, stored(k), stored(v), slots)
        return q, kv.view(-1, D)[::3].float() @ q.float().flatten(0, 1).T

    return chain


def attention_inputs(cache: Tensor) -> list[Tensor]:
    qkv = random(TOKENS, (HEADS + 2 * KV_HEADS) * D)
    return [cache, qkv, random(2, D), random(TOKENS, D), random(TOKENS, D), SLOTS.clone()]


@pytest.mark.parametrize("dtype", [bf16, E4M3, u8], ids=str)
@pytest.mark.parametrize("name", SHARED)
def test_keys_and_values_of_one_tensor_are_one_launch_with_the_queries(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    write, shape = SHARED[name]
    chain, inputs = attention(write, dtype), attention_inputs(cache_of(shape, dtype))
    found = run(chain, inputs)
    assert found.kernels == 1 and found.clones == [], reasons(found)
    assert as_in_eager(found, chain, inputs)


@pytest.mark.parametrize("name", ["first keys", "by block"])
def test_a_part_of_a_tensor_with_gaps(name: str) -> None:
    """``verify-welds`` draws caches of the same strides."""
    write, shape = SHARED[name]
    whole = random(2, *shape[:-1], D + 5)[1, ..., 3 : 3 + D]

    def chain(kv: Tensor, k: Tensor, v: Tensor, w: Tensor, slots: Tensor) -> None:
        write(kv, norm(k, w), norm(v, w), slots)

    rows = [random(TOKENS, KV_HEADS, D) for _ in range(2)]
    gm = capture(chain, (whole, *rows, random(D), SLOTS.clone())).graphs[0]
    result = Pipeline.from_text(VERIFIED, strict=True).run(gm)
    assert result.context.plan is not None and result.context.near_misses == []
    assert [weld.name for weld in result.context.plan.welds] == ["rms_norm_cache_write"]


@pytest.mark.parametrize("name", ["first keys", "by block"])
def test_tokens_and_blocks_of_any_number(name: str) -> None:
    torch.manual_seed(0)
    write, shape = SHARED[name]
    chain, inputs = attention(write, bf16), attention_inputs(random(*shape))
    captured = capture(chain, tuple(x.clone() for x in inputs), dynamic=True)
    (gm,) = captured.graphs
    result = Pipeline.from_text(VERIFIED, strict=True).run(gm)
    assert result.context.plan is not None and len(result.context.plan.welds) == 1
    given = [x.clone() if isinstance(x, Tensor) else x for x in captured.inputs[0]]
    with exact_casts():
        gm(*given)
    expected = [x.clone() for x in inputs]
    chain(*expected)
    caches = [x for x in given if isinstance(x, Tensor) and x.shape == expected[0].shape]
    assert [torch.equal(cache, expected[0]) for cache in caches] == [True]


@dataclass(frozen=True)
class Row:
    """A cache of rows ``[512 of a norm, 64 rotated]`` and how they are written to it."""

    write: Write
    width: int
    dtype: torch.dtype


SCALE = torch.tensor(0.02)


def concatenated(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = torch.cat([c, k], -1)


def codes_concatenated(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = torch.cat([codes(c, SCALE), codes(k, SCALE)], -1)


def codes_of_a_row(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = codes(torch.cat([c, k], -1), SCALE).view(cache.dtype)


def in_slices(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    cache[..., :512][slots // BLOCK, slots % BLOCK] = c
    cache[slots // BLOCK, slots % BLOCK, 512:] = k


def codes_in_slices(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    in_slices(cache, codes(c, SCALE), codes(k, SCALE), slots)


def slices_as_dtypes(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    at, (values, scales) = (slots // BLOCK, slots % BLOCK), by_group(c)
    cache[..., :512].view(E4M3)[at] = values
    cache[..., 512:528].view(f32)[at] = scales
    cache[..., 528:].view(bf16)[at] = k


def dtypes_in_slices(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    at, (values, scales) = (slots // BLOCK, slots % BLOCK), by_group(c)
    cache.view(E4M3)[..., :512][at] = values
    cache.view(f32)[..., 128:132][at] = scales
    cache.view(bf16)[..., 264:][at] = k


def bytes_in_slices(cache: Tensor, c: Tensor, k: Tensor, slots: Tensor) -> None:
    at, (values, scales) = (slots // BLOCK, slots % BLOCK), by_group(c)
    cache[..., :512][at] = values.view(u8)
    cache[..., 512:528][at] = scales.view(u8)
    cache[..., 528:][at] = k.view(u8)


LATENTS = {
    "576 of bf16": Row(concatenated, 576, bf16),
    "576 of bf16 in slices": Row(in_slices, 576, bf16),
    "576 codes": Row(codes_concatenated, 576, E4M3),
    "576 codes of a row": Row(codes_of_a_row, 576, E4M3),
    "576 codes as bytes": Row(codes_of_a_row, 576, u8),
    "576 codes in slices": Row(codes_in_slices, 576, E4M3),
    "656 bytes": Row(slices_as_dtypes, 656, u8),
    "656 bytes as dtypes": Row(dtypes_in_slices, 656, u8),
    "656 bytes of values": Row(bytes_in_slices, 656, u8),
}


def latent(write: Write) -> Callable[..., None]:
    def chain(cache: Tensor, kv: Tensor, w: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> None:
        c, k = kv.split([512, 64], -1)
        write(cache, norm(c, w), rope(k[:, None], cos, sin)[:, 0], slots)

    return chain


def latent_inputs(row: Row) -> list[Tensor]:
    torch.manual_seed(0)
    cache = cache_of((BLOCKS, BLOCK, row.width), row.dtype)
    return [cache, random(TOKENS, 576), random(512), random(TOKENS, 64), random(TOKENS, 64), SLOTS.clone()]


def kernel_of(row: Row) -> Kernel:
    """The kernel, without the places that its steps come from."""
    gm = capture(latent(row.write), tuple(latent_inputs(row))).graphs[0]
    plan = Pipeline.from_text("canonicalize,raise,plan{keep-all=true}", strict=True).run(gm).context.plan
    assert plan is not None
    (weld,) = plan.welds
    program = program_of(weld)[0]
    return emit(replace(program, tasks=tuple(replace(task, sources=()) for task in program.tasks)))


@pytest.mark.parametrize("name", LATENTS)
def test_a_latent_is_normed_rotated_quantized_and_written_in_one_launch(name: str) -> None:
    row = LATENTS[name]
    chain, inputs = latent(row.write), latent_inputs(row)
    found = run(chain, inputs)
    assert found.kernels == 1 and found.clones == [], reasons(found)
    assert "cache_write" not in reasons(found)
    assert found.result.context.plan is not None and found.result.context.plan.near_misses == ()
    assert as_in_eager(found, chain, inputs)


def test_the_kernel_of_656_bytes(golden: Callable[[str], None]) -> None:
    golden(kernel_of(LATENTS["656 bytes"]).source)


@pytest.mark.parametrize("name", ["576 codes as bytes", "656 bytes"])
def test_stores_of_several_dtypes_compile_for_gpus_without_spills(name: str) -> None:
    for compiled in compile_for(kernel_of(LATENTS[name]), ("sm_90", "sm_100")):
        assert compiled.stack_bytes == 0, compiled


PAGE, PAGES = 64, 3


def key_pages(flat: bool) -> Callable[..., None]:
    """Pages of 64 index keys: first the codes of all of them, then their scales."""

    def chain(
        pages: Tensor, x: Tensor, w: Tensor, b: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> None:
        k = F.layer_norm(x.float(), (128,), w, b, 1e-6).to(bf16)
        k = torch.cat([rope(k[:, None, :64], cos, sin)[:, 0], k[:, 64:]], -1)
        (values, scales), rows = by_group(k, powers=True), pages if flat else pages.view(PAGES, -1)
        rows[:, : PAGE * 128].view(E4M3).view(-1, PAGE, 128)[slots // PAGE, slots % PAGE] = values
        rows[:, PAGE * 128 :].view(f32)[slots // PAGE, slots % PAGE] = scales[:, 0]

    return chain


@pytest.mark.parametrize("flat", [True, False], ids=["flat pages", "pages of rows"])
def test_an_index_key_goes_to_two_places_of_its_page(flat: bool) -> None:
    torch.manual_seed(0)
    pages = cache_of((PAGES, PAGE * 132) if flat else (PAGES, PAGE, 132), u8)
    slots = torch.tensor([PAGES * PAGE - 1, 0, 70, 5, 64])
    inputs = [pages, random(TOKENS, 128), torch.randn(128), torch.randn(128)]
    inputs += [random(TOKENS, 64), random(TOKENS, 64), slots]
    found = run(key_pages(flat), inputs)
    assert found.kernels == 1 and found.clones == [], reasons(found)
    assert as_in_eager(found, key_pages(flat), inputs)
