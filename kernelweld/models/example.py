"""The model with random weights, and a batch for it: for inspection, timing and tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from kernelweld.models.caches import (
    PAGE,
    Batch,
    Cache,
    Chunk,
    KeyFormat,
    LatentFormat,
    allocate,
    batch_of,
    write_keys,
    write_latent,
)
from kernelweld.models.config import TINY, Config
from kernelweld.models.deepseek_v32 import DeepseekV32
from kernelweld.models.linear import BlockLinear
from kernelweld.models.parallel import Parallel

Call = tuple[torch.Tensor, Batch, list[Cache]]
_ROWS = 2**16  # cache rows that are made at a time


def example(
    *,
    full: bool = False,
    config: Config | None = None,
    layers: int | None = None,
    phase: Literal["prefill", "decode"] = "decode",
    batch: int = 1,
    cache: int = 100,
    tokens: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    parallel: Parallel | None = None,
    fp8: bool = False,
    latent: LatentFormat | None = None,
    keys: KeyFormat = "fp8",
    seed: int = 0,
) -> tuple[DeepseekV32, Call, dict[str, torch.Tensor]]:
    """The model, and the arguments of a call: ``batch`` requests with ``cache`` tokens in the caches each.

    ``full``: real dimensions, else those of ``config``, by default the smallest that the cache layouts allow.
    ``layers``: two if not given; the first is dense, the others have experts. Each request brings ``tokens``
    tokens, 1 in decode and 128 in prefill if not given; in prefill logits are of the last of them. ``fp8``:
    linear layers of codes, and latents in ``fp8_ds_mla`` if ``latent`` does not say otherwise. Weights,
    caches and the order of pages are random, the same in every call with one ``seed``; on the device ``meta``
    they have no values.
    """
    base = Config() if full else config or TINY
    config = replace(base, num_hidden_layers=layers or 2, first_k_dense_replace=1, fp8=fp8, ue8m0=fp8)
    tokens = tokens or (1 if phase == "decode" else 128)
    with torch.device(device):
        model = DeepseekV32(config, dtype=dtype, parallel=parallel).eval().requires_grad_(False)
    each = -(-(cache + tokens) // PAGE)
    pages = batch * each
    latent = latent or ("fp8_ds_mla" if fp8 else "plain")
    caches = allocate(config, pages, dtype=dtype, latent=latent, keys=keys, device=device)
    if torch.device(device).type != "meta":
        generator = torch.Generator(device).manual_seed(seed)
        _fill_weights(model, generator)
        for one in caches:
            _fill_cache(one, config, dtype, generator)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).view(batch, each).tolist()
    scheduled = batch_of([Chunk(cache, tokens, own) for own in order], pages, device=device)
    ids = torch.arange(batch * tokens, device=device) * 97 % config.vocab_size
    last = torch.arange(1, batch + 1, device=device) * tokens - 1
    return model, (ids, scheduled, caches), {} if phase == "decode" else {"rows": last}


def _fill_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Weights that keep the magnitude of what they are applied to."""

    def random(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=torch.float32)

    for module in model.modules():
        for name, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if name in ("rope_table", "weight_scale_inv"):
                continue
            if weight.dim() == 1:  # of norms, and biases
                weight.copy_(random(weight) * 0.1 + (name == "weight"))
            elif isinstance(module, BlockLinear):
                weight.copy_(random(weight) * 64)
                module.weight_scale_inv.copy_(
                    (random(module.weight_scale_inv) * 0.1).exp() / 64 * weight.shape[-1] ** -0.5
                )
            else:
                weight.copy_(random(weight) * weight.shape[1 if name == "w_uv" else -1] ** -0.5)


def _fill_cache(cache: Cache, config: Config, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Rows of normal values in all slots."""
    device, count = cache.latent.device, cache.latent.shape[0] * PAGE
    widths = config.kv_lora_rank, config.qk_rope_head_dim, config.index_head_dim
    for start in range(0, count, _ROWS):
        slots = torch.arange(start, min(start + _ROWS, count), device=device)
        like: dict[str, Any] = {"generator": generator, "device": device, "dtype": dtype}
        latent, rotated, keys = (torch.randn(len(slots), width, **like) for width in widths)
        write_latent(cache, latent, rotated, slots)
        write_keys(cache, keys, slots)
