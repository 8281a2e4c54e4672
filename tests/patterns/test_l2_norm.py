"""L2 norm in every spelling becomes one word; what only looks like it says why it is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelweld.ir import L2Norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16 = torch.bfloat16
EPS = 1e-6


def tensor(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def inside(x: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt((h * h).sum(-1, keepdim=True) + EPS)).to(x.dtype)


def inside_kept_in_float32(x: Tensor) -> Tensor:
    """Gated delta networks: transposed, upcast and made contiguous before."""
    h = x.transpose(1, 2).to(torch.float32).clone(memory_format=torch.contiguous_format)
    return h * torch.rsqrt((h * h).sum(-1, keepdim=True) + EPS)


def inside_by_division(x: Tensor) -> Tensor:
    h = x.float()
    return (h / torch.sqrt(h.pow(2).sum(-1, keepdim=True) + EPS)).to(x.dtype)


def outside(x: Tensor) -> Tensor:
    h = x.float()
    return (h / (h.pow(2).sum(-1, keepdim=True).sqrt() + EPS)).to(x.dtype)


def clamp(x: Tensor) -> Tensor:
    h = x.float()
    return (h / h.pow(2).sum(-1, keepdim=True).sqrt().clamp_min(EPS)).to(x.dtype)


def normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=EPS)


def no_eps(x: Tensor) -> Tensor:
    h = x.float()
    return (h / (h * h).sum(-1, keepdim=True).sqrt()).to(x.dtype)


#: Spelling, the word in bfloat16, whether eager bits are the word's own.
SPELLINGS = [
    (inside, L2Norm(EPS, "inside", dtype=BF16), True),
    (inside_kept_in_float32, L2Norm(EPS, "inside"), True),
    (outside, L2Norm(EPS, "outside", dtype=BF16), True),
    (clamp, L2Norm(EPS, "clamp", dtype=BF16), True),
    (normalize, L2Norm(EPS, "clamp", norm_dtype=BF16, dtype=BF16), True),
    (no_eps, L2Norm(0.0, "outside", dtype=BF16), True),
    (inside_by_division, L2Norm(EPS, "inside", dtype=BF16), False),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "word", "exact"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spelling(
    raised: Callable[..., Any], spelling: Callable[..., Tensor], word: L2Norm, exact: bool, dtype: torch.dtype
) -> None:
    fields = {f: dtype for f in ("norm_dtype", "dtype") if getattr(word, f) == BF16}
    result = raised(spelling, tensor(dtype, 2, 7, 4, 32), exact=exact)
    assert result.only == replace(word, **fields)
    assert result.misses == ()


def test_input_is_read_before_its_upcast_and_copy(raised: Callable[..., Any]) -> None:
    result = raised(inside_kept_in_float32, tensor(BF16, 2, 7, 4, 32))
    assert result.operands[0] in ("permute", "transpose_int", "permute_default")


def sum_over_rows(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(1, keepdim=True) + EPS)


def another_numerator(x: Tensor, y: Tensor) -> Tensor:
    return y * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def sum_of_abs(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.abs().sum(-1, keepdim=True) + EPS)


def in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    return h * torch.rsqrt((h * h).sum(-1, keepdim=True) + EPS)


def in_float64(x: Tensor, y: Tensor) -> Tensor:
    h = x.double()
    return h * torch.rsqrt((h * h).sum(-1, keepdim=True) + EPS)


def norm_used_outside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    norm = (x * x).sum(-1, keepdim=True).sqrt()
    return x / (norm + EPS), norm


def bound_below_is_a_tensor(x: Tensor, y: Tensor) -> Tensor:
    return x / torch.maximum((x * x).sum(-1, keepdim=True).sqrt(), y[..., :1])


def divides_the_norm(x: Tensor, y: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True).sqrt() / x


def bounded_on_both_sides(x: Tensor, y: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True).sqrt().clamp(EPS, 10.0)


NEGATIVES = [
    (sum_over_rows, "the sum runs over dimensions [1] of [2, 7, 32], not over the last alone"),
    (another_numerator, "normalises %y_1, which is not the value whose squares are under the root"),
    (sum_of_abs, "the sum is of %abs_1, which is no square"),
    (in_bfloat16, "the sum is computed in bfloat16, not in float32"),
    (in_float64, "the sum is computed in float64, not in float32"),
    (norm_used_outside, "is used by 2 nodes"),
    (bound_below_is_a_tensor, "the eps of %maximum is not a constant"),
    (bounded_on_both_sides, "%clamp_max does not normalise by the root %clamp_min"),
    (divides_the_norm, "does not normalise by the root %sqrt"),
]


@pytest.mark.parametrize(("graph", "reason"), NEGATIVES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_an_l2_norm(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    x = tensor(torch.float32, 2, 7, 32)
    result = raised(graph, x, x.abs() + 1)
    assert result.words == []
    assert reason in result.reason("l2_norm")
