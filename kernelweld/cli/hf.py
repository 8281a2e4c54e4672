"""``transformers`` models, and the arguments with which a user calls them in one phase of generation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from kernelweld.cli.zoo import ZOO
from kernelweld.errors import BadTarget, MissingDependency

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig

Phase = Literal["prefill", "decode"]
CacheKind = Literal["dynamic", "static"]

PREFILL_TOKENS = 7
_STATIC_TOKENS = 32
_SEED = 0


@dataclass(frozen=True)
class Call:
    """How a model is called: the phase of generation, the rows of the batch, the kind of cache, and the
    length of the prompt.
    """

    phase: Phase = "prefill"
    batch: int = 1
    cache: CacheKind = "dynamic"
    tokens: int = PREFILL_TOKENS


def call_of_rows(phase: Phase, rows: int, cache: CacheKind) -> Call:
    """The call on ``rows`` rows: one prompt of so many tokens, or a step of so many sequences."""
    if phase == "prefill":
        return Call(phase, batch=1, cache=cache, tokens=rows)
    return Call(phase, batch=rows, cache=cache)


def zoo_config(name: str, *, full: bool = False, layers: int | None = None) -> PreTrainedConfig:
    """The configuration of the ``hf:`` target ``name``: tiny, or with ``full`` of the real dimensions."""
    entry = ZOO[name]
    config_class = _transformers(f"target 'hf:{name}'").CONFIG_MAPPING[entry.model_type]
    config: PreTrainedConfig = config_class(**entry.fields(full=full, layers=layers))
    return config


def folder_config(folder: Path, *, layers: int | None = None) -> PreTrainedConfig:
    """The configuration in ``folder/config.json``, cut to its first ``layers`` layers."""
    transformers = _transformers(f"target '{folder}'")
    try:
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadTarget(str(folder), reason, "Give a config.json that this transformers can read.") from error
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        advice = "Give a causal language model, or write a function and use MODULE:CALLABLE."
        raise BadTarget(str(folder), f"{config.model_type!r} is not a causal language model", advice)
    if layers is not None:
        _cut(config.get_text_config(), layers)
    return config


def _cut(config: PreTrainedConfig, layers: int) -> None:
    depth, config.num_hidden_layers = config.num_hidden_layers, layers
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == depth:  # one entry a layer: layer_types and its like
            setattr(config, name, value[:layers])


def random_model(config: PreTrainedConfig, *, dtype: torch.dtype, device: str) -> nn.Module:
    """A causal language model with seeded random weights in ``eval`` mode; on ``"meta"`` it has none.

    Norm weights and all biases get noise: their initial ones and zeros would hide a weight that is not
    applied. Buffers such as the inverse frequencies keep their own dtype.
    """
    auto = _transformers("building a model").AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(_SEED)
        model: nn.Module = auto.from_config(config, dtype=dtype)
        if device != "meta":
            for tensor in _ones_and_zeros(model):
                tensor.data.add_(torch.randn_like(tensor, dtype=torch.float32).mul_(0.1).to(tensor.dtype))
    return model.eval()


def saved_model(folder: Path, config: PreTrainedConfig, *, dtype: torch.dtype, device: str) -> nn.Module:
    """The model whose weights lie in ``folder``, in ``eval`` mode."""
    auto = _transformers(f"target '{folder}'").AutoModelForCausalLM
    model: nn.Module = auto.from_pretrained(folder, config=config, dtype=dtype, local_files_only=True)
    return model.to(device).eval()


def has_weights(folder: Path) -> bool:
    """Whether ``folder`` holds a checkpoint in one of the formats that ``from_pretrained`` reads."""
    return any((*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")))


def model_kwargs(model: nn.Module, config: PreTrainedConfig, call: Call) -> dict[str, object]:
    """Keyword arguments of one forward, as ``generate`` would make them.

    Prefill: ``input_ids`` of shape ``[batch, tokens]`` and an empty cache. Decode: ``[batch, 1]`` and a cache
    that holds the tokens, put there by a prefill of the model itself. A static cache is allocated before
    either.
    """
    like = next(model.parameters())
    ids = _token_ids(config.get_text_config().vocab_size, call.batch, call.tokens + 1).to(like.device)
    prompt, token = ids[:, : call.tokens], ids[:, call.tokens :]
    cache = _new_cache(config, call)
    if like.is_meta:
        _make_empty(cache, like)
    if call.phase == "decode" or call.cache == "static":
        with torch.no_grad():
            model(input_ids=prompt, cache=cache, use_cache=True)
    if call.phase == "prefill" and call.cache == "static":
        cache.reset()
    return {
        "input_ids": (token if call.phase == "decode" else prompt).contiguous(),
        "cache": cache,
        "use_cache": True,
    }


def random_bytes(config: PreTrainedConfig, *, dtype: torch.dtype) -> int:
    """Bytes that the parameters of a model of ``config`` take, counted on the meta device."""
    model = random_model(config, dtype=dtype, device="meta")
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _ones_and_zeros(model: nn.Module) -> Iterator[Tensor]:
    """Norm weights, and biases of any kind, the router's correction bias among them."""
    for module in model.modules():
        is_norm = "norm" in type(module).__name__.lower()
        named = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        yield from (t for name, t in named if name.endswith("bias") or (is_norm and name == "weight"))


def _token_ids(vocabulary: int, batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(0, vocabulary, (batch, length), generator=generator)


def _new_cache(config: PreTrainedConfig, call: Call) -> Cache:
    transformers = _transformers("a cache")
    cache: Cache = (
        transformers.StaticCache(config=config, max_cache_len=max(_STATIC_TOKENS, call.tokens + 1))
        if call.cache == "static"
        else transformers.DynamicCache(config=config)
    )
    return cache


def _make_empty(cache: Cache, like: Tensor) -> None:
    """Give growing layers the empty tensors that they would make in their first update.

    Made there, under tracing, they are ``torch.tensor([], device="meta")``, which Dynamo cannot handle.
    The graph is the same: joining an empty tensor is no operation.
    """
    layers = importlib.import_module("transformers.cache_utils")
    empty = like.new_empty(0)
    for layer in cache.layers:
        if isinstance(layer, layers.DynamicLayer):
            layer.lazy_initialization(empty, empty)
        if isinstance(layer, layers.DynamicIndexedLayer):
            layer.lazy_initialization_indexer(empty)


def _transformers(purpose: str) -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingDependency("transformers", purpose, "hf") from error
