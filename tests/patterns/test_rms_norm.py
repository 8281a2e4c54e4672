"""RMSNorm in every spelling becomes one word with the right fields; what only looks like it says why."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from kernelweld.ir import RMSNorm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-6
WIDTH = 64


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def llama(x: Tensor, w: Tensor) -> Tensor:
    h = x.to(torch.float32)
    variance = h.pow(2).mean(-1, keepdim=True)
    return w * (h * torch.rsqrt(variance + EPS)).to(x.dtype)


def olmo(x: Tensor, w: Tensor) -> Tensor:
    h = x.to(torch.float32)
    h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + EPS)
    return (w * h).to(x.dtype)


def gemma(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return (h * (1.0 + w.float())).type_as(x)


def no_weight(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def weight_upcast(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * h * w.float()).to(x.dtype)


def sum_over_n(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt((h * h).sum(-1, keepdim=True) / WIDTH + EPS)).to(x.dtype)


def sum_times_inverse(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt((h * h).sum(-1, keepdim=True) * (1 / WIDTH) + EPS)).to(x.dtype)


def one_over_sqrt(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * (1 / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + EPS))).to(x.dtype)


def reciprocal_sqrt(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.sqrt(h.pow(2).mean(-1, keepdim=True) + EPS).reciprocal()).to(x.dtype)


def minus_half_power(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * (h.pow(2).mean(-1, keepdim=True) + EPS).pow(-0.5)).to(x.dtype)


def divided_by_sqrt(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def half_power_divisor(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h / (h.pow(2).mean(-1, keepdim=True) + EPS).pow(0.5)).to(x.dtype)


def unsqueezed_statistic(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1) + EPS).unsqueeze(-1)).to(x.dtype)


def expanded_statistic(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS).expand(x.shape)).to(x.dtype)


def scalar_tensor_eps(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + torch.full((), EPS))).to(x.dtype)


def eps_first(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(EPS + h.pow(2).mean(2, keepdim=True))).to(x.dtype)


def add_scalar_eps(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(torch.ops.aten.add.Scalar(h.pow(2).mean(-1, keepdim=True), EPS))).to(x.dtype)


def shaped_weight(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * w[None, None].expand(
        x.shape
    )


ROUND_FIRST = RMSNorm(EPS, "w", normed_dtype=torch.bfloat16, dtype=torch.bfloat16)
ROUND_LAST = RMSNorm(EPS, "w", dtype=torch.bfloat16)

#: Spelling, the word in bfloat16, whether eager bits are the word's own.
SPELLINGS = [
    (llama, ROUND_FIRST, True),
    (olmo, ROUND_LAST, True),
    (gemma, RMSNorm(EPS, "1+w", dtype=torch.bfloat16), True),
    (no_weight, RMSNorm(EPS, "none", dtype=torch.bfloat16), True),
    (weight_upcast, ROUND_LAST, True),
    (sum_over_n, ROUND_FIRST, True),
    (sum_times_inverse, ROUND_FIRST, True),
    (one_over_sqrt, ROUND_FIRST, False),
    (reciprocal_sqrt, ROUND_FIRST, False),
    (minus_half_power, ROUND_FIRST, False),
    (divided_by_sqrt, ROUND_FIRST, False),
    (half_power_divisor, ROUND_FIRST, False),
    (unsqueezed_statistic, ROUND_FIRST, True),
    (expanded_statistic, ROUND_FIRST, True),
    (scalar_tensor_eps, ROUND_FIRST, True),
    (eps_first, ROUND_FIRST, True),
    (add_scalar_eps, ROUND_FIRST, True),
    (shaped_weight, ROUND_FIRST, True),
]


def in_dtype(word: RMSNorm, dtype: torch.dtype) -> RMSNorm:
    """The word of the same source with another dtype of its inputs."""
    fields = ("normed_dtype", "scaled_dtype", "dtype")
    return replace(word, **{f: dtype for f in fields if getattr(word, f) == torch.bfloat16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "word", "exact"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spelling(
    raised: Callable[..., Any],
    spelling: Callable[..., Tensor],
    word: RMSNorm,
    exact: bool,
    dtype: torch.dtype,
) -> None:
    x, w = tensors(dtype, (2, 7, WIDTH), (WIDTH,))
    result = raised(spelling, x, w, exact=exact)
    assert result.only == in_dtype(word, dtype)
    assert result.operands == ["x_1", "w_1" if word.scale != "none" else None, None]
    assert result.misses == ()


def test_functional(raised: Callable[..., Any]) -> None:
    """``F.rms_norm`` scales in float32, and its eps has passed through float32."""
    x, w = tensors(torch.bfloat16, (2, 7, WIDTH), (WIDTH,))
    result = raised(lambda x, w: F.rms_norm(x, (WIDTH,), w, EPS), x, w, compiled=True)
    assert result.only == replace(ROUND_LAST, eps=float(torch.tensor(EPS)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("eps", [EPS, None])
@pytest.mark.parametrize("op", ["_fused_rms_norm", "rms_norm"])
def test_operator(raised: Callable[..., Any], op: str, eps: float | None, dtype: torch.dtype) -> None:
    """The torch-op dialect. Without eps the operator takes that of float32, in which it computes."""
    x, w = tensors(dtype, (2, 7, WIDTH), (WIDTH,))
    call = getattr(torch.ops.aten, op).default
    result = raised(graph_with(call, [WIDTH], eps, first=op.startswith("_")), x, w)
    assert result.only == RMSNorm(torch.finfo(torch.float32).eps if eps is None else eps, "w", dtype=dtype)


def graph_with(call: Any, normalized: list[int], eps: float | None, *, first: bool) -> Callable[..., Tensor]:
    """A graph of one call of a norm operator, made by hand: tracing would decompose it."""
    graph = fx.Graph()
    x, w = graph.placeholder("x_1"), graph.placeholder("w_1")
    result = graph.call_function(call, (x, normalized, w, eps))
    graph.output(graph.call_function(operator.getitem, (result, 0)) if first else result)
    return fx.GraphModule(torch.nn.Module(), graph)


def silu_gated(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    """Qwen3.5's norm of gated delta networks."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return (w * h.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


def sigmoid_gated(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w.float()
    return (torch.sigmoid(gate.float()) * h).to(x.dtype)


def gated_without_weight(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return (h * F.silu(gate.float())).to(x.dtype)


def gate_first(x: Tensor, w: Tensor, gate: Tensor) -> Tensor:
    """Mamba-2's norm of a gated value."""
    h = x.float() * F.silu(gate.float())
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return w * h.to(x.dtype)


BF16 = torch.bfloat16
GATED = [
    (silu_gated, RMSNorm(EPS, "w", "silu", normed_dtype=BF16, scaled_dtype=BF16, dtype=BF16)),
    (sigmoid_gated, RMSNorm(EPS, "w", "sigmoid", dtype=BF16)),
    (gated_without_weight, RMSNorm(EPS, "none", "silu", dtype=BF16)),
    (gate_first, RMSNorm(EPS, "w", "silu", gate_first=True, normed_dtype=BF16, dtype=BF16)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spelling", "word"), GATED, ids=lambda v: getattr(v, "__name__", ""))
def test_gated(
    raised: Callable[..., Any], spelling: Callable[..., Tensor], word: RMSNorm, dtype: torch.dtype
) -> None:
    x, gate, w = tensors(dtype, (6, WIDTH), (6, WIDTH), (WIDTH,))
    result = raised(spelling, x, w, gate)
    assert result.only == in_dtype(word, dtype)
    assert result.operands == ["x_1", "w_1" if word.scale == "w" else None, "gate_1"]


def test_a_rounded_gate_is_a_word_of_its_own(raised: Callable[..., Any]) -> None:
    x, gate, w = tensors(BF16, (6, WIDTH), (6, WIDTH), (WIDTH,))
    result = raised(lambda x, w, gate: llama(x, w) * F.silu(gate), x, w, gate)
    assert [word.kind for word in result.words] == ["rms_norm", "gate_mul"]
    assert result.words[0] == ROUND_FIRST


def test_fp32_weight_of_a_bf16_norm(raised: Callable[..., Any]) -> None:
    """The product is promoted to float32 without a cast in the graph."""
    x, w = *tensors(BF16, (6, WIDTH)), *tensors(torch.float32, (WIDTH,))
    result = raised(llama, x, w)
    assert result.only == RMSNorm(EPS, "w", normed_dtype=BF16, dtype=torch.float32)


def test_one_plus_weight_rounded_is_a_plain_weight(raised: Callable[..., Any]) -> None:
    x, w = tensors(BF16, (6, WIDTH), (WIDTH,))
    result = raised(lambda x, w: llama(x, 1 + w), x, w)
    assert result.only == ROUND_FIRST
    assert result.operands[1] != "w_1"


def test_per_head_and_strided(raised: Callable[..., Any]) -> None:
    """A norm of each head of a slice of a packed projection: the word reads the view."""
    packed, w = tensors(BF16, (2, 3, 8 * 16), (16,))
    result = raised(lambda p, w: llama(p[..., 16:80].reshape(2, 3, 4, 16).transpose(1, 2), w), packed, w)
    assert result.only == ROUND_FIRST


def test_shared_upcast(raised: Callable[..., Any]) -> None:
    """The upcast of the input is recomputed by the word; others go on reading it."""
    x, w = tensors(BF16, (6, WIDTH), (WIDTH,))
    result = raised(lambda x, w: (llama(x, w), x.float().sum(-1)), x, w)
    assert result.only == ROUND_FIRST
    assert result.operands[0] == "x_1"


def test_two_norms_of_one_value(raised: Callable[..., Any]) -> None:
    """They are one word up to where they part: the statistic is computed once."""
    x, w, v = tensors(BF16, (6, WIDTH), (WIDTH,), (WIDTH,))
    result = raised(lambda x, w, v: (llama(x, w), gemma(x, v)), x, w, v)
    assert result.only == RMSNorm(EPS, "none", dtype=torch.float32)


def test_output_used_before_its_cast(raised: Callable[..., Any]) -> None:
    """The float32 value has two users, so the word ends there and the cast stays outside."""

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS) * w.float()
        return h, h.to(x.dtype)

    x, w = tensors(BF16, (6, WIDTH), (WIDTH,))
    assert raised(both, x, w).only == RMSNorm(EPS, "w", dtype=torch.float32)


def test_no_eps(raised: Callable[..., Any]) -> None:
    (x,) = tensors(torch.float32, (6, WIDTH))
    result = raised(lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True)), x)
    assert result.only == RMSNorm(0.0, "none")
