from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import (
    MergedGroup,
    MergeReport,
    merge_gemms,
    packed_groups,
    prepare,
    unmerge,
)
from kernelweld.passes.merge_gemms.linear import PackedLinear

QKV = ("q", "k", "v")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def storages(model: nn.Module) -> dict[int, int]:
    """Address to bytes of every memory that a parameter needs, the packed ones included."""
    tensors = [*model.parameters()]
    for group in packed_groups(model):
        tensors += [
            part
            for m in group.members
            if m.kernelweld_slot
            for part in m.kernelweld_slot[:2]
            if part is not None
        ]
    starts = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    inside = {
        start
        for start in starts
        if any(
            other < start < other + size or (other == start and size > starts[start])
            for other, size in starts.items()
        )
    }
    return {start: size for start, size in starts.items() if start not in inside}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("bias", [False, True])
def test_siblings_become_one_gemm(attention: Any, compiled: Any, bias: bool, dynamic: bool | None) -> None:
    model, x = attention(bias), torch.randn(2, 5, 32)
    report = prepare(model, (x,))
    assert [group.paths for group in report.merged] == [QKV]
    run = compiled(model, dynamic)
    assert_close(run(x), model(x))
    assert run.gemms == 2
    assert run.matrices == [(40, 32), (16, 24)]
    longer = torch.randn(3, 9, 32)
    assert_close(run(longer), model(longer))


def test_eager_bits_names_and_flags_do_not_change(attention: Any) -> None:
    model, x = attention(True), torch.randn(3, 32)
    model.k.weight.requires_grad_(False)
    parameters, before, results = dict(model.named_parameters()), model.state_dict(), model(x)
    expected = {name: value.clone() for name, value in before.items()}
    del before
    prepare(model, (x,))
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in after)
    assert [p.requires_grad for p in after.values()] == [name != "k.weight" for name in after]
    assert_close(dict(model.state_dict()), expected, rtol=0, atol=0)
    assert_close(model(x), results, rtol=0, atol=0)
    assert isinstance(model.q, nn.Linear)


def test_memory_is_not_doubled(attention: Any) -> None:
    model = attention(dtype=torch.bfloat16)
    before = sum(storages(model).values())
    old = [StorageWeakRef(getattr(model, name).weight.untyped_storage()) for name in QKV]
    merge_gemms(model, [QKV])
    assert all(storage.expired() for storage in old)
    padding = 1 * 32 * 2  # k has 7 rows and v starts at a multiple of 8
    assert sum(storages(model).values()) == before + padding
    packed = model.q.kernelweld_slot.packed
    starts = [getattr(model, name).weight.data_ptr() - packed.data_ptr() for name in QKV]
    assert starts == [0, 24 * 64, 32 * 64]
    assert all(
        model.get_submodule(name).weight.untyped_storage().nbytes() == model.get_submodule(name).weight.nbytes
        for name in QKV
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 8, 33])
def test_every_slice_starts_at_a_multiple_of_16_bytes(dtype: torch.dtype, width: int) -> None:
    model = nn.ModuleList(nn.Linear(width, rows, dtype=dtype) for rows in (1, 5, 2, 16, 3))
    values = [p.clone() for p in model.parameters()]
    (merged,) = merge_gemms(model, ["01234"]).merged
    assert merged.rows * torch.empty(0, dtype=dtype).element_size() % 16 == 0
    assert all(p.data_ptr() % 16 == 0 for p in model.parameters())
    assert_close(list(model.parameters()), values, rtol=0, atol=0)


def test_unmerge_restores_plain_modules(attention: Any, compiled: Any) -> None:
    model, x = attention(True), torch.randn(3, 32)
    prepare(model, (x,))
    assert unmerge(model) == QKV
    assert [type(model.get_submodule(name)) for name in QKV] == [nn.Linear] * 3
    assert set(model.q.__dict__) == set(nn.Linear(1, 1).__dict__)
    assert len(storages(model)) == 8
    run = compiled(model)
    assert_close(run(x), model(x))
    assert run.gemms == 4
    assert unmerge(model) == ()


def test_merging_again_changes_nothing(attention: Any) -> None:
    model, x = attention(), torch.randn(3, 32)
    first = prepare(model, (x,))
    packed = model.q.kernelweld_slot.packed
    assert prepare(model, (x,)) == first
    assert model.q.kernelweld_slot.packed is packed


def test_another_grouping_dissolves_the_old_one(attention: Any, compiled: Any) -> None:
    model, x = attention(), torch.randn(3, 32)
    prepare(model, (x,))
    report = merge_gemms(model, [("k", "v")])
    assert [group.paths for group in report.merged] == [("k", "v")]
    assert type(model.q) is nn.Linear
    run = compiled(model)
    assert_close(run(x), model(x))
    assert run.gemms == 3


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (("q", "nope"), "the model has no module nope"),
        (("q",), "takes two or more different linears"),
        (("q", "q"), "takes two or more different linears"),
        (("q", "o"), "in_features, dtype, device or the presence of a bias differ"),
        (("q", ""), "is a Attention, not exactly nn.Linear"),
    ],
)
def test_bad_groups_are_reported_and_left(attention: Any, group: tuple[str, ...], reason: str) -> None:
    model = attention()
    report = merge_gemms(model, [group, ("k", "v")])
    assert [(skipped.paths, skipped.reason) for skipped in report.skipped] == [(group, reason)]
    assert [merged.paths for merged in report.merged] == [("k", "v")]
    assert type(model.q) is nn.Linear


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.zeros(24, 32, dtype=torch.float8_e4m3fn), "weight is quantized (float8_e4m3fn)"),
        (torch.zeros(24, 32, dtype=torch.int8), "weight is quantized (int8)"),
        (torch.zeros(0, 32), "weight is empty"),
    ],
)
def test_weights_that_cannot_be_packed(attention: Any, weight: torch.Tensor, reason: str) -> None:
    model = attention()
    model.q.weight = nn.Parameter(weight, requires_grad=False)
    assert [skipped.reason for skipped in merge_gemms(model, [QKV]).skipped] == [reason]


def test_report_is_json() -> None:
    group = MergedGroup(("a", "b"), (4, 8), in_features=16, rows=16, dtype="bfloat16", bias=False)
    assert json.loads(json.dumps(MergeReport((group,)).to_json())) == {
        "merged": [
            {
                "paths": ["a", "b"],
                "out_features": [4, 8],
                "in_features": 16,
                "rows": 16,
                "dtype": "bfloat16",
                "bias": False,
            }
        ],
        "skipped": [],
        "gemms_saved": 1,
    }


def test_meta_models_merge_without_memory(attention: Any, compiled: Any) -> None:
    with torch.device("meta"):
        model, x = attention(), torch.randn(3, 32)
    assert prepare(model, (x,)).gemms_saved == 2
    run = compiled(model)
    run(x)
    assert run.gemms == 2
    real, y = model.to_empty(device="cpu"), torch.randn(3, 32)
    for parameter in real.parameters():
        parameter.normal_()
    assert isinstance(real.q, PackedLinear)
    assert_close(run(y), real(y))
    assert run.gemms == 2


def test_gradients_take_the_plain_path(attention: Any, compiled: Any) -> None:
    model, x = attention(True), torch.randn(3, 32)
    prepare(model, (x,))
    run = compiled(model)
    with torch.enable_grad():
        sum(y.sum() for y in run(x)).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        sum(y.sum() for y in model(x)).backward()
    assert_close(grads, [p.grad for p in model.parameters()])
    run(x)
    assert run.gemms == 2


def test_frozen_weights_merge_with_gradients_on(attention: Any, compiled: Any) -> None:
    model = attention().requires_grad_(False)
    x = torch.randn(3, 32, requires_grad=True)
    prepare(model, (x,))
    run = compiled(model)
    with torch.enable_grad():
        (grad,) = torch.autograd.grad(sum(y.sum() for y in run(x)), x)
        (expected,) = torch.autograd.grad(sum(y.sum() for y in model(x)), x)
    assert_close(grad, expected)


def test_the_packed_weight_is_a_static_input(attention: Any, compiled: Any) -> None:
    # Otherwise CUDA graphs would copy it into their own memory on each replay.
    model, x = attention(), torch.randn(3, 32)
    prepare(model, (x,))
    compiled(model)(x)
    assert torch._dynamo.utils.get_static_address_type(model.q.kernelweld_slot.packed) is not None


def test_an_exported_program_owns_plain_weights(attention: Any) -> None:
    model, x = attention(), torch.randn(3, 32)
    prepare(model, (x,))
    program = torch.export.export(model, (x,))
    assert sorted(program.state_dict) == sorted(model.state_dict())
    assert not program.constants
    assert_close(program.module()(x), model(x))


def test_a_model_called_in_inference_mode_packs_normal_tensors(attention: Any) -> None:
    model, x = attention(), torch.randn(3, 32)
    with torch.inference_mode():
        assert prepare(model, (torch.randn(3, 32),)).gemms_saved == 2
    model.q.weight.add_(1)
    assert not model.q.kernelweld_slot.packed.is_inference()
    assert_close(model.q.kernelweld_slot.packed[:24], model.q.weight, rtol=0, atol=0)
    model(x)


def test_inductor_agrees(attention: Callable[..., nn.Module]) -> None:
    torch._dynamo.reset()
    model, x = attention(), torch.randn(4, 32)
    prepare(model, (x,))
    assert_close(torch.compile(model)(x), model(x))
