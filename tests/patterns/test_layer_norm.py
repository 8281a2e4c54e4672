"""LayerNorm in every spelling becomes one word; what only looks like it says why it is none."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kernelweld.ir import LayerNorm, RMSNorm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16 = torch.bfloat16
EPS = 1e-5
WIDTH = 64
native_layer_norm = torch.ops.aten.native_layer_norm.default


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def functional(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), w, b, EPS)


def without_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), w, None, EPS)


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), None, None, EPS)


def by_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    centred = h - h.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)
    return (normed * w + b).to(x.dtype)


def divided_by_deviation(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    variance = h.var(-1, keepdim=True, correction=0)
    return ((h - h.mean(-1, keepdim=True)) / torch.sqrt(variance + EPS) * w + b).to(x.dtype)


def rounded_at_every_step(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    var, mean = torch.var_mean(h, -1, correction=0, keepdim=True)
    return ((h - mean) * torch.rsqrt(var + EPS)).to(x.dtype) * w + b


FULL = LayerNorm(EPS, dtype=BF16)
STEPS = LayerNorm(EPS, normed_dtype=BF16, scaled_dtype=BF16, dtype=BF16)

#: Spelling, the word in bfloat16, operands, whether eager bits are the word's own.
SPELLINGS = [
    (functional, FULL, ["x_1", "w_1", "b_1"], True),
    (without_bias, FULL, ["x_1", "w_1", None], True),
    (plain, FULL, ["x_1", None, None], True),
    (by_hand, FULL, ["x_1", "w_1", "b_1"], False),
    (divided_by_deviation, FULL, ["x_1", "w_1", "b_1"], False),
    (rounded_at_every_step, STEPS, ["x_1", "w_1", "b_1"], True),
]


def in_dtype(word: LayerNorm, dtype: torch.dtype) -> LayerNorm:
    fields = ("normed_dtype", "scaled_dtype", "dtype")
    return replace(word, **{f: dtype for f in fields if getattr(word, f) == BF16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("spelling", "word", "operands", "exact"), SPELLINGS, ids=lambda v: getattr(v, "__name__", "")
)
def test_spelling(
    raised: Callable[..., Any],
    spelling: Callable[..., Tensor],
    word: LayerNorm,
    operands: list[str | None],
    exact: bool,
    dtype: torch.dtype,
) -> None:
    x, w, b = tensors(dtype, (2, 7, WIDTH), (WIDTH,), (WIDTH,))
    result = raised(spelling, x, w, b, exact=exact)
    assert result.only == in_dtype(word, dtype)
    assert result.operands == operands
    assert result.misses == ()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operator(raised: Callable[..., Any], dtype: torch.dtype) -> None:
    """The torch-op dialect; eager's own kernel sums in another order than the reference."""
    x, w, b = tensors(dtype, (2, 7, WIDTH), (WIDTH,), (WIDTH,))
    result = raised(functional, x, w, b, decompose=False, exact=False)
    assert result.only == LayerNorm(EPS, dtype=dtype)
    assert result.operands == ["x_1", "w_1", "b_1"]


def test_weight_and_bias_in_float32(raised: Callable[..., Any]) -> None:
    (x,), (w, b) = tensors(BF16, (2, 7, WIDTH)), tensors(torch.float32, (WIDTH,), (WIDTH,))
    assert raised(by_hand, x, w, b, exact=False).only == FULL


def wrong_correction(x: Tensor, y: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=1) + EPS)


def variance_over_rows(x: Tensor, y: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + EPS)


def mean_of_another(x: Tensor, y: Tensor) -> Tensor:
    centred = x - y.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)


def centred_by_another(x: Tensor, y: Tensor) -> Tensor:
    var = x.var(-1, keepdim=True, correction=0)
    return (x - y.mean(-1, keepdim=True)) * torch.rsqrt(var + EPS)


def not_centred(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + EPS)


def eps_outside(x: Tensor, y: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(var) + EPS)


def mean_used_outside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + EPS), mean


def in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    centred = h - h.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)


NEGATIVES = [
    (wrong_correction, "the variance is divided by N - 1, not by N"),
    (variance_over_rows, "the variance runs over dimensions [1] of [2, 7, 64], not over the last alone"),
    (centred_by_another, "subtracts the mean of %y_1 from %x_1"),
    (not_centred, "normalises %x_1, which is not the value whose squares are under the root"),
    (eps_outside, "adds to the root after it is taken: eps is outside the root"),
    (mean_used_outside, "is also used by %output"),
    (in_bfloat16, "the mean is computed in bfloat16, not in float32"),
]


@pytest.mark.parametrize(("graph", "reason"), NEGATIVES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_a_layer_norm(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    x, y = tensors(torch.float32, (2, 7, WIDTH), (2, 7, WIDTH))
    result = raised(graph, x, y + 1)
    assert result.words == []
    assert reason in "\n".join(miss.reason for miss in result.misses)


def test_centred_by_another_mean_is_an_rms_norm(raised: Callable[..., Any]) -> None:
    """What is normalised is ``x - mean(y)``, whatever that is: an RMSNorm of it, and no LayerNorm."""
    x, y = tensors(torch.float32, (2, 7, WIDTH), (2, 7, WIDTH))
    result = raised(mean_of_another, x, y + 1)
    assert result.only == RMSNorm(EPS, "none")
    assert result.operands[0] == "sub"


def operator_graph(normalized: list[int], result: int) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x_1")
    triple = graph.call_function(native_layer_norm, (x, normalized, None, None, EPS))
    graph.output(tuple(graph.call_function(operator.getitem, (triple, i)) for i in (0, result)))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_operator_with_its_mean_used(raised: Callable[..., Any]) -> None:
    result = raised(operator_graph([WIDTH], 1), torch.randn(2, 7, WIDTH))
    assert result.words == []
    assert "a result besides the normalised value of %native_layer_norm_default is used" in result.reason(
        "layer_norm"
    )


def test_operator_over_two_dims(raised: Callable[..., Any]) -> None:
    result = raised(operator_graph([7, WIDTH], 0), torch.randn(2, 7, WIDTH))
    assert result.words == []
    assert result.reason("layer_norm") == "%native_layer_norm_default normalises the last 2 dimensions"
