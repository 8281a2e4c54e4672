"""Routing in one launch, interpreted: the reference's experts and weights, whatever the logits are."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.errors import BadOperand
from kernelweld.kernels.route import Rule, kernel, reference, route
from kernelweld.kernels.route_configs import MOST_ROWS, Config, config_for, dot, products
from kernelweld.kernels.route_launch import SLOT, SLOTS, choose, in_one, next_workspace, workspace

quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "kernels")))

BF16, F32 = torch.bfloat16, torch.float32
INF, NAN = math.inf, math.nan

PLAIN: dict[str, Any] = {
    "k": 4, "groups": 1, "top_groups": 1, "scoring": "sigmoid", "renormalise": True, "scale": 2.5
}  # fmt: skip
GROUPED = PLAIN | {"groups": 4, "top_groups": 2}
SOFTMAX = PLAIN | {"scoring": "softmax", "scale": 1.0}


def drawn(
    rows: int, width: int, experts: int, dtype: torch.dtype = BF16, weight: torch.dtype = BF16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + width + experts)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    w = (torch.randn(experts, width, generator=generator) / width**0.5).to(weight)
    return x, w, torch.randn(experts, generator=generator) * 0.3


def exact(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x and weight whose product is ``logits`` [M, E], whatever these are."""
    experts = logits.shape[1]
    return logits.contiguous(), torch.eye(experts)


def hold(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], experts: int) -> None:
    """The same experts in the same order, and their weights; ids valid and distinct in any case."""
    (weights, ids), (wanted, places) = actual, expected
    assert (weights.dtype, ids.dtype, ids.shape) == (F32, torch.int64, places.shape)
    assert ((ids >= 0) & (ids < experts)).all()
    assert (ids.sort().values.diff() > 0).all()
    assert ids.tolist() == places.tolist()
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("rows", [0, 1, 3, 16, 17])
@pytest.mark.parametrize("rule", [PLAIN, GROUPED, SOFTMAX], ids=["plain", "grouped", "softmax"])
def test_rows(rows: int, rule: dict[str, Any]) -> None:
    x, weight, bias = drawn(rows, 160, 16)
    hold(kernel(x, weight, bias, **rule), reference(x, weight, bias, **rule), 16)


@pytest.mark.parametrize("rows", [MOST_ROWS, MOST_ROWS + 1])
def test_about_the_last_row_of_one_launch(rows: int) -> None:
    x, weight, bias = drawn(rows, 64, 8)
    rule = PLAIN | {"k": 1}
    hold(kernel(x, weight, bias, **rule), reference(x, weight, bias, **rule), 8)


@pytest.mark.parametrize("experts", [24, 384])
@pytest.mark.parametrize("weight", [BF16, F32], ids=str)
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 3), (8, 4)])
def test_experts_and_groups(experts: int, weight: torch.dtype, groups: int, top_groups: int) -> None:
    x, w, bias = drawn(1, 96, experts, weight=weight)
    rule = PLAIN | {"k": 3, "groups": groups, "top_groups": top_groups}
    for given_bias in (bias, None):
        actual = in_one(x, w, given_bias, Rule(**rule), Config(128, 64))
        hold(actual, reference(x, w, given_bias, **rule), experts)


def test_strided_operands() -> None:
    x, weight, bias = drawn(3, 128, 16)
    wide = torch.full((3, 300), NAN, dtype=BF16)
    wide[:, 7:263:2] = x
    expected = reference(x, weight, bias, **PLAIN)
    columns = weight.t().contiguous().t()
    hold(kernel(wide[:, 7:263:2], columns, bias.repeat_interleave(2)[::2], **PLAIN), expected, 16)


@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("config", [Config(2, 32, 2, 1), Config(8, 64, 1, 4)], ids=str)
def test_rows_of_a_wider_tensor_without_bias(rows: int, config: Config) -> None:
    """Parts that divide the width are loaded without a mask, so that a wrong row would be read silently."""
    x, weight, _ = drawn(rows, 128, 32)
    wide = torch.full((rows, 256), NAN, dtype=BF16)
    wide[:, 128:] = x
    rule = PLAIN | {"k": 8, "groups": 8, "top_groups": 4}
    hold(in_one(wide[:, 128:], weight, None, Rule(**rule), config), reference(x, weight, **rule), 32)


@pytest.mark.parametrize("rule", [PLAIN, GROUPED, SOFTMAX], ids=["plain", "grouped", "softmax"])
def test_of_equal_choices_the_lowest_wins(rule: dict[str, Any]) -> None:
    logits = torch.zeros(3, 16)
    logits[1, ::2] = 1.0
    logits[2, 8:] = -0.0
    x, weight = exact(logits)
    weights, ids = kernel(x, weight, torch.zeros(16), **rule)
    assert ids[0].tolist() == [0, 1, 2, 3]
    assert ids[2].tolist() == [0, 1, 2, 3]
    hold((weights, ids), reference(x, weight, torch.zeros(16), **rule), 16)


#: Logits of rows that no model means: padding of a batch, overflow, a router that rejects all.
STRANGE = {
    "nan": [NAN] * 16,
    "one nan": [0.5, NAN, *[0.25] * 14],
    "inf": [INF] * 16,
    "minus inf": [-INF] * 16,
    "both": [INF, -INF] * 8,
    "all small": [-1e30] * 16,
    "nan and inf": [NAN, INF, -INF, 0.0] * 4,
}


@pytest.mark.parametrize("row", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("rule", [PLAIN, GROUPED, SOFTMAX], ids=["plain", "grouped", "softmax"])
def test_strange_rows_give_valid_ids(row: list[float], rule: dict[str, Any]) -> None:
    logits = torch.tensor([row])
    for bias in (None, torch.linspace(-1, 1, 16)):
        expected = Rule(**rule).choice.reference(Rule(**rule).scores.scored(logits), bias)
        hold(choose(logits, bias, Rule(**rule)), expected, 16)


def test_a_padding_row_of_nan_disturbs_no_other() -> None:
    x, weight, bias = drawn(4, 96, 16)
    x[1] = NAN
    hold(kernel(x, weight, bias, **GROUPED), reference(x, weight, bias, **GROUPED), 16)


def test_a_sum_of_zero_gives_zeros() -> None:
    x, weight = exact(torch.full((1, 16), -200.0))
    assert kernel(x, weight, None, **PLAIN)[0].tolist() == [[0.0] * 4]


def test_logits_are_rounded_where_asked() -> None:
    x, weight = exact(torch.tensor([[1.0, 1.0 + 2**-10, 0.5, 0.25]]))
    assert kernel(x, weight, **PLAIN | {"k": 2})[1].tolist() == [[1, 0]]
    assert kernel(x, weight, **PLAIN | {"k": 2, "logits": BF16})[1].tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "config", [Config(8, 32, 3), Config(4, 64), Config(16, 32, 2, dot=True, waiting=1)], ids=str
)
def test_any_configuration_gives_the_same_and_leaves_no_trace(config: Config) -> None:
    x, weight, bias = drawn(3, 176, 20)
    first, *others = [in_one(x, weight, bias, Rule(**PLAIN), config) for _ in range(2)]
    hold(first, reference(x, weight, bias, **PLAIN), 20)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    assert (workspace(x.device) == -1).all()


def test_launches_take_turns() -> None:
    x, weight, bias = drawn(1, 32, 4)
    rule, config = Rule(**PLAIN | {"k": 1}), Config(4, 32)
    places = {next_workspace(x.device, 4).data_ptr() for _ in range(SLOTS)}
    assert len(places) == SLOTS
    hold(in_one(x, weight, bias, rule, config), reference(x, weight, bias, **PLAIN | {"k": 1}), 4)


@quick
@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 70),
    groups=st.sampled_from([1, 2, 3]),
    size=st.integers(2, 9),
    data=st.data(),
)
def test_any_shape(rows: int, width: int, groups: int, size: int, data: st.DataObject) -> None:
    top_groups = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(1, top_groups * size))
    x, weight, bias = drawn(rows, width, groups * size, F32, F32)
    rule = PLAIN | {"k": k, "groups": groups, "top_groups": top_groups}
    hold(kernel(x, weight, bias, **rule), reference(x, weight, bias, **rule), groups * size)


@pytest.mark.parametrize("weight", [BF16, F32], ids=str)
@pytest.mark.parametrize(("width", "experts"), [(7168, 256), (7168, 384), (6144, 128), (4096, 512), (100, 6)])
def test_configurations_cover_the_width_and_fit(width: int, experts: int, weight: torch.dtype) -> None:
    for rows in range(1, MOST_ROWS + 2):
        if config := config_for(rows, width, experts, weight):
            assert config.splits(width) * config.steps * config.block_k >= width
            assert config.splits(width) * rows * experts <= SLOT
    assert config_for(MOST_ROWS + 1, width, experts, weight) is None


def test_products_take_sixteen_bytes_of_weights_a_thread() -> None:
    assert products(2, 7168, 4) == Config(2, 256, 7, 1)
    assert products(2, 7168, 4, wide=True) == Config(2, 128, 14, 1)
    assert dot(16, 256, 4) == Config(16, 256, 4, 4, dot=True)


REFUSED = [
    ({"k": 17}, "does not take 17 of 16 experts as 'k'"),
    ({"groups": 3}, "does not take 1 of 3 groups of 16 experts as 'groups'"),
    ({"groups": 16}, "does not take groups of one expert as 'groups'"),
    ({"scoring": "tanh"}, "does not take 'tanh' as 'scoring'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=lambda v: str(v)[:20])
def test_refused(change: dict[str, Any], message: str) -> None:
    x, weight, bias = drawn(2, 32, 16)
    for call in (reference, kernel):
        with pytest.raises(BadOperand, match=message):
            call(x, weight, bias, **PLAIN | {"k": 1} | change)


def test_other_dtypes_are_refused() -> None:
    x, weight, _ = drawn(2, 32, 16)
    with pytest.raises(BadOperand, match="does not take float16 as 'x'"):
        route(x.half(), weight, **PLAIN)


def test_a_tracer_sees_shapes() -> None:
    x, weight, bias = (tensor.to("meta") for tensor in drawn(5, 32, 16))
    weights, ids = route(x, weight, bias, **GROUPED)
    assert (weights.shape, weights.dtype, ids.shape, ids.dtype) == ((5, 4), F32, (5, 4), torch.int64)
