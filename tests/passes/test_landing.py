"""A copy behind a weld becomes the way its result is written, where nothing else reads the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import kernelweld
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
