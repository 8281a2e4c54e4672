"""Graphs that look like RMSNorm and are none: nothing is raised, and the reason names the cause."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import RMSNorm
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.rms_norm import RMSNormPattern

EPS = 1e-6
WIDTH = 8
aten = torch.ops.aten


def mean_over_rows(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS)


def mean_over_two_dims(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + EPS)


def eps_outside_the_root(x: Tensor, y: Tensor) -> Tensor:
    return x * (torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) + EPS)


def eps_outside_the_divisor(x: Tensor, y: Tensor) -> Tensor:
    return x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + EPS)


def eps_as_lower_bound(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(EPS))


def variance_also_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    variance = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(variance + EPS), variance


def root_used_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return x * root, y * root


def square_used_outside(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    square = x.pow(2)
    return x * torch.rsqrt(square.mean(-1, keepdim=True) + EPS), square


def in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def in_float16(x: Tensor, y: Tensor) -> Tensor:
    h = x.half()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def in_float64(x: Tensor, y: Tensor) -> Tensor:
    h = x.double()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def float64_input_rounded_down(x: Tensor, y: Tensor) -> Tensor:
    h = x.double() + 1
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS).float()


def another_numerator(x: Tensor, y: Tensor) -> Tensor:
    return y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def shifted_numerator(x: Tensor, y: Tensor) -> Tensor:
    return (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def mean_of_abs(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + EPS)


def mean_of_cubes(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + EPS)


def mean_of_product(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt((x * y).mean(-1, keepdim=True) + EPS)


def divided_by_n_minus_one(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) / (WIDTH - 1) + EPS)


def root_rounded(x: Tensor, y: Tensor) -> Tensor:
    h = x.bfloat16()
    return h * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + EPS).bfloat16()


def statistic_along_the_wrong_axis(x: Tensor, y: Tensor) -> Tensor:
    square = x[0, :, :7]
    return square * torch.rsqrt(square.pow(2).mean(-1) + EPS)


def divided_by_the_inverse(x: Tensor, y: Tensor) -> Tensor:
    return x / torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def eps_is_an_input(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + y)


def rows_repeated(x: Tensor, y: Tensor) -> Tensor:
    column = x[..., :1]
    return column * torch.rsqrt(column.pow(2).mean(-1, keepdim=True) + EPS).expand(2, 7, WIDTH)


CASES = [
    (mean_over_rows, "the mean runs over dimensions [1] of [2, 7, 8], not over the last alone"),
    (mean_over_two_dims, "the mean runs over dimensions [1, 2] of [2, 7, 8], not over the last alone"),
    (eps_outside_the_root, "adds to the root after it is taken: eps is outside the root"),
    (eps_outside_the_divisor, "adds to the root after it is taken: eps is outside the root"),
    (eps_as_lower_bound, "eps is a lower bound of the statistic in %clamp_min, not added to it"),
    (variance_also_returned, "the inner value %mean is also used by %output"),
    (root_used_twice, "the root %rsqrt is used by 2 nodes"),
    (square_used_outside, "is also used by %output"),
    (in_bfloat16, "the mean is computed in bfloat16, not in float32"),
    (in_float16, "the mean is computed in float16, not in float32"),
    (in_float64, "the mean is computed in float64, not in float32"),
    (float64_input_rounded_down, "the mean is computed in float64, not in float32"),
    (another_numerator, "normalises %y_1, which is not the value whose squares are under the root"),
    (shifted_numerator, "normalises %add, which is not the value whose squares are under the root"),
    (mean_of_abs, "the mean is of %abs_1, which is no square"),
    (mean_of_cubes, "the mean is of %pow_1, which is no square"),
    (mean_of_product, "the mean is of %mul, which is no square"),
    (divided_by_n_minus_one, "is divided by 7, not by the width 8"),
    (root_rounded, "the root %rsqrt is rounded to bfloat16 before it is used"),
    (statistic_along_the_wrong_axis, "has shape [7], which is not one number for each row of [7, 7]"),
    (rows_repeated, "repeats the rows of %slice"),
    (divided_by_the_inverse, "does not normalise by the root %rsqrt"),
]


@pytest.mark.parametrize(("graph", "reason"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_not_an_rms_norm(raised: Callable[..., Any], graph: Callable[..., Any], reason: str) -> None:
    x, y = torch.randn(2, 7, WIDTH), torch.randn(2, 7, WIDTH)
    result = raised(graph, x, y)
    assert result.of("rms_norm") == []
    assert reason in "\n".join(miss.reason for miss in result.misses)


def test_eps_that_is_an_input(raised: Callable[..., Any]) -> None:
    """What ``dynamic=True`` makes of an eps unless floats are specialised."""
    result = raised(eps_is_an_input, torch.randn(2, 7, WIDTH), torch.tensor(EPS))
    assert result.words == []
    assert result.reason("rms_norm") == "eps is the graph input %y_1, not a constant"


SOMETHING_ELSE = [
    lambda x, y: x * torch.rsqrt(y.var(-1, keepdim=True, correction=1) + EPS),
    lambda x, y: (x - y) * torch.rsqrt(y + EPS),
    lambda x, y: x.pow(-1 / 3),
    lambda x, y: torch.sqrt(x.abs()) * y,
]


@pytest.mark.parametrize("graph", SOMETHING_ELSE)
def test_a_root_of_something_else_is_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, torch.randn(2, 7, WIDTH), torch.rand(2, 7, WIDTH))
    assert result.words == []
    assert [miss for miss in result.misses if miss.kind == "rms_norm"] == []


FACTORS = [
    ((7, 1), torch.float32, "the factor %w_1 has shape [7, 1], a weight has shape [8]"),
    ((7, WIDTH), torch.float32, "the factor %w_1 has shape [7, 8], a weight has shape [8]"),
    ((2, 7, 1), torch.float32, "the factor %w_1 has shape [2, 7, 1], a weight has shape [8]"),
    ((1,), torch.float32, "the factor %w_1 has shape [1], a weight has shape [8]"),
    ((WIDTH,), torch.float64, "the weight %w_1 is float64"),
]


@pytest.mark.parametrize(("shape", "dtype", "reason"), FACTORS, ids=str)
def test_a_factor_that_is_no_weight_stays_outside(
    raised: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, reason: str
) -> None:
    """The norm without a weight is still one; the product is left as it is, and the match says why."""
    x, w = torch.randn(2, 7, WIDTH), torch.randn(shape).to(dtype)

    def graph(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w

    result = raised(graph, x, w)
    assert result.only == RMSNorm(EPS, "none")
    (call,) = result.calls
    assert [user.target for user in call.users] == [aten.mul.Tensor]
    match = first_match(graph, x, w)
    assert match.stopped is not None
    assert match.stopped.reason == reason


def first_match(graph: Callable[..., Tensor], *inputs: Tensor) -> Match:
    gm = make_fx(graph, tracing_mode="fake")(*inputs)
    (anchor,) = gm.graph.find_nodes(op="call_function", target=aten.rsqrt.default)
    found = RMSNormPattern().match(anchor)
    assert isinstance(found, Match)
    return found


def fused(normalized: list[int], *, second: bool) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x_1")
    both = graph.call_function(aten._fused_rms_norm.default, (x, normalized, None, EPS))
    results = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
    graph.output(tuple(results) if second else results[0])
    return fx.GraphModule(torch.nn.Module(), graph)


def test_fused_with_its_root_used(raised: Callable[..., Any]) -> None:
    result = raised(fused([WIDTH], second=True), torch.randn(2, 7, WIDTH))
    assert result.words == []
    assert result.reason("rms_norm").startswith("its second result, the inverse root of %")


def test_fused_over_two_dims(raised: Callable[..., Any]) -> None:
    result = raised(fused([7, WIDTH], second=False), torch.randn(2, 7, WIDTH))
    assert result.words == []
    assert result.reason("rms_norm").endswith("normalises the last 2 dimensions")


def test_pattern_reports_the_node_at_fault() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 8, device="meta")
    root = graph.call_function(aten.rsqrt.default, (x,))
    root.meta["val"] = x.meta["val"]
    found = RMSNormPattern().match(root)
    assert not found
    assert found.node is x
    assert found.stage == 0
