"""Inputs of ``sparse_mla``: slots in disorder with nothing (-1) among them, for every kind of cache."""

from __future__ import annotations

from typing import Any

import torch

from kernelweld.kernels.sparse_mla import Tiling, kernel, reference

e4m3, bf16, f32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32

#: Dtypes of queries and cache; uint8 is the packed one, which has rank 512 and rope 64.
KINDS = [
    (bf16, bf16),
    (f32, f32),
    (bf16, f32),
    (f32, bf16),
    (bf16, e4m3),
    (bf16, torch.uint8),
    (f32, torch.uint8),
]


def case(
    tokens: int,
    heads: int,
    count: int,
    rank: int = 32,
    rope: int = 16,
    block: int = 4,
    pages: int = 30,
    kinds: tuple[torch.dtype, torch.dtype] = KINDS[0],
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of the operator; about one slot in five is -1."""
    torch.manual_seed(tokens + 10 * heads + 100 * count)
    arguments = {
        "q": torch.randn(tokens, heads, rank + rope, device=device).to(kinds[0]),
        "cache": cache(pages, block, rank + rope, kinds[1], device),
        "slots": slots(tokens, count, pages * block).to(device),
    }
    if kinds[1] == e4m3:
        arguments["scale_kv"] = torch.tensor([0.013], device=device)
    return arguments | {"scale": (rank + rope) ** -0.5, "rank": rank}


def slots(tokens: int, count: int, rows: int) -> torch.Tensor:
    """Slots of a cache of ``rows`` for each token."""
    chosen = torch.randint(0, max(rows - 4, 1), (tokens, count), dtype=torch.int32)
    return torch.where(torch.rand(tokens, count) < 0.2, -1, chosen)


def cache(pages: int, block: int, width: int, kind: torch.dtype, device: str = "cpu") -> torch.Tensor:
    """A cache of random rows."""
    if kind != torch.uint8:
        rows = torch.randn(pages, block, width, device=device)
        return (rows * 80).to(kind) if kind == e4m3 else rows.to(kind)
    codes = torch.randn(pages, block, 512, device=device).mul(80).to(e4m3)
    scales = torch.rand(pages, block, 4, device=device).mul(0.02)
    rope = torch.randn(pages, block, 64, device=device).to(bf16)
    return torch.cat([part.view(torch.uint8) for part in (codes, scales, rope)], -1)


def assert_holds(arguments: dict[str, Any], tiling: Tiling | None = None) -> torch.Tensor:
    """The kernel's result, which is the reference's but for bfloat16 weights and the order of sums."""
    actual, expected = kernel(**arguments, tiling=tiling), reference(**arguments)
    narrow = torch.float32 not in (arguments["q"].dtype, arguments["cache"].dtype)
    error = (1e-2 if narrow else 1e-4) + (2**-8 if actual.dtype == bf16 else 0)
    size = expected.float().abs().amax(-1, keepdim=True)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert ((actual.float() - expected.float()).abs() <= error * size).all()
    return actual
