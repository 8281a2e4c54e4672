"""Quotients cast to codes without a clamp: words where the scale keeps them within the codes, or why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import Quant, QuantScale

E4M3, BF16, F16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32
CODES, INT8 = Quant(-448.0, 448.0), Quant(-128.0, 127.0, dtype=torch.int8)


def hard(dtype: torch.dtype) -> Tensor:
    """Rows of ordinary values, zeros, the largest and smallest numbers, infinities, NaN."""
    torch.manual_seed(0)
    limits = torch.finfo(dtype)
    largest = [3.0, 0.0, limits.max, limits.smallest_normal, limits.smallest_normal / 8, 448.0, 1e-30]
    largest += [float("inf"), float("-inf"), float("nan")]
    rows = (torch.rand(len(largest), 256) * 2 - 1) * torch.tensor(largest)[:, None].nan_to_num(1.0, 1.0, 1.0)
    rows[:, 77] = torch.tensor(largest)
    return rows.to(dtype)


def amax(x: Tensor) -> Tensor:
    return x.abs().amax(-1, keepdim=True).float()


def per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = amax(x).clamp(min=1e-10) / 448.0
    return (x.float() / scale).to(E4M3), scale


def floor_of_the_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (amax(x) / 448.0).clamp(min=1e-12)
    return (x / scale).to(E4M3), scale


def by_the_reciprocal(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = amax(x).clamp(min=1e-10) * (1 / 448.0)
    return (x.float() * scale.reciprocal()).to(E4M3), scale


def per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.view(x.shape[0], -1, 128)
    scale = g.abs().amax(-1).float().clamp(min=1e-4) / 448.0
    return (g / scale[..., None]).to(E4M3).view(x.shape), scale


def powers_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.exp2(torch.ceil(torch.log2(amax(x).clamp(min=1e-4) / 448.0)))
    return (x.float() / scale).to(E4M3), scale


def smaller_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = amax(x).clamp(min=1e-10) / 240.0
    return (x.float() / scale).to(E4M3), scale


def int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = amax(x).clamp(min=1e-10) / 127.0
    return torch.round(x.float() / scale).to(torch.int8), scale


FLOOR = QuantScale(448.0, 1e-10, "amax")
SPELLINGS = [
    (per_token, FLOOR, CODES),
    (floor_of_the_scale, QuantScale(448.0, 1e-12, "scale"), CODES),
    (by_the_reciprocal, QuantScale(448.0, 1e-10, "amax", True), Quant(-448.0, 448.0, "reciprocal")),
    (per_group, QuantScale(448.0, 1e-4, "amax", keepdim=False), CODES),
    (powers_of_two, QuantScale(448.0, 1e-4, "amax", format="ue8m0"), CODES),
    (smaller_codes, QuantScale(240.0, 1e-10, "amax"), CODES),
    (int8, QuantScale(127.0, 1e-10, "amax"), INT8),
]


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize(("graph", "scale", "quant"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_scale_of_the_same_row(
    raised: Callable[..., Any], graph: Any, scale: QuantScale, quant: Quant, dtype: torch.dtype
) -> None:
    """The fixture compares bits. int8 has no code for what is not a number."""
    result = raised(graph, hard(dtype)[: -3 if quant is INT8 else -1])
    assert result.words == [scale, quant] and result.misses == ()


@pytest.mark.parametrize("graph", [per_token, by_the_reciprocal, per_group, powers_of_two])
def test_a_row_with_nan_has_nan_alone(raised: Callable[..., Any], graph: Any) -> None:
    """As with a clamp. The bits of its scale are those of some NaN, so they are left out."""
    result = raised(lambda x: graph(x)[0], hard(BF16))
    assert len(result.words) == 2
    codes = result.gm(hard(BF16))
    assert codes[-1].float().isnan()[77] and not codes[:-3].float().isnan().any()


def given_scale(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / s).to(E4M3)


def a_number(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / 0.3).to(E4M3)


def of_another_row(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (amax(x * 2).clamp(min=1e-10) / 448.0)).to(E4M3)


def no_lower_bound(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (amax(x) / 448.0)).to(E4M3)


def too_small_a_lower_bound(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (amax(x).clamp(min=1e-37) / 448.0)).to(E4M3)


def an_upper_bound(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (amax(x).minimum(s) / 448.0).clamp(min=1e-9)).to(E4M3)


def larger_codes(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / (amax(x).clamp(min=1e-10) / 57344.0)).to(E4M3)


def rounded_down(x: Tensor, s: Tensor) -> Tensor:
    scale = torch.exp2(torch.floor(torch.log2(amax(x).clamp(min=1e-10) / 448.0)))
    return (x.float() / scale).to(E4M3)


def times_the_scale(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() * (amax(x).clamp(min=1e-10) / 448.0)).to(E4M3)


def int8_of_a_given_scale(x: Tensor, s: Tensor) -> Tensor:
    return torch.round(x.float() / s).to(torch.int8)


NAN = "casts to float8_e4m3fn without a clamp, which gives NaN for a quotient out of range, and "
WRITE = "; write .clamp(-448.0, 448.0) before the cast"
NOT_OF_THE_ROW = "its scale is not taken from the magnitudes of what is quantized"
NO_FLOOR = "its scale has no lower bound that keeps it a normal number, such as .clamp(min=1e-10)"
NEAR = [
    (given_scale, NAN + NOT_OF_THE_ROW + WRITE),
    (a_number, NAN + NOT_OF_THE_ROW + WRITE),
    (of_another_row, NAN + NOT_OF_THE_ROW + WRITE),
    (no_lower_bound, NAN + NO_FLOOR + WRITE),
    (too_small_a_lower_bound, NAN + NO_FLOOR + WRITE),
    (an_upper_bound, NAN + "its scale has an upper bound" + WRITE),
    (larger_codes, NAN + "its scale divides by 57344" + WRITE),
    (rounded_down, NAN + "its scale is rounded down to a power of two" + WRITE),
    (times_the_scale, NAN + "it multiplies with the scale instead of dividing by it" + WRITE),
    (
        int8_of_a_given_scale,
        "casts to int8 without a clamp, which is undefined for a quotient out of range, and "
        + NOT_OF_THE_ROW
        + "; write .clamp(-128.0, 127.0) before the cast",
    ),
]


@pytest.mark.parametrize(("graph", "reason"), NEAR, ids=[case[0].__name__ for case in NEAR])
def test_other_scales_are_near_misses(raised: Callable[..., Any], graph: Any, reason: str) -> None:
    result = raised(graph, torch.randn(3, 256).to(BF16), torch.tensor([0.5]))
    assert result.of("quant") == []
    assert result.reason("quant").endswith(reason)


SOMETHING_ELSE = [
    lambda x: (x.float() / 3.0).to(torch.int8),
    lambda x: (x.float() + 1.0).to(E4M3),
    lambda x: torch.round(x.float()).to(torch.int8),
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_casts_that_do_not_quantize_are_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, torch.randn(3, 256).to(BF16))
    assert result.words == [] and result.misses == ()
