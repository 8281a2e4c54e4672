"""The sum that a norm reads is a word; other sums are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelweld.ir import ResidualAdd

BF16 = torch.bfloat16


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def norm(x: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
def test_sum_read_by_an_rms_norm(raised: Callable[..., Any], dtype: torch.dtype) -> None:
    """The sum is kept and normalised; both see the rounded value."""

    def graph(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total), total

    result = raised(graph, *tensors(dtype, (2, 7, 64), (2, 7, 64)))
    assert [word.kind for word in result.words] == ["residual_add", "rms_norm"]
    assert result.words[0] == ResidualAdd(dtype)


def test_sum_read_by_a_layer_norm_through_a_view(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, residual: Tensor) -> Tensor:
        return F.layer_norm((x + residual).reshape(14, 64), (64,))

    result = raised(graph, *tensors(BF16, (2, 7, 64), (2, 7, 64)))
    assert [word.kind for word in result.words] == ["residual_add", "layer_norm"]


def test_float32_residual_of_bf16_branch(raised: Callable[..., Any]) -> None:
    """A residual stream kept in float32: the sum is promoted, not rounded."""
    (x,), (residual,) = tensors(BF16, (2, 7, 64)), tensors(torch.float32, (2, 7, 64))
    result = raised(lambda x, r: norm(x + r), x, residual)
    assert result.words[0] == ResidualAdd(torch.float32)


def two_sums(x: Tensor, y: Tensor) -> Tensor:
    return norm((x + y) + x)


def test_only_the_sum_that_the_norm_reads(raised: Callable[..., Any]) -> None:
    result = raised(two_sums, *tensors(BF16, (2, 7, 64), (2, 7, 64)))
    assert [word.kind for word in result.words] == ["residual_add", "rms_norm"]


NEGATIVES = [
    (lambda x, y: x + y, (2, 7, 64)),
    (lambda x, y: norm(x + y), (64,)),
    (lambda x, y: norm(x + y), (2, 1, 64)),
    (lambda x, y: norm(x + 1.0), (2, 7, 64)),
    (lambda x, y: norm(torch.add(x, y, alpha=2)), (2, 7, 64)),
    (lambda x, y: norm(x * y), (2, 7, 64)),
]


@pytest.mark.parametrize(("graph", "shape"), NEGATIVES)
def test_not_a_residual(raised: Callable[..., Any], graph: Any, shape: tuple[int, ...]) -> None:
    """No norm, a bias, a broadcast, a number, a scaled sum, a product."""
    result = raised(graph, *tensors(BF16, (2, 7, 64), shape))
    assert result.of("residual_add") == []
    assert [miss for miss in result.misses if miss.kind == "residual_add"] == []
