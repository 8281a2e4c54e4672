"""A copy behind a weld becomes the way its result is written, where nothing else reads the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import kernelweld
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline

Tensor = torch.Tensor
CLONE = torch.ops.aten.clone.default


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def turned(x: Tensor, w: Tensor) -> Tensor:
    return norm(x, w).transpose(0, 1).contiguous()


def turned_with_a_new_dimension(x: Tensor, w: Tensor) -> Tensor:
    return norm(x, w).permute(2, 0, 1).unsqueeze(1).contiguous()


def turned_and_flattened(x: Tensor, w: Tensor) -> Tensor:
    return norm(x, w).transpose(0, 1).contiguous().reshape(-1)


WRITTEN_AT_ONCE = [turned, turned_with_a_new_dimension, turned_and_flattened]


def kept_as_well(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = norm(x, w)
    return y, y.transpose(0, 1).contiguous()


def a_view_of_it_kept(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = norm(x, w)
    z = y.unsqueeze(0)
    return z, y.transpose(0, -1).contiguous(), (z * 2.0).exp()


def copied_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = norm(x, w)
    return y.transpose(0, 1).contiguous(), y.permute(2, 1, 0).contiguous()


def tiles(s: Tensor) -> Tensor:
    """Scales [rows, columns] in tiles of 128 by 4, as cuBLAS reads them."""
    rows, columns = s.shape
    blocks = s.view(rows // 128, 128, columns // 4, 4).permute(0, 2, 1, 3)
    return blocks.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16).flatten()


def mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.float().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    exponent = (torch.ceil(torch.log2(amax / 448.0)) + 127.0).clamp(0, 254)
    codes = (g / torch.exp2(exponent - 127.0).unsqueeze(-1)).clamp(-448.0, 448.0)
    return codes.to(torch.float8_e4m3fn).flatten(-2), exponent.to(torch.uint8)


def in_tiles(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = mxfp8(norm(x, w))
    return codes, tiles(scales)


def in_tiles_without_a_norm(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = mxfp8(x)
    return codes, tiles(scales)


def in_padded_tiles(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = mxfp8(norm(x, w))
    rows, columns = scales.shape
    padded = scales.new_zeros((rows + 127) // 128 * 128, (columns + 3) // 4 * 4)
    padded[:rows, :columns] = scales
    return codes, tiles(padded)


COPIED = [kept_as_well, a_view_of_it_kept, copied_twice]


def copies(function: Callable[..., object], *inputs: Tensor) -> int:
    gm = capture(function, inputs).graphs[0]
    Pipeline.from_text("canonicalize,raise,plan{keep-all=true},lower{target=triton}", strict=True).run(gm)
    return len(gm.graph.find_nodes(op="call_function", target=CLONE))


@pytest.mark.parametrize("function", WRITTEN_AT_ONCE)
def test_written_at_once(function: Callable[..., object]) -> None:
    assert copies(function, torch.randn(4, 3, 8), torch.rand(8)) == 0


@pytest.mark.parametrize("function", COPIED)
def test_copied_where_others_read_it(function: Callable[..., object]) -> None:
    assert copies(function, torch.randn(4, 3, 8), torch.rand(8)) > 0


@pytest.mark.parametrize("function", WRITTEN_AT_ONCE + COPIED)
def test_values_and_strides(function: Callable[..., object]) -> None:
    torch._dynamo.reset()
    inputs = torch.randn(4, 3, 8), torch.rand(8)
    options = {"pipeline": "canonicalize,raise,plan{keep-all=true},verify-welds,lower"}
    with torch.no_grad():
        expected = function(*inputs)
        actual = kernelweld.fuse(function, backend="interpret", strict=True, options=options)(*inputs)
    torch.testing.assert_close(actual, expected, check_stride=True)


#: What a pipeline leaves of the scales in tiles, and how many copies.
TILES = [(in_tiles, 256, 128, 0), (in_tiles_without_a_norm, 128, 256, 0), (in_padded_tiles, 100, 192, 1)]


@pytest.mark.parametrize(("function", "rows", "width", "left"), TILES)
def test_tiles_are_written_at_once_unless_they_are_padded(
    function: Callable[..., object], rows: int, width: int, left: int
) -> None:
    inputs = torch.randn(rows, width).to(torch.bfloat16), torch.rand(width).to(torch.bfloat16)
    captured = capture(function, inputs)
    gm = captured.graphs[0]
    text = "canonicalize,raise,plan{keep-all=true},verify-welds{strict=true},lower{target=triton}"
    plan = Pipeline.from_text(text, strict=True).run(gm).context.plan
    assert plan is not None and len(plan.welds) == 1
    assert [m.kind for m in plan.near_misses] == ["e8m0"] * left
    assert all("pads it, in another kernel" in miss.reason for miss in plan.near_misses)
    assert bool(gm.graph.find_nodes(op="call_function", target=CLONE)) == bool(left)
    with exact_casts():
        codes, scales = gm(*captured.inputs[0])
    expected, tiled = mxfp8(norm(*inputs)) if function is not in_tiles_without_a_norm else mxfp8(inputs[0])
    assert scales.is_contiguous() and scales.dim() == 1
    columns = (tiled.shape[1] + 3) // 4
    wanted = torch.zeros_like(scales)
    for m in range(rows):
        for k in range(tiled.shape[1]):
            place = (m // 128 * columns + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
            wanted[place] = tiled[m, k]
    differing = (scales != wanted).sum() + (codes.view(torch.uint8) != expected.view(torch.uint8)).sum()
    assert int(differing) <= 3 * (function is not in_tiles_without_a_norm), "a norm may round otherwise"
