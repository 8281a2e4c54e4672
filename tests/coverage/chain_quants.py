"""The last link of a chain: codes and scales of a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from chain_stages import Inputs, Stage, Tensor

E4M3 = torch.float8_e4m3fn


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


def _group(size: int, *, powers: bool = False) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def apply(x: Tensor) -> tuple[Tensor, Tensor]:
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


def _aligned(quantize: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., object]:
    """Scales in columns that begin at multiples of 16 bytes, as DeepGEMM reads them."""

    def apply(x: Tensor) -> object:
        codes, scales = quantize(x)
        rows, columns = math.prod(scales.shape[:-1]), scales.shape[-1]
        memory = torch.empty_strided(
            (rows, columns), (1, -(rows // -4) * 4), dtype=scales.dtype, device=x.device
        )
        return codes, memory.copy_(scales.reshape(rows, columns))

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
        "e4m3 group 128 aligned": Stage(_aligned(_group(128)), DYNAMIC),
        "mxfp8": Stage(_mxfp8, ("quant_scale", "e8m0", "quant")),
        "int8 token": Stage(_int8, DYNAMIC),
        "nvfp4": Stage(_nvfp4, ("quant_scale", "e4m3", "e2m1"), _number(448.0 * 6.0 / 4.0)),
        "nvfp4 in tiles": Stage(_in_tiles(_nvfp4), ("quant_scale", "e4m3", "e2m1"), _number(700.0)),
        "mxfp8 in tiles": Stage(_in_tiles(_mxfp8), ("quant_scale", "e8m0", "quant")),
    }
)


#: Quantizations whose scales lie in tiles of 128 rows.
TILED = ("nvfp4 in tiles", "mxfp8 in tiles")
