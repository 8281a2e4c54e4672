"""Paged caches of latents and of index keys: formats, writes, and the batch that says where tokens lie.

The last page of a cache is spare: a slot of -1 counts from the end, as everywhere in torch, so what padding
writes lands there, and no table names that page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from kernelweld.errors import BadOperand
from kernelweld.models.config import Config
from kernelweld.models.quant import BLOCK, E4M3, LIMIT, quantize

PAGE = 64  # tokens of a page
#: The smallest scale of a group of a latent is a normal float32; the smallest magnitude of an index key's is
#: that of DeepSeek's and vLLM's kernels.
_LATENT_FLOOR, _KEY_FLOOR = LIMIT * torch.finfo(torch.float32).tiny, 1e-4

LatentFormat = Literal["plain", "fp8", "fp8_ds_mla"]
KeyFormat = Literal["plain", "fp8"]


class Batch(NamedTuple):
    """T tokens of several requests, prefill or decode; all on the model's device.

    ``positions [T]`` int64 in their requests, ``slots [T]`` int64 in the caches (page * 64 + row; -1 for a
    token that is not kept), ``tables [T, P]`` int32 the pages of each token's request in order, ``lengths
    [T]`` int32 how many positions each token attends to: its own and all before, 0 for padding.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor


class Cache(NamedTuple):
    """The caches of one layer.

    ``latent [pages, 64, width]``: 576 values of the model's dtype, or of e4m3 times ``scale`` (float32 [1]),
    or 656 bytes (``fp8_ds_mla``: 512 codes, 4 float32 scales of 128 codes each, 64 bfloat16 rotated values).
    ``keys``: ``[pages, 64, 128]`` values, or ``[pages, 64, 132]`` bytes; a page of those is 64 rows of 128
    codes, then 64 float32 scales.
    """

    latent: torch.Tensor
    keys: torch.Tensor
    scale: torch.Tensor | None = None


class Chunk(NamedTuple):
    """``tokens`` tokens of a request from position ``start`` on, and the pages that the request has."""

    start: int
    tokens: int
    pages: Sequence[int]


def allocate(
    config: Config,
    pages: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    latent: LatentFormat = "plain",
    keys: KeyFormat = "fp8",
    device: torch.device | str | None = None,
) -> list[Cache]:
    """Caches of zeros for all layers, with one page more than ``pages``: the spare one."""
    layers = range(config.num_hidden_layers)
    return [_allocate(config, pages + 1, dtype, latent, keys, device) for _ in layers]


def _allocate(
    config: Config,
    pages: int,
    dtype: torch.dtype,
    latent: LatentFormat,
    keys: KeyFormat,
    device: torch.device | str | None,
) -> Cache:
    rank, rope, key = config.kv_lora_rank, config.qk_rope_head_dim, config.index_head_dim
    width = rank + 4 * rank // BLOCK + 2 * rope if latent == "fp8_ds_mla" else rank + rope
    kinds = {"plain": dtype, "fp8": E4M3, "fp8_ds_mla": torch.uint8}
    key_width, key_dtype = (key + 4, torch.uint8) if keys == "fp8" else (key, dtype)
    return Cache(
        torch.zeros(pages, PAGE, width, dtype=kinds[latent], device=device),
        torch.zeros(pages, PAGE, key_width, dtype=key_dtype, device=device),
        torch.ones(1, device=device) if latent == "fp8" else None,
    )


def batch_of(
    chunks: Sequence[Chunk],
    pages: int,
    *,
    padding: int = 0,
    width: int | None = None,
    device: torch.device | str | None = None,
) -> Batch:
    """The batch of ``chunks``, then ``padding`` tokens that are not kept. ``pages`` is what the caches were
    allocated for; ``width`` the columns of the tables, else as many as the longest of ``chunks`` has pages.

    Raises:
        BadOperand: a chunk reaches beyond its request's pages, those beyond the caches, or a table beyond
            ``width``. Nothing has been written then.
    """
    for chunk in chunks:
        _check(chunk, pages)
    widest = max([len(chunk.pages) for chunk in chunks], default=0)
    width = widest if width is None else width
    if width < widest:
        raise BadOperand("the batch", "width", f"{width} columns", f"{widest} columns or more")
    positions = [p for chunk in chunks for p in range(chunk.start, chunk.start + chunk.tokens)]
    owners = [chunk for chunk in chunks for _ in range(chunk.tokens)]
    slots = [c.pages[p // PAGE] * PAGE + p % PAGE for c, p in zip(owners, positions, strict=True)]
    tables = [[*chunk.pages, *[0] * (width - len(chunk.pages))] for chunk in owners] + [[0] * width] * padding
    return Batch(
        torch.tensor(positions + [0] * padding, dtype=torch.int64, device=device),
        torch.tensor(slots + [-1] * padding, dtype=torch.int64, device=device),
        torch.tensor(tables, dtype=torch.int32, device=device).view(len(positions) + padding, width),
        torch.tensor([p + 1 for p in positions] + [0] * padding, dtype=torch.int32, device=device),
    )


def _check(chunk: Chunk, pages: int) -> None:
    end, needed = chunk.start + chunk.tokens, -(-(chunk.start + chunk.tokens) // PAGE)
    if chunk.start < 0 or chunk.tokens < 0:
        got = f"{chunk.tokens} tokens from {chunk.start}"
        raise BadOperand("the batch", "chunk", got, "numbers from 0 on")
    if needed > len(chunk.pages):
        got = f"{len(chunk.pages)} pages for {end} tokens"
        raise BadOperand("the batch", "pages", got, f"{needed} pages of {PAGE} tokens to the request")
    if beyond := [page for page in chunk.pages if not 0 <= page < pages]:
        raise BadOperand("the batch", "pages", f"page {beyond[0]} of {pages}", f"pages from 0 to {pages - 1}")


def write_latent(cache: Cache, latent: torch.Tensor, rotated: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes ``latent [T, 512]`` and ``rotated [T, 64]`` to ``slots``."""
    flat = cache.latent.view(-1, cache.latent.shape[-1])
    if cache.latent.dtype == torch.uint8:
        flat[slots] = _ds_mla(latent, rotated)
        return
    rows = torch.cat([latent, rotated], -1)
    if cache.scale is not None:
        rows = (rows.float() / cache.scale).clamp(-LIMIT, LIMIT).to(E4M3)
    flat[slots] = rows


def _ds_mla(latent: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    """Rows of ``fp8_ds_mla``: ``[T, 656]`` bytes."""
    tokens, rank = latent.shape
    codes, scales = quantize(latent.view(tokens, rank // BLOCK, BLOCK), floor=_LATENT_FLOOR, ue8m0=False)
    parts = codes.view(tokens, rank), scales.view(tokens, rank // BLOCK), rotated.bfloat16()
    return torch.cat([part.view(torch.uint8) for part in parts], -1)


def write_keys(cache: Cache, keys: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes index keys ``[T, 128]`` to ``slots``, as codes with a power of two as scale, or as they are."""
    pages, block, width = cache.keys.shape
    if cache.keys.dtype != torch.uint8:
        cache.keys.view(-1, width)[slots] = keys
        return
    codes, scale = quantize(keys, floor=_KEY_FLOOR, ue8m0=True)
    split, flat = block * keys.shape[-1], cache.keys.view(pages, block * width)
    flat[:, :split].view(E4M3).view(pages, block, -1)[slots // block, slots % block] = codes
    flat[:, split:].view(torch.float32)[slots // block, slots % block] = scale.squeeze(-1)


def slots_of(indices: torch.Tensor, tables: torch.Tensor, block: int) -> torch.Tensor:
    """The slots of logical positions ``indices [T, K]`` int32; -1 stays -1."""
    pages = tables.gather(1, (indices // block).clamp_min(0).long())
    return torch.where(indices >= 0, pages * block + indices % block, -1)
