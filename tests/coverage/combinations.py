"""Chains of norm, gate, rotation, quantization and cache write in plain torch: every combination that makes
sense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
EPS = 1e-6


@dataclass(frozen=True)
class Stage:
    """One link of a chain: ``apply(x, *extra(x))``, and the kinds of words that it becomes."""

    apply: Callable[..., object]
    words: tuple[str, ...]
    extra: Callable[[tuple[int, ...]], Inputs] = lambda shape: ()


def _vector(shape: tuple[int, ...]) -> Inputs:
    return (torch.rand(shape[-1]).to(bf16) + 0.5,)


def _vectors(shape: tuple[int, ...]) -> Inputs:
    return (*_vector(shape), torch.randn(shape[-1]).to(bf16))


def _wide_vector(shape: tuple[int, ...]) -> Inputs:
    return (torch.randn(shape[-1]) * 0.1,)


def _same(shape: tuple[int, ...]) -> Inputs:
    return (torch.randn(shape).to(bf16),)


def _vector_and_same(shape: tuple[int, ...]) -> Inputs:
    return (*_vector(shape), *_same(shape))


def _unit(x: Tensor) -> Tensor:
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def _add_norm(x: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    return _unit(x + residual).to(bf16) * w


def _gate_first(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    h = x.float() * F.silu(gate.float())
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w.float()).to(bf16)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


def _l2(x: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + EPS)).to(bf16)


#: Normalisations, and gated products in their place.
NORMS: Mapping[str, Stage] = MappingProxyType(
    {
        "rms": Stage(lambda x: _unit(x).to(bf16), ("rms_norm",)),
        "rms, round, w": Stage(lambda x, w: _unit(x).to(bf16) * w, ("rms_norm",), _vector),
        "rms, w, round": Stage(lambda x, w: (_unit(x) * w.float()).to(bf16), ("rms_norm",), _vector),
        "rms, 1 + w": Stage(lambda x, w: (_unit(x) * (1.0 + w)).to(bf16), ("rms_norm",), _wide_vector),
        "rms, w, silu gate": Stage(
            lambda x, w, g: (w * _unit(x).to(bf16) * F.silu(g.float())).to(bf16),
            ("rms_norm",),
            _vector_and_same,
        ),
        "silu gate, rms, w": Stage(_gate_first, ("rms_norm",), _vector_and_same),
        "add, rms, w": Stage(_add_norm, ("residual_add", "rms_norm"), _vector_and_same),
        "layer norm": Stage(_layer_norm, ("layer_norm",), _vectors),
        "l2": Stage(_l2, ("l2_norm",)),
        "silu gate": Stage(lambda x, g: F.silu(g) * x, ("gate_mul",), _same),
        "sigmoid gate": Stage(lambda x, g: x * torch.sigmoid(g), ("gate_mul",), _same),
    }
)


def _tables(width: int) -> Callable[[tuple[int, ...]], Inputs]:
    def make(shape: tuple[int, ...]) -> Inputs:
        angle = torch.arange(shape[0])[:, None] / 10000 ** (torch.arange(width // 2) / (width // 2))
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(bf16)[:, None], angle.sin().to(bf16)[:, None]

    return make


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _neox(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _rotated(x) * sin


def _partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    return torch.cat([_neox(x[..., :width], cos, sin), x[..., width:]], -1)


def _behind(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    return torch.cat([x[..., :-width], _neox(x[..., -width:], cos, sin)], -1)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack([-odd, even], -1).flatten(-2)
    return x * cos.chunk(2, -1)[0].repeat_interleave(2, -1) + turned * sin.chunk(2, -1)[0].repeat_interleave(
        2, -1
    )


WIDTH = 128

#: Rotations of values ``[tokens, heads, WIDTH]``.
ROPES: Mapping[str, Stage] = MappingProxyType(
    {
        "no rope": Stage(lambda x: x, ()),
        "neox": Stage(_neox, ("rope",), _tables(WIDTH)),
        "neox, first half": Stage(_partial, ("rope",), _tables(WIDTH // 2)),
        "neox, last half": Stage(_behind, ("rope",), _tables(WIDTH // 2)),
        "interleaved": Stage(_interleaved, ("rope",), _tables(WIDTH)),
    }
)


def _codes(y: Tensor) -> Tensor:
    return y.clamp(-448.0, 448.0).to(E4M3)


def _scale(x: Tensor, limit: float = 448.0) -> Tensor:
    return x.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / limit


def _token(x: Tensor) -> object:
    scale = _scale(x)
    return _codes(x.float() / scale), scale


def _unclamped(x: Tensor) -> object:
    scale = _scale(x)
    return (x.float() / scale).to(E4M3), scale


def _bounded(x: Tensor, upper: Tensor) -> object:
    scale = (x.abs().amax(-1, keepdim=True).float().minimum(upper) / 448.0).clamp(min=1e-9)
    return _codes(x.float() * scale.reciprocal()), scale


def _group(size: int, *, powers: bool = False) -> Callable[[Tensor], object]:
    def apply(x: Tensor) -> object:
        g = x.unflatten(-1, (-1, size))
        scale = _scale(g)
        scale = torch.exp2(torch.ceil(torch.log2(scale))) if powers else scale
        return _codes(g.float() / scale).flatten(-2), scale.squeeze(-1)

    return apply


def _mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.float().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    exponent = (torch.ceil(torch.log2(amax / 448.0)) + 127.0).clamp(0, 254)
    return _codes(g / torch.exp2(exponent - 127.0).unsqueeze(-1)).flatten(-2), exponent.to(torch.uint8)


def _e2m1(y: Tensor) -> Tensor:
    size, code = y.abs(), torch.zeros_like(y, dtype=torch.uint8)
    for number, bound in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), 1):
        code = torch.where(size > bound if number % 2 else size >= bound, number, code)
    return code | (torch.signbit(y).to(torch.uint8) << 3)


def _nvfp4(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.unflatten(-1, (-1, 16))
    scale = g * (blocks.abs().amax(-1, keepdim=True).float() * (1.0 / 6.0))
    numbers = scale.clamp(-448.0, 448.0).to(E4M3)
    factor = _inverse(numbers.float() * _inverse(g))
    codes = _e2m1((blocks.float() * factor).clamp(-6.0, 6.0).reshape(x.shape))
    return codes[..., ::2] | codes[..., 1::2] << 4, numbers.squeeze(-1)


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, 1.0 / x)


def _int8(x: Tensor) -> object:
    scale = _scale(x, 127.0)
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def _in_tiles(quantize: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., object]:
    """Scales in tiles of 128 rows by 4 columns, as block-scaled GEMMs read them, where they fill tiles."""

    def apply(x: Tensor, *whole: Tensor) -> object:
        codes, scales = quantize(x, *whole)
        rows, columns = math.prod(scales.shape[:-1]), scales.shape[-1]
        if rows % 128 or columns % 4:
            return codes, scales
        tiles = scales.reshape(rows // 128, 4, 32, columns // 4, 4)
        return codes, tiles.permute(0, 3, 2, 1, 4).contiguous().view(rows, columns)

    return apply


def _number(value: float) -> Callable[[tuple[int, ...]], Inputs]:
    return lambda shape: (torch.tensor([value]),)


DYNAMIC = ("quant_scale", "quant")

#: Ends of a chain.
QUANTS: Mapping[str, Stage] = MappingProxyType(
    {
        "bf16": Stage(lambda x: x, ()),
        "e4m3 static": Stage(
            lambda x, s: _codes(x.float() / s), ("quant",), lambda shape: (torch.tensor([0.02]),)
        ),
        "e4m3 token": Stage(_token, DYNAMIC),
        "e4m3 token unclamped": Stage(_unclamped, DYNAMIC),
        "e4m3 token bounded": Stage(_bounded, DYNAMIC, _number(2.0)),
        "e4m3 group 64": Stage(_group(64), DYNAMIC),
        "e4m3 group 128": Stage(_group(128), DYNAMIC),
        "e4m3 group 128 ue8m0": Stage(_group(128, powers=True), DYNAMIC),
        "mxfp8": Stage(_mxfp8, ("quant_scale", "e8m0", "quant")),
        "int8 token": Stage(_int8, DYNAMIC),
        "nvfp4": Stage(_nvfp4, ("quant_scale", "e4m3", "e2m1"), _number(448.0 * 6.0 / 4.0)),
        "nvfp4 in tiles": Stage(_in_tiles(_nvfp4), ("quant_scale", "e4m3", "e2m1"), _number(700.0)),
        "mxfp8 in tiles": Stage(_in_tiles(_mxfp8), ("quant_scale", "e8m0", "quant")),
    }
)


#: Quantizations whose scales lie in tiles of 128 rows.
TILED = ("nvfp4 in tiles", "mxfp8 in tiles")

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
        given = (*_same(self.shape), *(t for stage in self.stages for t in stage.extra(self.shape)))
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
