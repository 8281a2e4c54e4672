"""Quantization in every spelling becomes a scale and codes; what only looks like it says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.ir import Quant, QuantScale, RMSNorm

E4M3 = torch.float8_e4m3fn
BF16 = torch.bfloat16
X = torch.randn(3, 256).to(BF16)
ONE = torch.ones(1)


def grouped(x: Tensor) -> Tensor:
    return x.view(3, 2, 128)


def codes(y: Tensor) -> Tensor:
    return y.clamp(-448.0, 448.0).to(E4M3)


def per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 448.0
    return codes(x.float() / scale), scale


def per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    g = grouped(x)
    scale = g.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / 448.0
    return codes(g.float() / scale).view(3, 256), scale.squeeze(-1)


def in_float32(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.float()
    scale = (h.abs().amax(-1, keepdim=True) * (1 / 448.0)).clamp_min(1e-6)
    return codes(h * scale.reciprocal()), scale


def powers_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    g = grouped(x).float()
    scale = g.abs().amax(-1, keepdim=True).clamp(1e-4) / 448.0
    scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return codes(g * (1.0 / scale)).view(3, 256), scale


def powers_by_pow(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True) / 448.0
    scale = torch.pow(2.0, torch.ceil(torch.log2(scale)))
    return codes(x / scale), scale


def without_keepdim(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1).float() / 448.0
    return codes(x.float() / scale.unsqueeze(-1)), scale


def int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1, keepdim=True).float() / 127.0).clamp(min=1e-7)
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def int8_rounded_last(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127.0
    return (x / scale).clamp(-127, 127).round().to(torch.int8), scale


SPELLINGS: list[tuple[Callable[..., Any], QuantScale, Quant]] = [
    (per_token, QuantScale(448.0), Quant(-448.0, 448.0)),
    (per_group, QuantScale(448.0, 1e-10, "amax"), Quant(-448.0, 448.0)),
    (in_float32, QuantScale(448.0, 1e-6, "scale", True), Quant(-448.0, 448.0, "reciprocal")),
    (powers_of_two, QuantScale(448.0, 1e-4, "amax", format="ue8m0"), Quant(-448.0, 448.0, "reciprocal")),
    (powers_by_pow, QuantScale(448.0, format="ue8m0"), Quant(-448.0, 448.0)),
    (without_keepdim, QuantScale(448.0, keepdim=False), Quant(-448.0, 448.0)),
    (int8, QuantScale(127.0, 1e-7, "scale"), Quant(-128.0, 127.0, dtype=torch.int8)),
    (int8_rounded_last, QuantScale(127.0), Quant(-127.0, 127.0, dtype=torch.int8)),
]


@pytest.mark.parametrize(("graph", "scale", "quant"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_dynamic(
    raised: Callable[..., Any], graph: Callable[..., Any], scale: QuantScale, quant: Quant
) -> None:
    result = raised(graph, X)
    assert result.words == [scale, quant]
    assert result.misses == ()


def test_an_upper_bound_is_an_operand(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True).float().minimum(upper) / 448.0
        return codes(x.float() / scale), scale

    result = raised(graph, X, torch.tensor([3.0]))
    assert result.words == [QuantScale(448.0), Quant(-448.0, 448.0)]
    assert [a.name for a in result.calls[0].all_input_nodes] == ["x_1", "upper_1"]


STATIC = [
    (lambda x, s: codes(x.float() / s), "divide"),
    (lambda x, s: codes(x.float() * s.reciprocal()), "reciprocal"),
    (lambda x, s: codes(s * x.float()), "multiply"),
]


@pytest.mark.parametrize(("graph", "operation"), STATIC, ids=["divide", "reciprocal", "multiply"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_given_scales(raised: Callable[..., Any], graph: Any, operation: str, shape: tuple[int, ...]) -> None:
    result = raised(graph, X, torch.rand(shape) + 0.5)
    assert result.only == Quant(-448.0, 448.0, operation)
    assert result.operands == ["x_1", "s_1"]


NUMBERS = [
    (lambda x: codes(x.float() / 0.3), "divide", 0.3),
    (lambda x: codes(x.float() * 0.3), "multiply", 0.3),
    (lambda x: codes(0.25 * x.float()), "multiply", 0.25),
]


@pytest.mark.parametrize(("graph", "operation", "number"), NUMBERS)
def test_a_number_as_scale(raised: Callable[..., Any], graph: Any, operation: str, number: float) -> None:
    result = raised(graph, X)
    assert result.only == Quant(-448.0, 448.0, operation, number=number)
    assert result.operands == ["x_1", None]


def test_behind_a_norm_with_both_results_kept(raised: Callable[..., Any]) -> None:
    def graph(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h = x.float()
        y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16) * w
        return (y, *per_group(y))

    result = raised(graph, X, X[0])
    assert [type(word) for word in result.words] == [RMSNorm, QuantScale, Quant]


def over_the_wrong_dimension(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(0, keepdim=True).float() / 448.0
    return codes(x.float() / scale), scale


def magnitudes_used_outside(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    magnitude = x.abs()
    return (*((codes(x.float() / (s := magnitude.amax(-1, keepdim=True).float() / 448.0)), s)), magnitude)


def codes_out_of_range(x: Tensor, s: Tensor) -> Tensor:
    return (x.float() / s).clamp(-500.0, 500.0).to(E4M3)


def int8_truncated(x: Tensor, s: Tensor) -> Tensor:
    return (x / s).clamp(-127, 127).to(torch.int8)


def fp8_of_whole_numbers(x: Tensor, s: Tensor) -> Tensor:
    return codes(torch.round(x / s))


NEAR = [
    (over_the_wrong_dimension, (X,), "quant_scale", "%amax is not taken over the last dimension"),
    (magnitudes_used_outside, (X,), "quant_scale", "the inner value %abs_1 is also used by %output"),
    (
        codes_out_of_range,
        (X, ONE),
        "quant",
        "clamps to [-500.0, 500.0], more than float8_e4m3fn has",
    ),
    (int8_truncated, (X, ONE), "quant", "is cast without rounding before it becomes int8"),
    (
        fp8_of_whole_numbers,
        (X, ONE),
        "quant",
        "is rounded to whole numbers before it becomes float8",
    ),
]


@pytest.mark.parametrize(("graph", "inputs", "kind", "reason"), NEAR, ids=[case[0].__name__ for case in NEAR])
def test_near_misses(
    raised: Callable[..., Any], graph: Callable[..., Any], inputs: Any, kind: str, reason: str
) -> None:
    result = raised(graph, *inputs)
    assert result.of(kind) == []
    assert reason in result.reason(kind)


SOMETHING_ELSE = [
    lambda x: x.amax(-1, keepdim=True) / 448.0,
    lambda x: x.abs().amax(-1, keepdim=True).float() / 3.0,
    lambda x: x.float().to(E4M3),
    lambda x: x.clamp(-448.0, 448.0).to(E4M3),
    lambda x: (x.float() / x.float()[:, :1].expand(3, 256)).clamp(-448.0, 448.0).to(E4M3),
    lambda x: (x.float() + x.float()[:, :1]).clamp(-448.0, 448.0).to(E4M3),
    lambda x: (x.float() / x.float()[:1]).clamp(-448.0, 448.0).to(E4M3),
    lambda x: x.to(torch.int8),
    lambda x: x.clamp(-10, 10).to(torch.int8),
    lambda x: (x.float() * 0.0).clamp(-448.0, 448.0).to(E4M3),
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_others_are_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, X)
    assert result.words == [] and result.misses == ()
