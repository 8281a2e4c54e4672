"""Chains of norm, gate, rotation, quantization and cache write in plain torch: every combination that makes
sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from chain_quants import E4M3, QUANTS, TILED
from chain_stages import NORMS, ROPES, WIDTH, Inputs, Stage, Tensor, bf16, same

BLOCKS, BLOCK = 3, 4


@dataclass(frozen=True)
class Cache:
    """The shape of a cache for rows ``[tokens, ...]``, and how they are written to slots of it: rows alone,
    or codes and their scales. The elements of a cache of ``bytes`` are uint8.
    """

    shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    write: Callable[..., object]
    bytes: bool = False


def _by_slot(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache.flatten(0, 1)[slots] = rows


def _by_block(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, slots % BLOCK] = rows


def _heads_first(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[slots // BLOCK, :, slots % BLOCK] = rows


def _at_positions(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    cache[:, :, slots] = rows.transpose(0, 1)[None]


def _of_stacked(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    _by_slot(cache[1], rows, slots)


def _of_blocks(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    _by_block(cache[:, 1], rows, slots)


def _to_a_slice(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    _by_block(cache[..., 32 : 32 + rows.shape[-1]], rows, slots)


def _to_bytes(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    _by_block(cache.view(rows.dtype)[..., : rows.shape[-1]], rows, slots)


def _codes_and_scales(cache: Tensor, codes: Tensor, scales: Tensor, slots: Tensor) -> None:
    width, length = codes.shape[-1], 4 * scales.shape[-1]
    _by_block(cache[..., :width].view(codes.dtype), codes, slots)
    _by_block(cache[..., width : width + length].view(torch.float32), scales, slots)


def _joined(cache: Tensor, codes: Tensor, scales: Tensor, slots: Tensor) -> None:
    row = torch.cat([codes.view(torch.uint8), scales.view(torch.uint8)], -1)
    _by_block(cache[..., : row.shape[-1]], row, slots)


def _wide(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Rows with room behind them; twice as wide at least."""
    return (*_paged(rows)[:-1], 2 * rows[-1] + 64)


def _paged(rows: tuple[int, ...]) -> tuple[int, ...]:
    return BLOCKS, BLOCK, *rows[1:]


#: Caches of heads ``[tokens, heads, WIDTH]``; those of slots, blocks and parts of them take whole rows
#: (latents) as well.
CACHES: Mapping[str, Cache] = MappingProxyType(
    {
        "slots": Cache(_paged, _by_slot),
        "NHD": Cache(_paged, _by_block),
        "HND": Cache(lambda rows: (BLOCKS, rows[1], BLOCK, rows[2]), _heads_first),
        "static": Cache(lambda rows: (1, rows[1], BLOCKS * BLOCK, rows[2]), _at_positions),
        "second half": Cache(lambda rows: (2, *_paged(rows)), _of_stacked),
        "half of a block": Cache(lambda rows: (BLOCKS, 2, BLOCK, *rows[1:]), _of_blocks),
        "slice": Cache(_wide, _to_a_slice),
        "bytes": Cache(_wide, _to_bytes, bytes=True),
    }
)

#: Caches of codes with their scales behind them, written apart or as one row.
SCALED: Mapping[str, Cache] = MappingProxyType(
    {
        "scaled": Cache(_wide, _codes_and_scales, bytes=True),
        "joined": Cache(_wide, _joined, bytes=True),
    }
)


@dataclass(frozen=True)
class Chain:
    """One combination on values of ``shape``. ``fan_out``: what is quantized is kept as well."""

    norm: str
    rope: str
    quant: str
    shape: tuple[int, ...]
    fan_out: bool = False
    cache: str | None = None

    def __str__(self) -> str:
        kept = (", kept" if self.fan_out else "") + (f" | {self.cache}" if self.cache else "")
        return f"{self.norm} | {self.rope} | {self.quant}{kept} | {'x'.join(map(str, self.shape))}"

    @property
    def stages(self) -> tuple[Stage, Stage, Stage]:
        return NORMS[self.norm], ROPES[self.rope], QUANTS[self.quant]

    @property
    def cuts(self) -> bool:
        """Whether its groups are narrower than the heads that it rotates."""
        return self.rope != "no rope" and self.quant in ("e4m3 group 64", "mxfp8", "nvfp4")

    @property
    def words(self) -> list[str]:
        words = [word for stage in self.stages for word in stage.words]
        return [*words, *["cache_write"] * (2 if self.cache in SCALED else 1)] if self.cache else words

    def inputs(self) -> Inputs:
        torch.manual_seed(0)
        given = (*same(self.shape), *(t for stage in self.stages for t in stage.extra(self.shape)))
        return (*given, *self._cache()) if self.cache else given

    def _cache(self) -> Inputs:
        cache = self.layout
        slots, shape = torch.randperm(BLOCKS * BLOCK)[: self.shape[0]], cache.shape(self.shape)
        if cache.bytes:
            return torch.randint(0, 255, shape, dtype=torch.uint8), slots
        return torch.randn(shape).to(bf16 if self.quant == "bf16" else E4M3), slots

    @property
    def layout(self) -> Cache:
        """The cache that it ends in."""
        assert self.cache is not None
        return SCALED.get(self.cache) or CACHES[self.cache]

    def __call__(self, x: Tensor, *extras: Tensor) -> object:
        given = iter(extras)
        norm, rope, quant = self.stages
        for stage in (norm, rope):
            x = stage.apply(x, *(next(given) for _ in stage.extra(self.shape)))  # type: ignore[assignment]
        result = quant.apply(x, *(next(given) for _ in quant.extra(self.shape)))
        if self.cache:
            cache, slots = given
            self.layout.write(cache, *(result if isinstance(result, tuple) else (result,)), slots)
            return (x, cache) if self.fan_out else cache
        return (result, x) if self.fan_out else result


def chains() -> Iterator[Chain]:
    """Whole rows ``[tokens, hidden]`` without rotation, and heads ``[tokens, heads, WIDTH]`` with each; in
    the end codes, or rows of a cache.
    """
    for norm in NORMS:
        for quant in TILED:
            yield Chain(norm, "no rope", quant, (128, 256))
        for quant in (name for name in QUANTS if name not in TILED):
            for kept in (False, True) if quant != "bf16" else (False,):
                yield Chain(norm, "no rope", quant, (3, 384), kept)
                for rope in ROPES:
                    yield Chain(norm, rope, quant, (3, 2, WIDTH), kept)
        yield from cached(norm)


def cached(norm: str) -> Iterator[Chain]:
    """Chains behind ``norm`` that end in a cache: of values, codes with a given scale, codes and scales."""
    for quant in ("bf16", "e4m3 static"):
        for cache in CACHES:
            if cache not in ("HND", "static"):
                yield Chain(norm, "no rope", quant, (3, 384), cache=cache)
            for rope in ROPES:
                yield Chain(norm, rope, quant, (3, 2, WIDTH), cache=cache)
    for quant in ("e4m3 token", "e4m3 group 128", "e4m3 group 128 ue8m0"):
        for cache in SCALED:
            yield Chain(norm, "no rope", quant, (3, 384), cache=cache)
            for rope in ROPES:
                yield Chain(norm, rope, quant, (3, 2, WIDTH), cache=cache)
