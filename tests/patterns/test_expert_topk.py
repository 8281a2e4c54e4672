"""Routers as models spell them become two words; what only looks like one says why it is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelweld.ir import ExpertTopK, RouterScores
from kernelweld.ir.printer import format_graph

BF16, F32 = torch.bfloat16, torch.float32
GROUPS, SIZE = 4, 8
Router = Callable[..., tuple[Tensor, Tensor]]


def tensors(dtype: torch.dtype = F32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 24, generator=generator).to(dtype)
    weight = torch.randn(GROUPS * SIZE, 24, generator=generator).to(dtype)
    return x, weight, torch.randn(GROUPS * SIZE, generator=generator)


def kept(choice: Tensor, score: Tensor, top: int = 2) -> Tensor:
    ids = torch.topk(score, k=top, dim=-1)[1]
    mask = torch.zeros_like(score).scatter_(1, ids, 1)
    return mask.unsqueeze(-1).expand(-1, GROUPS, SIZE).reshape(-1, GROUPS * SIZE).bool()


def deepseek_v3(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return masked_with(float("-inf"), x, weight, bias)


def masked_with(fill: float, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = F.linear(x.float(), weight.float()).sigmoid()
    choice = scores + bias
    score = choice.view(-1, GROUPS, SIZE).topk(2, dim=-1)[0].sum(dim=-1)
    choice = choice.masked_fill(~kept(choice, score), fill)
    ids = torch.topk(choice, k=6, dim=-1)[1]
    weights = scores.gather(1, ids)
    weights /= weights.sum(dim=-1, keepdim=True) + 1e-20
    return weights * 2.5, ids


def deepseek_v2(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = F.linear(x.float(), weight.float()).softmax(-1)
    score = scores.view(-1, GROUPS, SIZE).max(dim=-1).values
    choice = scores.masked_fill(~kept(scores, score), float("-inf"))
    ids = torch.topk(choice, k=6, dim=-1)[1]
    return scores.gather(1, ids) * 16.0, ids


def minimax_m2(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(F.linear(x, weight).float())
    _, ids = torch.topk(scores + bias, 6, dim=-1)
    weights = scores.gather(1, ids)
    weights /= weights.sum(dim=-1, keepdim=True)
    return weights, ids


def qwen3_5(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, weight)
    values, ids = torch.topk(F.softmax(logits, dtype=torch.float, dim=-1), 6, dim=-1)
    values /= values.sum(dim=-1, keepdim=True)
    return values.to(logits.dtype), ids


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = F.linear(x, weight).softmax(-1).topk(6)
    return values, ids


SIGMOID, SOFTMAX = RouterScores("sigmoid"), RouterScores("softmax")
SPELLINGS: list[tuple[Router, RouterScores, ExpertTopK]] = [
    (deepseek_v3, SIGMOID, ExpertTopK(6, GROUPS, 2, eps=1e-20, scale=2.5)),
    (deepseek_v2, SOFTMAX, ExpertTopK(6, GROUPS, 2, renormalise=False, eps=0.0, scale=16.0)),
    (minimax_m2, SIGMOID, ExpertTopK(6, eps=0.0)),
    (qwen3_5, SOFTMAX, ExpertTopK(6, eps=0.0)),
    (plain, SOFTMAX, ExpertTopK(6, renormalise=False, eps=0.0)),
]


@pytest.mark.parametrize(("router", "scores", "choice"), SPELLINGS, ids=lambda v: getattr(v, "__name__", ""))
def test_spellings(
    raised: Callable[..., Any], router: Router, scores: RouterScores, choice: ExpertTopK
) -> None:
    result = raised(router, *tensors(), exact=False)
    assert result.words == [scores, choice]
    assert result.misses == ()


@pytest.mark.parametrize("router", [minimax_m2, qwen3_5, plain], ids=lambda v: v.__name__)
def test_whole_operators(raised: Callable[..., Any], router: Router) -> None:
    result = raised(router, *tensors(), exact=False, decompose=False)
    assert [word.kind for word in result.words] == ["router_scores", "expert_topk"]


@pytest.mark.parametrize("router", [minimax_m2, qwen3_5], ids=lambda v: v.__name__)
def test_logits_in_half_precision(raised: Callable[..., Any], router: Router) -> None:
    result = raised(router, *tensors(BF16), exact=False)
    assert [word.kind for word in result.words] == ["router_scores", "expert_topk"]
    assert result.words[0].logits_dtype == BF16


def test_upcasts_are_the_word_s_own(raised: Callable[..., Any]) -> None:
    result = raised(deepseek_v3, *tensors(BF16), exact=False)
    assert [arg.name for arg in result.calls[0].args] == ["x_1", "weight_1"]


def test_golden(raised: Callable[..., Any], golden: Callable[[str], None]) -> None:
    result = raised(deepseek_v3, *tensors(), exact=False)
    golden(f"{format_graph(result.before.graph)}\n\n{format_graph(result.gm.graph)}")


def of_logits(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = F.linear(x, weight).topk(6)
    return values, ids


def smallest(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = F.linear(x, weight).sigmoid().topk(6, largest=False)
    return values, ids


def biased_weights(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = (F.linear(x, weight).sigmoid() + bias).topk(6)
    return values, ids


def masked_with_zero(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return masked_with(0.0, x, weight, bias)


def largest_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = F.linear(x, weight).sigmoid()
    choice = scores + bias
    choice = choice.masked_fill(~kept(choice, choice.view(-1, GROUPS, SIZE).amax(-1)), float("-inf"))
    ids = torch.topk(choice, k=6, dim=-1)[1]
    return scores.gather(1, ids), ids


def bias_of_rows(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = F.linear(x, weight).sigmoid()
    ids = (scores + x[:, :1]).topk(6)[1]
    return scores.gather(1, ids), ids


def with_linear_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = F.linear(x, weight, bias).sigmoid().topk(6)
    return values, ids


NEGATIVES = [
    (smallest, "expert_topk", "is no choice of the largest in each row"),
    (biased_weights, "expert_topk", "are not gathered as weights"),
    (masked_with_zero, "expert_topk", "masks experts with another value than -inf"),
    (largest_with_bias, "expert_topk", "are compared by the largest choice with a bias"),
    (bias_of_rows, "expert_topk", "is float32 [5, 1], not a number for each expert"),
    (with_linear_bias, "router_scores", "are no product of two matrices"),
]


@pytest.mark.parametrize(("router", "kind", "reason"), NEGATIVES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_a_router(raised: Callable[..., Any], router: Router, kind: str, reason: str) -> None:
    result = raised(router, *tensors(), exact=False)
    assert result.of(kind) == []
    assert reason in result.reason(kind)


def test_a_top_k_of_anything_else_is_no_near_miss(raised: Callable[..., Any]) -> None:
    result = raised(of_logits, *tensors())
    assert (result.words, result.misses) == ([], ())
