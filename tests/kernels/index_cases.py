"""Inputs of ``index_logits``: pages in disorder, garbage where nothing may be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

e4m3, bf16, f32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32

#: Dtypes of queries and cache that belong together; uint8 is the packed one.
KINDS = [(e4m3, torch.uint8), (bf16, torch.uint8), (f32, torch.uint8), (e4m3, bf16), (bf16, bf16), (f32, f32)]


def case(
    lengths: Sequence[int],
    heads: int = 3,
    width: int = 32,
    block: int = 4,
    pages: int = 3,
    kinds: tuple[torch.dtype, torch.dtype] = KINDS[0],
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of the operator. Entries of the table beyond a length point nowhere."""
    tokens = len(lengths)
    torch.manual_seed(tokens + 10 * heads + width)
    count = tokens * pages + 1
    table = torch.randperm(count)[: tokens * pages].view(tokens, pages).int()
    used = torch.tensor(lengths).clamp_min(0)[:, None]
    table[torch.arange(pages)[None] * block >= used] = 1 << 30
    return {
        "q": torch.randn(tokens, heads, width, device=device).to(kinds[0]),
        "weights": torch.randn(tokens, heads, device=device),
        "cache": cache(count, block, width, kinds[1], device),
        "lengths": torch.tensor(lengths, dtype=torch.int32, device=device),
        "table": table.to(device),
        "block": block,
    }


def cache(pages: int, block: int, width: int, kind: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """A cache of random keys and, where packed, scales."""
    keys = torch.randn(pages, block, width, device=device)
    if kind != torch.uint8:
        return keys.to(kind)
    codes = keys.mul(20).to(e4m3).view(torch.uint8).flatten(1)
    scales = torch.rand(pages, block, device=device).add(0.01).view(torch.uint8)
    return torch.cat([codes, scales], 1).view(pages, block, width + 4)
