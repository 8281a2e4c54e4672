"""Loading a checkpoint of Hugging Face's layout: ``config.json`` and safetensors files.

Every tensor's name, shape and dtype is compared first, and only then is anything read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelweld.errors import BadCheckpoint, BadOption, MissingDependency
from kernelweld.models.config import Config
from kernelweld.models.deepseek_v32 import Attention, DeepseekV32
from kernelweld.models.experts import Experts, Router
from kernelweld.models.parallel import Parallel
from kernelweld.models.quant import BLOCK, dequantize_blocks

Shape = tuple[int, ...]
#: The dimension of a layer's weight that ranks share.
_SHARED = {"q_b_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}


@dataclass(frozen=True)
class Source:
    """Tensors of the checkpoint by name, with their shapes, and what puts them into the model. ``codes``: the
    first is of e4m3.
    """

    shapes: Mapping[str, Shape]
    fill: Callable[..., object]
    codes: bool = False


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    parallel: Parallel | None = None,
) -> DeepseekV32:
    """The model of the checkpoint in ``folder``, or a rank's slice of it. Layers beyond the configuration's,
    which predict further tokens, are left out.

    Raises:
        BadCheckpoint: tensors are missing, are not the model's, or have another shape; all of them listed.
        MissingDependency: safetensors is not installed.
    """
    folder, parallel = Path(folder), parallel or Parallel()
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(str(folder), ["config.json: missing"])
    config, found = Config.read(folder), _tensors(folder)
    with torch.device("meta"):  # compared before there is memory for the weights
        sources = _sources(DeepseekV32(config, dtype=dtype, parallel=parallel), parallel)
    if problems := list(_problems(list(sources), found, config)):
        raise BadCheckpoint(str(folder), problems)
    with torch.device(device):
        model = DeepseekV32(config, dtype=dtype, parallel=parallel)
    with torch.no_grad():
        for source in _sources(model, parallel):
            source.fill(*(found[name].read() for name in source.shapes))
    return model.eval().requires_grad_(False)


@dataclass(frozen=True)
class _Tensor:
    """A tensor in an open safetensors file."""

    file: Any
    name: str

    @property
    def shape(self) -> Shape:
        return tuple(self.file.get_slice(self.name).get_shape())

    @property
    def dtype(self) -> str:
        return str(self.file.get_slice(self.name).get_dtype())

    def read(self) -> torch.Tensor:
        tensor: torch.Tensor = self.file.get_tensor(self.name)
        return tensor


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """All tensors of the files that the index names, or of all files without an index."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingDependency("safetensors", "loading a checkpoint", "hf") from error
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        paths = [folder / name for name in sorted({*json.loads(index.read_text())["weight_map"].values()})]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    files: list[Any] = []
    problems = [] if paths else ["*.safetensors: missing"]
    for path in paths:
        try:
            files.append(safe_open(path, "pt"))
        except (OSError, SafetensorError) as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        raise BadCheckpoint(str(folder), problems)
    return {name: _Tensor(file, name) for file in files for name in set(file.keys())}


def _problems(sources: list[Source], found: Mapping[str, _Tensor], config: Config) -> Iterator[str]:
    """A line for each tensor that is missing, mis-shaped, of the wrong kind, or not the model's."""
    expected = {name: shape for source in sources for name, shape in source.shapes.items()}
    codes = {next(iter(source.shapes)) for source in sources if source.codes}
    for name, shape in expected.items():
        tensor = found.get(name)
        if tensor is None:
            yield f"{name}: expected {list(shape)}, missing"
        elif tensor.shape != shape:
            yield f"{name}: expected {list(shape)}, found {list(tensor.shape)}"
        elif (tensor.dtype == "F8_E4M3") != (name in codes):
            yield f"{name}: expected {'F8_E4M3' if name in codes else 'no codes'}, found {tensor.dtype}"
    for name in found.keys() - expected.keys():
        if not _predicts_further(name, config):
            yield f"{name}: not expected, found {list(found[name].shape)}"


def _predicts_further(name: str, config: Config) -> bool:
    """Whether ``name`` is of a layer beyond the model's: multi-token prediction."""
    layer = name.removeprefix("model.layers.").partition(".")[0]
    return name.startswith("model.layers.") and layer.isdecimal() and int(layer) >= config.num_hidden_layers


def _sources(model: DeepseekV32, parallel: Parallel) -> Iterator[Source]:
    """Where all weights of ``model`` come from."""
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            yield _kv_b(path, module, parallel)
        elif isinstance(module, Experts):
            yield from _experts(path, module, parallel, model.config.fp8)
        elif isinstance(module, Router):
            yield _router(path, module)
        else:
            for name, parameter in module.named_parameters(path, recurse=False):
                yield _plain(name, parameter, parallel)


def _plain(name: str, parameter: nn.Parameter, parallel: Parallel) -> Source:
    """A parameter under its own name, or this rank's part of it; the scales of one go by blocks."""
    layer, kind = name.split(".")[-2:]
    dim = _SHARED.get(layer)
    if dim is None or parallel.size == 1:
        return Source({name: tuple(parameter.shape)}, parameter.copy_, parameter.dtype == torch.float8_e4m3fn)
    if parameter.dtype == torch.float8_e4m3fn and parameter.shape[dim] % BLOCK:
        raise BadOption("size", parallel.size, f"fewer ranks: parts of {name} are no whole blocks of {BLOCK}")
    shape = list(parameter.shape)
    shape[dim] *= parallel.size
    return Source(
        {name: tuple(shape)},
        lambda tensor: parameter.copy_(parallel.slice(tensor, dim)),
        kind == "weight" and parameter.dtype == torch.float8_e4m3fn,
    )


def _router(path: str, router: Router) -> Source:
    """The router's weight keeps the checkpoint's dtype: a score decides between experts."""

    def fill(weight: torch.Tensor, bias: torch.Tensor) -> None:
        router.weight = nn.Parameter(weight.to(router.weight.device))
        router.e_score_correction_bias.copy_(bias)

    names = f"{path}.weight", f"{path}.e_score_correction_bias"
    shapes = tuple(router.weight.shape), tuple(router.e_score_correction_bias.shape)
    return Source(dict(zip(names, shapes, strict=True)), fill)


def _widened(name: str, shape: Shape, fp8: bool, fill: Callable[[torch.Tensor], None]) -> Source:
    """A weight that is codes and scales in the checkpoint and a plain one in the model."""
    if not fp8:
        return Source({name: shape}, fill)
    n, k = shape
    shapes = {name: shape, f"{name}_scale_inv": (-(-n // BLOCK), -(-k // BLOCK))}
    return Source(shapes, lambda codes, scales: fill(dequantize_blocks(codes, scales)), codes=True)


def _kv_b(path: str, attention: Attention, parallel: Parallel) -> Source:
    """The projections of keys and of values from latents, which lie head by head in one weight."""
    heads, nope, rank = attention.w_uk.shape
    width = nope + attention.w_uv.shape[2]

    def fill(weight: torch.Tensor) -> None:
        keys, values = parallel.slice(weight.view(-1, width, rank), 0).split([nope, width - nope], 1)
        attention.w_uk.copy_(keys)
        attention.w_uv.copy_(values.transpose(1, 2))

    shape = (heads * parallel.size * width, rank)
    return _widened(f"{path}.kv_b_proj.weight", shape, attention.config.fp8, fill)


def _experts(path: str, experts: Experts, parallel: Parallel, fp8: bool) -> Iterator[Source]:
    """Three weights of each expert, the first two of which lie together in the model."""
    count, hidden, inner = experts.down_proj.shape
    whole = inner * parallel.size
    for index in range(count):
        gate, up = experts.gate_up_proj[index].split(inner)
        parts = (gate, up, experts.down_proj[index])
        for part, (layer, dim) in zip(parts, (("gate", 0), ("up", 0), ("down", 1)), strict=True):
            shape = (whole, hidden) if dim == 0 else (hidden, whole)
            name = f"{path}.{index}.{layer}_proj.weight"
            yield _widened(name, shape, fp8, _into(part, dim, parallel))


def _into(part: torch.Tensor, dim: int, parallel: Parallel) -> Callable[[torch.Tensor], None]:
    def fill(weight: torch.Tensor) -> None:
        part.copy_(parallel.slice(weight, dim))

    return fill
