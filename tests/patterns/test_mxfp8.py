"""MX scales in every spelling become a scale, its byte and codes; what only looks like them says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.ir import E8M0, Quant, QuantScale
from kernelweld.passes.pipeline import Pipeline

E4M3 = torch.float8_e4m3fn
BF16 = torch.bfloat16
TINY = torch.finfo(torch.float32).tiny
X = torch.randn(3, 256).to(BF16)
RANGE = {"low": 2.0**-127, "high": 2.0**127}
PIPELINE = "canonicalize,raise,plan{keep-all=true},lower{target=triton}"
CODES = Quant(-448.0, 448.0)


def blocks(x: Tensor) -> Tensor:
    return x.float().view(*x.shape[:-1], -1, 32)


def coded(x: Tensor, scale: Tensor) -> Tensor:
    return (blocks(x) / scale.unsqueeze(-1)).clamp(-448.0, 448.0).view(x.shape).to(E4M3)


def rounded_up(x: Tensor) -> tuple[Tensor, Tensor]:
    amax = blocks(x).abs().amax(-1).clamp(min=TINY)
    exponent = (torch.ceil(torch.log2(amax / 448.0)) + 127.0).clamp(0, 254)
    return coded(x, torch.exp2(exponent - 127.0)), exponent.to(torch.uint8)


def rounded_down(x: Tensor) -> tuple[Tensor, Tensor]:
    amax = blocks(x).abs().amax(-1).clamp(min=TINY)
    exponent = (torch.floor(torch.log2(amax)) - 8.0 + 127.0).clamp(0, 254)
    return coded(x, torch.exp2(exponent - 127.0)), exponent.to(torch.uint8)


def not_divided(x: Tensor) -> tuple[Tensor, Tensor]:
    amax = blocks(x).abs().amax(-1)
    exponent = (torch.floor(torch.log2(amax)) + 127).clamp(1, 250)
    return coded(x, torch.pow(2.0, exponent + -127)), exponent.to(torch.uint8)


def clamped_before_the_bias(x: Tensor) -> tuple[Tensor, Tensor]:
    amax = blocks(x).abs().amax(-1, keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(amax)).clamp(-119, 127) - 8)
    return coded(x, scale.squeeze(-1)), (scale.view(torch.int32) >> 23).to(torch.uint8)


SPELLINGS: list[tuple[Callable[..., Any], QuantScale]] = [
    (rounded_up, QuantScale(448.0, TINY, "amax", format="ue8m0", keepdim=False, **RANGE)),
    (rounded_down, QuantScale(256.0, TINY, "amax", format="ue8m0_floor", keepdim=False, **RANGE)),
    (
        not_divided,
        QuantScale(1.0, format="ue8m0_floor", low=2.0**-126, high=2.0**123, keepdim=False),
    ),
    (
        clamped_before_the_bias,
        QuantScale(256.0, format="ue8m0_floor", low=2.0**-127, high=2.0**119),
    ),
]


@pytest.mark.parametrize(("graph", "scale"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spellings(raised: Callable[..., Any], graph: Callable[..., Any], scale: QuantScale) -> None:
    result = raised(graph, X)
    assert set(result.words) == {scale, E8M0(), CODES}
    assert len(result.words) == 3 and result.misses == ()


def hard_rows() -> Tensor:
    """Blocks of zeros, powers of two and their neighbours, subnormals, and the largest numbers."""
    torch.manual_seed(0)
    largest = torch.tensor(
        [0.0, 1.0, 448.0, 0.875, 1.75, 3.5, 2.0**-126, 2.0**-130, 1e-38, 3e38, 240.0, 6e-8]
    )
    rows = (torch.rand(len(largest), 32) * 2 - 1) * largest[:, None]
    rows[:, 5] = -largest
    return rows.to(BF16)


@pytest.mark.parametrize("rows", [X, hard_rows(), X.float(), X.half()], ids=["drawn", "hard", "fp32", "fp16"])
@pytest.mark.parametrize("graph", [graph for graph, _ in SPELLINGS])
def test_one_kernel_has_the_bits_of_the_graph(graph: Callable[..., Any], rows: Tensor) -> None:
    captured = capture(graph, (rows,))
    gm = captured.graphs[0]
    plan = Pipeline.from_text(PIPELINE, strict=True).run(gm).context.plan
    assert plan is not None and len(plan.welds) == 1
    with exact_casts():
        results = gm(*captured.inputs[0])
    for got, expected in zip(results, graph(rows), strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


def packed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Four scales in an integer, as DeepGEMM reads them."""
    g = x.float().view(*x.shape[:-1], -1, 128)
    scale = torch.exp2(torch.ceil(torch.log2(g.abs().amax(-1, keepdim=True).clamp(1e-4) / 448.0)))
    codes = (g / scale).clamp(-448.0, 448.0).to(E4M3).view(x.shape)
    return codes, (scale.squeeze(-1).view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)


def packed_column_major(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = packed(x)
    return codes, scales.t().contiguous().t()


@pytest.mark.parametrize("graph", [packed, packed_column_major])
def test_packed_scales(graph: Callable[..., Any]) -> None:
    rows = torch.randn(5, 1024).to(BF16)
    captured = capture(graph, (rows,))
    gm = captured.graphs[0]
    plan = Pipeline.from_text(PIPELINE, strict=True).run(gm).context.plan
    assert plan is not None
    assert [weld.name for weld in plan.welds] == ["quant_scale_quant_e8m0"]
    with exact_casts():
        results = gm(*captured.inputs[0])
    for got, expected in zip(results, graph(rows), strict=True):
        assert got.stride() == expected.stride()
        assert torch.equal(got.float(), expected.float())


def test_a_byte_alone(raised: Callable[..., Any]) -> None:
    result = raised(lambda s: (s.view(torch.int32) >> 23).to(torch.uint8), torch.rand(3, 4))
    assert result.only == E8M0()
    assert result.operands == ["s_1"]


def test_bytes_that_do_not_follow_each_other_are_not_packed(raised: Callable[..., Any]) -> None:
    def graph(s: Tensor) -> Tensor:
        return (s.permute(1, 0, 2).view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)

    result = raised(graph, torch.rand(4, 3, 8))
    assert result.of("e8m0") == []
    assert "reads the result by its strides" in result.reason("e8m0")


def shifted_up(x: Tensor) -> Tensor:
    return coded(x, torch.exp2(torch.floor(torch.log2(blocks(x).abs().amax(-1))) + 3))


def beyond_a_scale(x: Tensor) -> Tensor:
    exponent = torch.floor(torch.log2(blocks(x).abs().amax(-1))).clamp(-140, 127)
    return coded(x, torch.exp2(exponent))


NEAR = [
    (shifted_up, "quant_scale", "the exponent of %amax is shifted by 3"),
    (beyond_a_scale, "quant_scale", "the exponent of %amax may be from -140.0 to 127.0, which are no scales"),
]


@pytest.mark.parametrize(("graph", "kind", "reason"), NEAR, ids=[case[0].__name__ for case in NEAR])
def test_near_misses(raised: Callable[..., Any], graph: Callable[..., Any], kind: str, reason: str) -> None:
    result = raised(graph, X)
    assert result.of(kind) == []
    assert reason in result.reason(kind)


OTHERS = [
    lambda s: (s.view(torch.int32) >> 22).to(torch.uint8),
    lambda s: (s.view(torch.int32) >> 23).to(torch.int16),
    lambda s: (s.to(torch.int32) >> 23).to(torch.uint8),
    lambda s: torch.exp2(torch.ceil(torch.log2(s))),
    lambda s: torch.ceil(torch.log2(s)).clamp(0, 254).to(torch.uint8),
]


@pytest.mark.parametrize("graph", OTHERS)
def test_others_are_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, torch.rand(3, 4) + 0.5)
    assert result.words == [] and result.misses == ()
