"""torch's quantization operators are words where their zero point is zero; else they say why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.integrations.aot import capture
from kernelweld.ir import Quant, RMSNorm
from kernelweld.passes.pipeline import Pipeline

OPS = torch.ops.quantized_decomposed
I8, E4M3 = torch.int8, torch.float8_e4m3fn
X = torch.randn(5, 256) * 4
SCALE, ZERO = torch.tensor([0.037]), torch.zeros(1, dtype=torch.int64)
ROWS = torch.rand(5, 1) + 0.01


def by_number(x: Tensor) -> Tensor:
    result: Tensor = OPS.quantize_per_tensor(x, 0.037, 0, -128, 127, I8)
    return result


def by_tensor(x: Tensor, scale: Tensor) -> Tensor:
    zero = torch.zeros(1, dtype=torch.int64)
    result: Tensor = OPS.quantize_per_tensor.tensor(x, scale, zero, -127, 127, I8)
    return result


def per_token(x: Tensor, scale: Tensor) -> Tensor:
    zero = torch.zeros(5, 1, dtype=torch.int64)
    result: Tensor = OPS.quantize_per_token(x, scale, zero, -128, 127, I8)
    return result


def in_aten(x: Tensor, scale: Tensor) -> Tensor:
    return (torch.round(x * scale.reciprocal()) + 0).clamp(-128, 127).to(I8)


def in_aten_with_the_zero_first(x: Tensor, scale: Tensor) -> Tensor:
    return x.mul(scale.reciprocal()).add(0).round().clamp(-128, 127).to(I8)


RECIPROCAL = Quant(-128.0, 127.0, "reciprocal", I8)
CASES = [
    (by_number, (X,), Quant(-128.0, 127.0, "multiply", I8, 1.0 / 0.037)),
    (by_number, (X.bfloat16(),), Quant(-128.0, 127.0, "multiply", I8, 1.0 / 0.037)),
    (by_tensor, (X, SCALE), Quant(-127.0, 127.0, "reciprocal", I8)),
    (by_tensor, (X.bfloat16(), SCALE[0]), Quant(-127.0, 127.0, "reciprocal", I8)),
    (per_token, (X, ROWS), RECIPROCAL),
    (per_token, (X.bfloat16(), ROWS), RECIPROCAL),
    (in_aten, (X, SCALE), RECIPROCAL),
    (in_aten_with_the_zero_first, (X, ROWS), RECIPROCAL),
]


@pytest.mark.parametrize(("graph", "inputs", "word"), CASES)
def test_it_is_a_word_bit_for_bit(raised: Callable[..., Any], graph: Any, inputs: Any, word: Quant) -> None:
    result = raised(graph, *inputs)
    assert result.only == word and result.misses == ()


def test_reciprocals_of_doubles_have_the_bits_of_float32() -> None:
    """An element of a tensor is inverted as a double, and that is rounded."""
    torch.manual_seed(1)
    scales = torch.rand(1 << 16) + 0.5
    assert torch.equal((1.0 / scales.double()).float(), 1.0 / scales)


def test_behind_a_norm_it_is_one_launch() -> None:
    def chain(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        return by_tensor(normed, scale)

    gm = capture(chain, (X, X[0], SCALE)).graphs[0]
    result = Pipeline.from_text("canonicalize,raise,plan{keep-all=true},verify-welds", strict=True).run(gm)
    assert result.context.plan is not None
    (weld,) = result.context.plan.welds
    assert {type(word) for chain in weld.chains for word in chain.words} == {RMSNorm, Quant}


NEAR = [
    (lambda x: OPS.quantize_per_tensor(x, 0.037, 3, -128, 127, I8), (X,), "has a zero point, 3"),
    (
        lambda x, z: OPS.quantize_per_tensor.tensor(x, torch.ones(1), z, -128, 127, I8),
        (X, ZERO),
        "the zero point %arg1_1 of %quantize_per_tensor is a value of the graph",
    ),
    (
        lambda x: OPS.quantize_per_tensor(x, 0.037, 0, -448, 448, E4M3),
        (X,),
        "rounds to whole numbers before it becomes float8_e4m3fn; write (x / scale).clamp(",
    ),
    (lambda x: OPS.quantize_per_tensor(x, 0.037, 0, 0, 255, torch.uint8), (X,), "are uint8, not int8"),
    (
        lambda x, s: OPS.quantize_per_token(x, s, torch.zeros(5, 1), -128, 127, I8),
        (X, ROWS.double()),
        "is float64 [5, 1], neither one float32 nor one for each row",
    ),
    (
        lambda x, s: OPS.quantize_per_channel(x, s, torch.zeros(5, dtype=torch.int64), 0, -128, 127, I8),
        (X, ROWS[:, 0]),
        "its scales are a vector",
    ),
    (
        lambda x: OPS.dequantize_per_tensor(x, 0.037, 0, -128, 127, I8),
        (X.to(I8),),
        "it gives values for codes, which no word does",
    ),
    (lambda x: OPS.choose_qparams_per_token(x, I8), (X,), "float32 where the graph says float64"),
]


@pytest.mark.parametrize(("graph", "inputs", "reason"), NEAR)
def test_near_misses(reason: str, graph: Any, inputs: Any) -> None:
    gm = capture(graph, inputs, stop=True).graphs[0]
    (miss,) = Pipeline.from_text("canonicalize,raise", strict=True).run(gm).context.near_misses
    assert miss.kind == "quant" and reason in miss.reason
