"""Quantization to e2m1 with scales of e4m3 (NVFP4), alone and of a gated product.

Kernels take approximate reciprocals of 6, of the scale of the whole tensor and of its product with a block's
scale; the words divide, as vLLM's own reference does. A number within some units in the last place of a tie
of two codes, or of two scales, may get the neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import E2M1, E4M3, QuantScale
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.dialect.gates import gated
from kernelweld.passes.dialect.quants import check_single
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import FLOATS, Size, dtype_name, dtype_of, shape_of, shape_text
from kernelweld.patterns.reading import Miss

_BLOCK = 16
_SCALE = QuantScale(6.0, inverse_limit=True, format="e4m3", low=-448.0, high=448.0)
#: Rows and columns of a tile of scales, and rows that follow each other in it.
_ROWS, _COLUMNS, _INNER = 128, 4, 32


def scaled_fp4_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``scaled_fp4_quant(output!, input, output_scale!, input_scale, is_sf_swizzled_layout)``; releases
    without the last have scales in tiles.
    """
    out, x, scales, whole = cast("tuple[fx.Node, ...]", call.values[:4])
    return _codes_and_scales(build, x, whole, out, scales, in_tiles=all(call.values[4:]))


def scaled_fp4_quant_out(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``scaled_fp4_quant.out(input, input_scale, is_sf_swizzled_layout, *, output!, output_scale!)``."""
    x, whole, in_tiles, out, scales = cast("tuple[fx.Node, fx.Node, bool, fx.Node, fx.Node]", call.values)
    return _codes_and_scales(build, x, whole, out, scales, in_tiles=in_tiles)


def silu_and_mul_nvfp4_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``silu_and_mul_nvfp4_quant(result!, result_block_scale!, input, input_global_scale)``: the product is
    rounded once, and the scales lie in tiles.
    """
    out, scales, x, whole = cast("tuple[fx.Node, ...]", call.values)
    return _codes_and_scales(build, gated(build, x, torch.float32), whole, out, scales, in_tiles=True)


def _codes_and_scales(
    build: Builder, x: fx.Node, whole: fx.Node, out: fx.Node, scales: fx.Node, *, in_tiles: bool
) -> list[fx.Node]:
    _check(x, whole, out)
    *rows, width = shape_of(x)
    blocks = cast(int, width) // _BLOCK
    scale = build.word(_SCALE, build.reshaped(x, (*rows, blocks, _BLOCK)), None, whole)
    numbers = build.reshaped(build.word(E4M3(), scale), (*rows, blocks))
    if in_tiles:
        numbers = _tiles(build, numbers)
    codes = build.word(E2M1(), x, scale, whole)
    return [codes, _as_written(build, numbers, scales)]


def _check(x: fx.Node, whole: fx.Node, out: fx.Node) -> None:
    *rows, width = shape_of(x)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)))
    if not isinstance(width, int) or width % _BLOCK:
        raise Miss("blocks of {} do not divide %{} of shape {}", x, _BLOCK, x, shape_text(shape_of(x)))
    check_single(whole)
    if dtype_of(out) != torch.uint8 or not same_shape(shape_of(out), (*rows, width // 2)):
        raise Miss("the codes %{} are not two in a byte, row by row", out, out)


def _tiles(build: Builder, scales: fx.Node) -> fx.Node:
    """Scales in tiles of 128 rows and 4 columns, each of 32 rows of 16 bytes."""
    shape = shape_of(scales)
    if len(shape) != 2 or not _fills(shape[0], _ROWS) or not _fills(shape[1], _COLUMNS):
        template = "the scales of shape {} do not fill tiles of {} by {}: the rest would be padded"
        raise Miss(template, scales, shape_text(shape), _ROWS, _COLUMNS)
    rows, columns = cast("tuple[int, int]", shape)
    tiled = (rows // _ROWS, _ROWS // _INNER, _INNER, columns // _COLUMNS, _COLUMNS)
    turned = build.turned(build.reshaped(scales, tiled), (0, 3, 2, 1, 4))
    return build.reshaped(turned, shape)


def _fills(size: Size, whole: int) -> bool:
    return isinstance(size, int) and size % whole == 0


def _as_written(build: Builder, numbers: fx.Node, scales: fx.Node) -> fx.Node:
    """The bytes in the dtype and the shape of the buffer."""
    dtype = dtype_of(scales)
    if dtype not in (torch.float8_e4m3fn, torch.uint8, torch.int32):
        raise Miss("the scales %{} are {}", scales, scales, dtype_name(dtype))
    if dtype == torch.int32 and not _fills(shape_of(numbers)[-1], 4):
        raise Miss("the scales %{} are no whole integers", scales, scales)
    return build.reshaped(build.bits(numbers, dtype), shape_of(scales))
