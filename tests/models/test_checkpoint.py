"""Checkpoints: sharded, of codes, and not the model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from serving import Server

from kernelweld.errors import BadCheckpoint, BadOption
from kernelweld.models.checkpoint import load
from kernelweld.models.parallel import Parallel
from kernelweld.models.quant import dequantize_blocks

safetensors = pytest.importorskip("safetensors.torch")
Tensors = dict[str, torch.Tensor]
#: Layers that stay as they are in DeepSeek's checkpoints of codes.
PLAIN = ("norm", "weights_proj", "mlp.gate.", "lm_head", "embed_tokens")


@pytest.fixture
def rewritten(checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A function that saves the tiny checkpoint with other tensors and additions to its configuration."""

    def save(change: Callable[[Tensors], Tensors], **config: object) -> Path:
        source, folder = checkpoint(), tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        tensors = change(safetensors.load_file(source / "model.safetensors"))
        safetensors.save_file(tensors, folder / "model.safetensors")
        found = json.loads((source / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**found, **config}))
        return folder

    return save


def quantize_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of ``weight [N, K]``, and a scale for each block of 128 x 128."""
    n, k = weight.shape
    tiles = F.pad(weight, (0, -k % 128, 0, -n % 128)).unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    scales = tiles.abs().amax((1, 3)) / 448
    codes = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return codes.flatten(0, 1).flatten(1, 2)[:n, :k].contiguous(), scales


def as_codes(tensors: Tensors) -> Tensors:
    out: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 1 or any(part in name for part in PLAIN):
            out[name] = tensor
        else:
            out[name], out[f"{name}_scale_inv"] = quantize_blocks(tensor)
    return out


def as_what_codes_stand_for(tensors: Tensors) -> Tensors:
    codes = as_codes(tensors)
    return {
        name: dequantize_blocks(codes[name], codes[f"{name}_scale_inv"])
        if f"{name}_scale_inv" in codes
        else codes[name]
        for name in tensors
    }


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}


def widened_linear(
    x: torch.Tensor, _: None, weight: torch.Tensor, scales: torch.Tensor, *, dtype: torch.dtype
) -> torch.Tensor:
    """The layer of a weight of codes, of an input that is none."""
    n, k = weight.shape
    blocks = scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return (x @ (weight.float() * blocks).T).to(dtype)


def test_codes(
    rewritten: Callable[..., Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No dimension is a multiple of 128. Without rounding its inputs, a checkpoint of codes is its widened
    twin; with it, inputs are off by up to 2**-4, as the codes of weights are.
    """
    model = load(rewritten(as_codes, **FP8, index_topk=128), dtype=torch.float32)
    twin = load(rewritten(as_what_codes_stand_for, index_topk=128), dtype=torch.float32)
    served = {"dtype": torch.float32, "keys": "plain"}
    expected = torch.cat(Server(twin, len(prompts), **served).step(prompts))
    rounded = torch.cat(Server(model, len(prompts), **served).step(prompts))
    monkeypatch.setattr("kernelweld.models.linear.quantize_groups", lambda x, ue8m0: (x, None))
    monkeypatch.setattr("kernelweld.models.linear.block_linear", widened_linear)
    exact = torch.cat(Server(model, len(prompts), **served).step(prompts))
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-4)
    error = (rounded - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 0.01 < error < 0.3


def test_shards(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    source = checkpoint()
    tensors = safetensors.load_file(source / "model.safetensors")
    parts = [dict(list(tensors.items())[i::2]) for i in range(2)]
    for i, part in enumerate(parts):
        safetensors.save_file(part, tmp_path / f"part{i}.safetensors")
    weights = {name: f"part{i}.safetensors" for i, part in enumerate(parts) for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    shutil.copy(source / "config.json", tmp_path)
    ours, theirs = load(tmp_path).state_dict(), load(source).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (tmp_path / "part1.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"part1\.safetensors: .*No such file"):
        load(tmp_path)


def test_all_that_differs_is_listed(rewritten: Callable[..., Path]) -> None:
    """Missing, mis-shaped and foreign tensors in one error; those of a layer behind the last are no error."""

    def change(tensors: Tensors) -> Tensors:
        del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        tensors["lm_head.weight"] = torch.zeros(128, 190)
        tensors["model.norm.bias"] = torch.zeros(192)
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
        tensors["model.layers.2.eh_proj.weight"] = torch.zeros(4)
        return tensors

    with pytest.raises(BadCheckpoint) as error:
        load(rewritten(change))
    assert sorted(error.value.problems) == [
        "lm_head.weight: expected [128, 192], found [128, 190]",
        "model.layers.1.mlp.experts.3.up_proj.weight: expected [96, 192], missing",
        "model.norm.bias: not expected, found [192]",
        "model.norm.weight: expected no codes, found F8_E4M3",
    ]


def test_scales_are_missing(rewritten: Callable[..., Path]) -> None:
    with pytest.raises(BadCheckpoint) as error:
        load(rewritten(lambda tensors: tensors, **FP8))
    assert "model.layers.0.mlp.down_proj.weight: expected F8_E4M3, found F32" in error.value.problems
    assert "model.layers.0.mlp.down_proj.weight_scale_inv: expected [2, 2], missing" in error.value.problems


def test_codes_are_shared_by_blocks(rewritten: Callable[..., Path]) -> None:
    """Half of a block has no scale of its own."""
    with pytest.raises(BadOption, match="option 'size' cannot be 2"):
        load(rewritten(as_codes, **FP8), parallel=Parallel(0, 2))


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"config\.json: missing"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match="safetensors: missing"):
        load(tmp_path)
