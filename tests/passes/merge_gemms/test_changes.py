"""Whatever happens to the weights, compiled code computes what eager code does: never with a stale weight."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import MergeOnFirstCall, merge_gemms, packed_groups, prepare

QKV = ("q", "k", "v")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def fresh_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


def copy_data(model: Any) -> None:
    model.k.weight.data.copy_(torch.randn(7, 32))


def add(model: Any) -> None:
    model.q.weight.add_(1.0)
    model.q.bias.sub_(1.0)


def init(model: Any) -> None:
    nn.init.normal_(model.v.weight)


def index(model: Any) -> None:
    model.v.weight[3] = 7.0


def optimizer_step(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def adam_step(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=1.0, fused=False).step()


def load(model: Any) -> None:
    model.load_state_dict(fresh_state(model))


def load_one(model: Any) -> None:
    model.k.load_state_dict(fresh_state(model.k))


def load_part(model: Any) -> None:
    model.load_state_dict({"v.weight": torch.randn(8, 32)}, strict=False)


STILL_MERGED = [copy_data, add, init, index, optimizer_step, adam_step, load, load_one, load_part]


def to_double(model: Any) -> None:
    model.to(torch.float64)


def to_bfloat16(model: Any) -> None:
    model.bfloat16()


def to_half_and_back(model: Any) -> None:
    model.half().float()


def new_memory(model: Any) -> None:
    model._apply(lambda t: t + 1)


def one_by_one(model: Any) -> None:
    for linear in model.children():
        linear.double()


REPACKED = [to_double, to_bfloat16, to_half_and_back, new_memory, one_by_one]


def assign(model: Any) -> None:
    model.load_state_dict(fresh_state(model), assign=True)


def assign_one(model: Any) -> None:
    model.k.load_state_dict(fresh_state(model.k), assign=True)


def replace_weight(model: Any) -> None:
    model.k.weight = nn.Parameter(torch.randn(7, 32))


def replace_bias(model: Any) -> None:
    model.k.bias = nn.Parameter(torch.randn(7))


def drop_bias(model: Any) -> None:
    model.k.bias = None


def replace_with_frozen(model: Any) -> None:
    model.q.weight = nn.Parameter(torch.randn(24, 32), requires_grad=False)


def register(model: Any) -> None:
    del model.q.weight
    model.q.register_parameter("weight", nn.Parameter(torch.randn(24, 32)))


def tie(model: Any) -> None:
    model.v.weight = nn.Parameter(torch.randn(8, 32))
    model.v2 = model.v


def share(model: Any) -> None:
    model.share_memory()
    model.q.weight.mul_(3)


def pruned(model: Any) -> None:
    prune.random_unstructured(model.q, "weight", 0.5)


def parametrized(model: Any) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 2

    parametrize.register_parametrization(model.q, "weight", Doubled())


def replace_module(model: Any) -> None:
    model.v = nn.Linear(32, 8)


LET_GO = [
    assign,
    assign_one,
    replace_weight,
    replace_bias,
    drop_bias,
    replace_with_frozen,
    register,
    tie,
    share,
    pruned,
    parametrized,
    replace_module,
]


def dtype_of(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def check(run: Any, model: nn.Module, rows: int = 3) -> None:
    x = torch.randn(rows, 32, dtype=dtype_of(model))
    assert_close(run(x), model(x))


@pytest.fixture
def merged(attention: Any, compiled: Any) -> Any:
    """A merged model that was compiled and run once: (model, compiled model)."""
    model = attention(True)
    assert prepare(model, (torch.randn(3, 32),)).gemms_saved == 2
    run = compiled(model)
    check(run, model)
    assert run.gemms == 2
    return model, run


@pytest.mark.parametrize("change", STILL_MERGED, ids=lambda change: change.__name__)
def test_updates_in_place_are_seen_without_recompiling(merged: Any, change: Callable[..., None]) -> None:
    model, run = merged
    x = torch.randn(3, 32)
    old = run(x)
    change(model)
    check(run, model)
    assert any(not torch.equal(a, b) for a, b in zip(old, run(x), strict=True))
    assert len(run.graphs) == 1


@pytest.mark.parametrize("change", REPACKED, ids=lambda change: change.__name__)
def test_conversions_pack_again(merged: Any, change: Callable[..., None]) -> None:
    model, run = merged
    flags = [p.requires_grad for p in model.parameters()]
    change(model)
    check(run, model)
    assert run.gemms == 2
    assert [p.requires_grad for p in model.parameters()] == flags
    packed = model.q.kernelweld_slot.packed
    assert packed.dtype == dtype_of(model)
    assert packed.untyped_storage().nbytes() == 40 * 32 * packed.element_size()
    for step in (add, copy_data, load):
        step(model)
        check(run, model)


@pytest.mark.parametrize("change", LET_GO, ids=lambda change: change.__name__)
def test_other_parameters_are_computed_apart(merged: Any, change: Callable[..., None]) -> None:
    model, run = merged
    change(model)
    check(run, model)
    assert run.gemms > 2
    for parameter in model.parameters():
        parameter.add_(1.0)
    check(run, model)
    prepare(model, (torch.randn(3, 32),))  # merges what is left, if it may
    check(run, model)


def test_assign_lets_go_of_the_packed_memory(merged: Any) -> None:
    model, _ = merged
    assign(model)
    assert [model.get_submodule(name).kernelweld_slot for name in QKV] == [None] * 3
    assert prepare(model, (torch.randn(3, 32),)).gemms_saved == 2


def test_converting_one_sibling_lets_go_until_the_others_follow(merged: Any) -> None:
    model, run = merged
    x = torch.randn(3, 32)
    model.k.double()
    assert model.q.kernelweld_slot is None
    assert_close(model.q(x), torch.nn.functional.linear(x, model.q.weight, model.q.bias))
    model.k.float()
    assert model.q.kernelweld_slot is not None
    model.k.weight.mul_(3)
    check(run, model)
    assert run.gemms == 2


@pytest.mark.parametrize("future", ["overwrite_module_params", "swap_module_params"])
def test_conversions_under_torch_future_flags(attention: Any, compiled: Any, future: str) -> None:
    model = attention(True)
    merge_gemms(model, [QKV])
    setting = getattr(torch.__future__, f"set_{future}_on_conversion")
    setting(True)
    try:
        model.double()
        load(model)
    finally:
        setting(False)
    check(compiled(model), model)


def test_a_deep_copy_is_plain_and_independent(merged: Any, compiled: Any) -> None:
    model, run = merged
    twin = copy.deepcopy(model)
    assert [type(twin.get_submodule(name)) for name in QKV] == [nn.Linear] * 3
    assert not packed_groups(twin)
    run_twin = compiled(twin)
    x = torch.randn(3, 32)
    assert_close(twin(x), model(x), rtol=0, atol=0)
    add(model)
    copy_data(twin)
    check(run_twin, twin)
    check(run, model)
    assert prepare(twin, (x,)).gemms_saved == 2
    load(twin)
    check(run_twin, twin)
    assert run_twin.gemms == 2
    check(run, model)


def test_a_deep_copy_keeps_links_between_its_own_parts(merged: Any) -> None:
    model, _ = merged
    model.alias = model.k.weight
    optimizer = torch.optim.SGD(model.q.parameters(), lr=1.0)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin.alias is twin.k.weight
    assert twin_optimizer.param_groups[0]["params"][0] is twin.q.weight


def test_a_shallow_copy_shares_the_parameters(merged: Any) -> None:
    model, _ = merged
    twin = copy.copy(model.k)
    assert type(twin) is nn.Linear
    assert twin.weight is model.k.weight


def test_two_models_with_one_parameter_object(attention: Any, compiled: Any) -> None:
    first, second = attention(), attention()
    second.q.weight = first.q.weight
    merge_gemms(first, [QKV])
    run, before = compiled(first), MergeOnFirstCall(first)
    before((torch.randn(3, 32),))
    check(run, first)
    merge_gemms(second, [QKV])  # moves the shared weight to the second packed storage
    before()
    first.q.weight.mul_(2)
    check(run, first)
    check(compiled(second), second)


def swap_data(model: Any) -> None:
    model.k.weight.data = torch.randn(7, 32)


def swap_bias_data(model: Any) -> None:
    model.v.bias.data = torch.randn(8)


@pytest.mark.parametrize(
    "change",
    [add, to_double, assign, replace_weight, share, swap_data, swap_bias_data],
    ids=lambda c: c.__name__,
)
def test_merge_on_first_call_sees_every_change(
    attention: Any, compiled: Any, change: Callable[..., None]
) -> None:
    model = attention(True)
    run, before = compiled(model), MergeOnFirstCall(model)

    def call(x: torch.Tensor) -> Any:
        assert before((x,)).gemms_saved == 2
        return run(x)

    check(call, model)
    assert run.gemms == 2
    for _ in range(2):
        change(model)
        check(call, model)


def test_merge_on_first_call_reports_why_not() -> None:
    class Branch(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else super().forward(x)

    before = MergeOnFirstCall(Branch(4, 4))
    report = before((torch.randn(2, 4),))
    assert before((torch.randn(2, 4),)) is report
    assert "fake" in report.skipped[0].reason
