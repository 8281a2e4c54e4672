"""Caches: their formats, slots that are written and those that are not, and caches that are too small."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelweld.errors import BadOperand
from kernelweld.models.caches import (
    PAGE,
    Cache,
    Chunk,
    allocate,
    batch_of,
    slots_of,
    write_keys,
    write_latent,
)
from kernelweld.models.config import TINY

E4M3 = torch.float8_e4m3fn
FORMATS = [
    {"latent": latent, "keys": keys, "dtype": dtype}
    for latent, keys, dtype in (
        ("plain", "plain", torch.bfloat16),
        ("plain", "plain", torch.float32),
        ("fp8", "fp8", torch.bfloat16),
        ("fp8_ds_mla", "fp8", torch.bfloat16),
    )
]
SLOTS = torch.tensor([PAGE + 3, 0, 3 * PAGE - 1])


def rows(dtype: torch.dtype, count: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    latent, rotated, keys = (torch.randn(5, n, generator=generator)[:count].to(dtype) for n in (512, 64, 128))
    return latent, rotated, keys


def written(cache: Cache, slots: torch.Tensor) -> list[torch.Tensor]:
    """The bytes of both caches without the spare page, after a write to ``slots``."""
    dtype = cache.latent.dtype if cache.latent.dtype.itemsize > 1 else torch.bfloat16
    latent, rotated, keys = rows(dtype, len(slots))
    write_latent(cache, latent, rotated, slots)
    write_keys(cache, keys, slots)
    return [tensor[:-1].clone().view(torch.uint8) for tensor in (cache.latent, cache.keys)]


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: "-".join(map(str, f.values())))
def test_a_slot_of_minus_one_writes_nothing(formats: dict[str, Any]) -> None:
    cache = allocate(TINY, 3, **formats)[0]
    for tensor in cache[:2]:
        tensor.view(torch.uint8).random_(0, 120, generator=torch.Generator().manual_seed(1))
    before = [tensor[:-1].clone().view(torch.uint8) for tensor in cache[:2]]
    after = written(cache, torch.full((5,), -1))
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: "-".join(map(str, f.values())))
def test_only_the_slots_are_written(formats: dict[str, Any]) -> None:
    """Padding among the rows changes nothing, and a write to some slots leaves all other bytes."""
    a, b = (allocate(TINY, 3, **formats)[0] for _ in range(2))
    padded = torch.cat([SLOTS, torch.tensor([-1, -1])])
    assert all(map(torch.equal, written(a, SLOTS), written(b, padded)))
    latents = a.latent[:-1].view(torch.uint8).view(3 * PAGE, -1)
    assert sorted(latents.any(1).nonzero().flatten().tolist()) == sorted(SLOTS.tolist())


def test_the_bytes_of_ds_mla() -> None:
    """512 codes, 4 scales, 64 bfloat16 values; a row of zeros has the smallest normal float32 as scale."""
    cache = allocate(TINY, 3, latent="fp8_ds_mla")[0]
    latent, rotated, _ = rows(torch.bfloat16)
    latent[1] = 0
    write_latent(cache, latent, rotated, SLOTS)
    row = cache.latent.view(-1, 656)[SLOTS]
    scales = latent.float().view(3, 4, 128).abs().amax(-1) / 448
    scales[1] = torch.finfo(torch.float32).tiny
    codes = (latent.float().view(3, 4, 128) / scales[..., None]).to(E4M3)
    assert torch.equal(row[:, 512:528].contiguous().view(torch.float32), scales)
    assert torch.equal(row[:, :512], codes.view(3, 512).view(torch.uint8))
    assert torch.equal(row[:, 528:].contiguous().view(torch.bfloat16), rotated)


def test_the_bytes_of_a_page_of_keys() -> None:
    """64 rows of codes, then 64 scales, powers of two; a row of zeros has that of 1e-4."""
    cache = allocate(TINY, 3)[0]
    keys = rows(torch.bfloat16)[2]
    keys[1] = 0
    write_keys(cache, keys, SLOTS)
    pages = cache.keys.view(-1, PAGE * 132)
    for slot, key in zip(SLOTS.tolist(), keys.float(), strict=True):
        page, row = pages[slot // PAGE], slot % PAGE
        scale = 2.0 ** torch.log2(key.abs().max().clamp_min(1e-4) / 448).ceil()
        assert page[PAGE * 128 :].view(torch.float32)[row] == scale
        assert torch.equal(page[row * 128 :][:128].view(E4M3).float(), (key / scale).to(E4M3).float())


def test_slots_of_positions() -> None:
    tables = torch.tensor([[5, 2], [7, 0]], dtype=torch.int32)
    indices = torch.tensor([[0, 70, -1], [-1, 63, 64]], dtype=torch.int32)
    expected = [[5 * 64, 2 * 64 + 6, -1], [-1, 7 * 64 + 63, 0]]
    assert slots_of(indices, tables, 64).tolist() == expected


def test_a_batch() -> None:
    batch = batch_of([Chunk(63, 2, [4, 1]), Chunk(0, 1, [2])], 5, padding=1)
    assert batch.positions.tolist() == [63, 64, 0, 0]
    assert batch.slots.tolist() == [4 * 64 + 63, 64, 2 * 64, -1]
    assert batch.tables.tolist() == [[4, 1], [4, 1], [2, 0], [0, 0]]
    assert batch.lengths.tolist() == [64, 65, 1, 0]


def test_an_empty_batch() -> None:
    assert [tensor.shape[0] for tensor in batch_of([], 5, width=3)] == [0] * 4


@pytest.mark.parametrize(
    ("chunk", "got", "remedy"),
    [
        (Chunk(64, 1, [2]), "1 pages for 65 tokens", "Give 2 pages of 64 tokens to the request."),
        (Chunk(0, 1, [3]), "page 3 of 3", "Give pages from 0 to 2."),
        (Chunk(0, 1, [-1]), "page -1 of 3", "Give pages from 0 to 2."),
    ],
)
def test_too_small(chunk: Chunk, got: str, remedy: str) -> None:
    """Refused when the batch is made, with the requests that fit: nothing has been written by then."""
    with pytest.raises(BadOperand, match=got) as error:
        batch_of([Chunk(0, 2, [0]), chunk], 3)
    assert error.value.remedy == remedy
