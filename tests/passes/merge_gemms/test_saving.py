"""Merged weights are saved, copied and loaded as the plain tensors that they look like."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import merge_gemms, packed_groups

safetensors = pytest.importorskip("safetensors.torch")
QKV = ("q", "k", "v")


@pytest.fixture
def model(attention: Any) -> Any:
    merged = attention(True)
    assert merge_gemms(merged, [QKV]).gemms_saved == 2
    return merged


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_one_weight_is_saved_without_its_siblings(model: Any) -> None:
    plain = torch.randn_like(model.k.weight)
    assert len(saved(model.k.weight.detach()).getvalue()) == len(saved(plain.detach()).getvalue())
    assert len(saved(model.k.weight).getvalue()) == len(saved(nn.Parameter(plain)).getvalue())
    assert len(pickle.dumps(model.k.weight)) <= len(pickle.dumps(nn.Parameter(plain)))


def test_a_state_dict_loads_into_a_plain_and_a_merged_model(model: Any, attention: Any) -> None:
    state = torch.load(saved(model.state_dict()), weights_only=True)
    assert list(state) == list(attention(True).state_dict())
    plain, merged = attention(True), attention(True)
    merge_gemms(merged, [QKV])
    for other in (plain, merged):
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert all(group.is_true for group in packed_groups(merged))
    assert not any(
        parameter.data_ptr() == state[name].data_ptr() for name, parameter in merged.named_parameters()
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_linear_is_plain(model: Any, protocol: int) -> None:
    data = pickle.dumps(model.q, protocol)
    assert b"kernelweld" not in data
    linear = pickle.loads(data)
    assert type(linear) is nn.Linear
    assert_close(linear.weight, model.q.weight, rtol=0, atol=0)
    linear.to(torch.float64)


def test_a_saved_model_is_plain_and_no_larger(model: Any) -> None:
    linears = nn.ModuleList([model.q, model.k, model.v])
    plain = nn.ModuleList([nn.Linear(32, 24), nn.Linear(32, 7), nn.Linear(32, 8)])
    file = saved(linears)
    assert (
        len(file.getvalue()) < len(saved(plain).getvalue()) + 7 * 32 * 4
    )  # not even the smallest weight twice
    loaded = torch.load(file, weights_only=False)
    assert [type(linear) for linear in loaded] == [nn.Linear] * 3
    assert_close(dict(loaded.state_dict()), dict(linears.state_dict()), rtol=0, atol=0)


def test_safetensors_sees_no_shared_memory(model: Any, attention: Any, tmp_path: Path) -> None:
    safetensors.save_file(model.state_dict(), tmp_path / "file.safetensors")
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    for name in ("file", "model"):
        other = attention(True)
        merge_gemms(other, [QKV])
        safetensors.load_model(other, str(tmp_path / f"{name}.safetensors"))
        assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
        assert all(group.is_true for group in packed_groups(other))


def test_moving_through_the_meta_device_keeps_the_modules(model: Any) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("meta")
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    assert_close(dict(model.state_dict()), state, rtol=0, atol=0)
    assert all(group.is_true for group in packed_groups(model))
