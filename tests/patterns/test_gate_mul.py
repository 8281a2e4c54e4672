"""Gates in every spelling become one word; what only looks like one says why it is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelweld.ir import GateMul

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16 = torch.bfloat16


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def silu_other_order(gate: Tensor, up: Tensor) -> Tensor:
    return up * F.silu(gate)


def silu_not_rounded(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up).to(gate.dtype)


def silu_by_hand(gate: Tensor, up: Tensor) -> Tensor:
    h = gate.float()
    return (h / (1 + torch.exp(-h)) * up.float()).to(gate.dtype)


def silu_by_sigmoid(gate: Tensor, up: Tensor) -> Tensor:
    h = gate.float()
    return (h * torch.sigmoid(h)).to(gate.dtype) * up


def sigmoid(gate: Tensor, up: Tensor) -> Tensor:
    return up * torch.sigmoid(gate)


def sigmoid_by_hand(gate: Tensor, up: Tensor) -> Tensor:
    return (1 / (1 + torch.exp(-gate.float()))).to(gate.dtype) * up


def sigmoid_by_reciprocal(gate: Tensor, up: Tensor) -> Tensor:
    return (1 + torch.exp(-gate.float())).reciprocal().to(gate.dtype) * up


def gelu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def gelu_by_hand(gate: Tensor, up: Tensor) -> Tensor:
    h = gate.float()
    inner = math.sqrt(2 / math.pi) * (h + 0.044715 * torch.pow(h, 3))
    return (0.5 * h * (1.0 + torch.tanh(inner))).to(gate.dtype) * up


def gelu_half_last(gate: Tensor, up: Tensor) -> Tensor:
    h = gate.float()
    inner = (h * h * h * 0.044715 + h) * 0.7978845608028654
    return (h * (torch.tanh(inner) + 1) * 0.5).to(gate.dtype) * up


def gelu_half_inside(gate: Tensor, up: Tensor) -> Tensor:
    h = gate.float()
    inner = 0.7978845608028654 * (h + 0.044715 * (h * (h * h)))
    return ((0.5 * (1 + torch.tanh(inner))) * h).to(gate.dtype) * up


SILU = GateMul("silu", BF16, BF16)
SIGMOID = GateMul("sigmoid", BF16, BF16)
GELU = GateMul("gelu_tanh", BF16, BF16)

#: Spelling, the word in bfloat16, whether eager bits are the word's own.
SPELLINGS = [
    (silu, SILU, True),
    (silu_other_order, SILU, True),
    (silu_not_rounded, replace(SILU, act_dtype=torch.float32), True),
    (silu_by_hand, replace(SILU, act_dtype=torch.float32), True),
    (silu_by_sigmoid, SILU, False),
    (sigmoid, SIGMOID, True),
    (sigmoid_by_hand, SIGMOID, False),
    (sigmoid_by_reciprocal, SIGMOID, False),
    (gelu_tanh, GELU, False),
    (gelu_by_hand, GELU, False),
    (gelu_half_last, GELU, False),
    (gelu_half_inside, GELU, False),
]


def in_dtype(word: GateMul, dtype: torch.dtype) -> GateMul:
    return replace(word, **{f: dtype for f in ("act_dtype", "dtype") if getattr(word, f) == BF16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "word", "exact"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spelling(
    raised: Callable[..., Any],
    spelling: Callable[..., Tensor],
    word: GateMul,
    exact: bool,
    dtype: torch.dtype,
) -> None:
    gate, up = tensors(dtype, (2, 7, 48), (2, 7, 48))
    result = raised(spelling, gate, up, exact=exact)
    assert result.only == in_dtype(word, dtype)
    assert result.operands == ["gate_1", "up_1"]
    assert result.misses == ()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "word"), [(silu, SILU), (sigmoid, SIGMOID), (gelu_tanh, GELU)])
def test_operator(
    raised: Callable[..., Any], spelling: Callable[..., Tensor], word: GateMul, dtype: torch.dtype
) -> None:
    """The torch-op dialect: ``aten.silu``, ``aten.sigmoid``, ``aten.gelu`` as they are."""
    gate, up = tensors(dtype, (2, 7, 48), (2, 7, 48))
    result = raised(spelling, gate, up, decompose=False, exact=False)
    assert result.only == in_dtype(word, dtype)


def packed_in_halves(packed: Tensor) -> Tensor:
    gate, up = packed.chunk(2, -1)
    return F.silu(gate) * up


def packed_in_pairs(packed: Tensor) -> Tensor:
    return F.silu(packed[..., 0::2]) * packed[..., 1::2]


def packed_per_head(packed: Tensor) -> Tensor:
    gate, up = packed.view(2, 7, 4, 24).chunk(2, -1)
    return F.silu(gate) * up


@pytest.mark.parametrize("spelling", [packed_in_halves, packed_in_pairs, packed_per_head])
def test_packed(raised: Callable[..., Any], spelling: Callable[..., Tensor]) -> None:
    """The operands are views of one tensor."""
    (packed,) = tensors(BF16, (2, 7, 96))
    assert raised(spelling, packed).only == SILU


def test_gate_of_a_whole_row(raised: Callable[..., Any]) -> None:
    """The shared expert's gate: one number a token."""
    gate, up = tensors(BF16, (14, 1), (14, 64))
    assert raised(sigmoid, gate, up).only == SIGMOID


def test_float32_up(raised: Callable[..., Any]) -> None:
    (gate,), (up,) = tensors(BF16, (14, 64)), tensors(torch.float32, (14, 64))
    assert raised(silu, gate, up).only == GateMul("silu", BF16, torch.float32)


def test_gpt_oss_gate(raised: Callable[..., Any]) -> None:
    """``x sigmoid(1.702 x)`` is a sigmoid gate of a scaled value."""
    gate, up = tensors(BF16, (14, 64), (14, 64))
    result = raised(lambda g, u: (g * torch.sigmoid(g * 1.702)) * (u + 1), gate, up)
    assert result.only == SIGMOID


def two_inner_values(x: Tensor, y: Tensor) -> Tensor:
    return x / (1 + torch.exp(-y)) * y


def sign_missing(x: Tensor, y: Tensor) -> Tensor:
    return x / (1 + torch.exp(x)) * y


def sigmoid_sign_missing(x: Tensor, y: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(x)) * y


def adds_two(x: Tensor, y: Tensor) -> Tensor:
    return x / (2 + torch.exp(-x)) * y


def in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    return h / (1 + torch.exp(-h)) * y.bfloat16()


def in_float64(x: Tensor, y: Tensor) -> Tensor:
    h = x.double()
    return torch.sigmoid(h) * y


def exponential_used_outside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    e = torch.exp(-x)
    return x / (1 + e) * y, e


def activation_used_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = F.silu(x)
    return a * y, a


def gelu_of_two_values(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y * y * y))) * y


def gelu_wrong_cubic(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.05 * x * x * x))) * y


def gelu_wrong_scale(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x * x * x))) * y


def gelu_minus_tanh(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * x * (2 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * y


def exponential_in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    return x.bfloat16().float() / (1 + torch.exp(-x.bfloat16())) * y


def gelu_cube_in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    inner = h.float() + 0.044715 * (h * h * h.float())
    return 0.5 * h.float() * (1 + torch.tanh(0.7978845608028654 * inner)) * y


NEGATIVES = [
    (two_inner_values, "the numerator is %x_1 and the exponential is of %y_1"),
    (sign_missing, "the exponential %exp is of %x_1, not of its negative"),
    (sigmoid_sign_missing, "the exponential %exp is of %x_1, not of its negative"),
    (adds_two, "adds 2, not 1"),
    (in_bfloat16, "the activation is computed in bfloat16, not in float32"),
    (exponential_in_bfloat16, "the activation is computed in bfloat16, not in float32"),
    (gelu_cube_in_bfloat16, "the activation is computed in bfloat16, not in float32"),
    (in_float64, "is float64"),
    (exponential_used_outside, "the inner value %exp is also used by %output"),
    (activation_used_twice, "is used by 2 nodes"),
    (gelu_of_two_values, "is not x + 0.044715 x^3 of the outer x, %x_1"),
    (gelu_wrong_cubic, "is not x + 0.044715 x^3 of the outer x, %x_1"),
    (gelu_wrong_scale, "is not scaled by sqrt(2/pi)"),
    (gelu_minus_tanh, "is 0.5 x (2 + tanh), not 0.5 x (1 + tanh)"),
]


@pytest.mark.parametrize(("graph", "reason"), NEGATIVES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_a_gate(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    x, y = tensors(torch.float32, (2, 7, 48), (2, 7, 48))
    result = raised(graph, x, y)
    assert result.words == []
    assert reason in result.reason("gate_mul")


def test_exact_gelu_in_the_torch_op_dialect(raised: Callable[..., Any]) -> None:
    gate, up = tensors(BF16, (2, 7, 48), (2, 7, 48))
    result = raised(lambda g, u: F.gelu(g) * u, gate, up, decompose=False)
    assert result.words == []
    assert result.reason("gate_mul") == "%gelu is the exact gelu, not its tanh form"


SOMETHING_ELSE = [
    lambda x, y: torch.softmax(x, -1) * y,
    lambda x, y: F.silu(x),
    lambda x, y: torch.sigmoid(x) + y,
    lambda x, y: torch.sigmoid(x) * 2.0,
    lambda x, y: torch.tanh(x / 50.0) * 50.0,
    lambda x, y: x / (1 + y) * y,
    lambda x, y: F.silu(x).transpose(1, 2).contiguous(),
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_something_else_is_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, *tensors(torch.float32, (2, 7, 48), (2, 7, 48)))
    assert result.words == []
    assert result.misses == ()
