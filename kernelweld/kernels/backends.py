"""Which library computes an operation of attention: DeepGEMM or FlashMLA where they can, else our kernel.

``KERNELWELD_ATTENTION`` is ``auto``, or ``triton`` for our own kernels always. It is read once, at the first
call, and libraries are looked for then. The calls follow the libraries' published interfaces (DeepGEMM's
``fp8_paged_mqa_logits``, FlashMLA's ``flash_mla_sparse_fwd`` and ``flash_mla_with_kvcache``, as vLLM calls
them) and are tested with stand-ins; they have not been run with the libraries themselves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache as once
from types import ModuleType

import torch

from kernelweld.errors import UnknownName

VARIABLE = "KERNELWELD_ATTENTION"
SETTINGS = ("auto", "triton")
_HOPPER = 9
_E4M3, _BF16, _BYTES = torch.float8_e4m3fn, torch.bfloat16, torch.uint8


@dataclass(frozen=True)
class Backend:
    """``name`` of the library and ``why`` it is this one; ``call`` takes the tensors, None for our own."""

    name: str
    why: str
    call: Callable[..., torch.Tensor] | None = None


@once
def setting() -> str:
    """The value of ``KERNELWELD_ATTENTION``. Raises UnknownName for one that is none."""
    value = os.environ.get(VARIABLE, "auto")
    if value not in SETTINGS:
        raise UnknownName("backend", value, SETTINGS, source=f"the environment variable {VARIABLE}")
    return value


@once
def library(name: str) -> ModuleType | None:
    """The module, None where it is not installed or does not load."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):
        return None


def of_index_logits(
    q: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor
) -> Backend:
    """DeepGEMM for e4m3 queries of 32 or 64 heads of 128 over packed pages of 64 rows, all contiguous."""
    needs = (
        ((q.dtype, cache.dtype) == (_E4M3, _BYTES), "it takes e4m3 queries and packed keys"),
        (q.shape[1] in (32, 64) and q.shape[2] == 128, "it takes 32 or 64 heads of 128"),
        (cache.shape[1] == 64, "it takes pages of 64 rows"),
        (all(x.is_contiguous() for x in (q, weights, cache, lengths, table)), "it takes contiguous tensors"),
    )
    return _chosen("deep_gemm", q.device, needs, _deep_gemm)


def of_sparse_mla(q: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, rank: int) -> Backend:
    """FlashMLA for bfloat16 queries of 64 or 128 heads over bfloat16 or packed rows, all contiguous."""
    packed = cache.dtype == _BYTES
    needs = (
        (q.dtype == _BF16 and cache.dtype in (_BF16, _BYTES), "it takes bfloat16 queries and no other cache"),
        (q.shape[1] in (64, 128), "it takes 64 or 128 heads"),
        ((q.shape[2], rank) == (576, 512), "it takes 576 elements with rank 512"),
        (slots.shape[1] > 0 and slots.shape[1] % 128 == 0, "it takes multiples of 128 slots"),
        (not packed or cache.shape[1] == 64, "it takes packed pages of 64 rows"),
        (all(x.is_contiguous() for x in (q, cache, slots)), "it takes contiguous tensors"),
    )
    return _chosen("flash_mla", q.device, needs, _flash_mla_packed if packed else _flash_mla)


def _chosen(
    name: str, device: torch.device, needs: Iterable[tuple[bool, str]], call: Callable[..., torch.Tensor]
) -> Backend:
    """The library if everything that it needs is there, else our own with the first reason."""
    if setting() == "triton":
        return Backend("triton", f"{VARIABLE}=triton")
    if (module := library(name)) is None:
        return Backend("triton", f"{name} is not installed")
    if torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return Backend("triton", f"{name} is used on Hopper only")
    for met, need in needs:
        if not met:
            return Backend("triton", f"{name} does not support this: {need}")
    return Backend(name, "installed, and it supports this", lambda *given: call(module, *given))


def _deep_gemm(
    module: ModuleType,
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    """DeepGEMM leaves columns beyond the lengths unwritten: they are filled afterwards."""
    columns, each = table.shape[1] * cache.shape[1], lengths.clamp(0)[:, None]
    plan = module.get_paged_mqa_logits_metadata(each, cache.shape[1], module.get_num_sms())
    logits = module.fp8_paged_mqa_logits(
        q[:, None], cache[:, :, None], weights, each, table, plan, columns, clean_logits=False
    )
    beyond = torch.arange(columns, device=q.device) >= each
    filled: torch.Tensor = logits[:, :columns].masked_fill(beyond, -torch.inf)
    return filled


def _flash_mla(
    module: ModuleType, q: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: float
) -> torch.Tensor:
    """Rows in bfloat16."""
    rows = cache.view(-1, 1, cache.shape[2])
    out: torch.Tensor = module.flash_mla_sparse_fwd(q, rows, slots[:, None], scale, d_v=512)[0]
    return out


def _flash_mla_packed(
    module: ModuleType, q: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: float
) -> torch.Tensor:
    """Packed rows: each token is a sequence of one query. Older versions need what newer ones ignore."""
    tokens, heads, _ = q.shape
    counts = torch.full((tokens,), slots.shape[1], dtype=torch.int32, device=q.device)
    plan, splits = module.get_mla_metadata(
        cache_seqlens=counts,
        num_q_tokens_per_head_k=heads,
        topk=slots.shape[1],
        num_heads_q=heads,
        num_heads_k=1,
        is_fp8_kvcache=True,
    )
    out: torch.Tensor = module.flash_mla_with_kvcache(
        q=q[:, None],
        k_cache=cache[:, :, None],
        block_table=None,
        cache_seqlens=None,
        head_dim_v=512,
        tile_scheduler_metadata=plan,
        num_splits=splits,
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=slots[:, None],
    )[0]
    return out[:, 0]
