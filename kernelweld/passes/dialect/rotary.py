"""``_C.rotary_embedding`` and ``vllm.flashinfer_rotary_embedding``: queries and keys turned in place, by
tables looked up in a cache.

Kernels whose schema has ``rope_dim_offset`` compute in float32 and round once, with a cache of any dtype;
those before round each product to the dtype of the queries, which is that of the cache. FlashInfer's round
once, with a cache in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import Rope, RopeTable
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.patterns.ops import FLOATS, Size, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss


def rotary_embedding(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``rotary_embedding(positions, query!, key!?, head_size, cos_sin_cache, is_neox, rope_dim_offset,
    inverse)``.
    """
    return _turned(call, build, once=call.has("rope_dim_offset"))


def flashinfer_rotary_embedding(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``flashinfer_rotary_embedding(positions, query!, key!, head_size, cos_sin_cache, is_neox)``."""
    return _turned(call, build, once=True)


def _turned(call: Call, build: Builder, *, once: bool) -> Sequence[fx.Node]:
    """The heads that ``call`` turns; products are rounded unless it rounds ``once``."""
    positions, query, key = cast("tuple[fx.Node, fx.Node, fx.Node | None]", call.values[:3])
    head_size, cache, is_neox = cast("tuple[int, fx.Node, bool]", call.values[3:6])
    offset, inverse = cast("tuple[int, bool]", call.values[6:8] or (0, False))
    if len(shape_of(positions)) != 1:
        raise Miss("the positions %{} have {} dimensions", positions, positions, len(shape_of(positions)))
    rotary_dim, dtype = shape_of(cache)[1], dtype_of(cache)
    if not isinstance(rotary_dim, int) or dtype is None or dtype not in FLOATS:
        raise Miss("the cache %{} is {}", cache, cache, dtype_name(dtype))
    turned = [x for x in (query, key) if x is not None]
    shapes = [_heads(x, head_size) for x in turned]
    tables = build.shared_words(RopeTable(source="cache", layout="half", dtype=dtype), positions, cache)
    cos, sin = (build.unsqueezed(table, 1) for table in tables)
    style = "neox" if is_neox else "interleaved"
    results = []
    for x, shape in zip(turned, shapes, strict=True):
        kept = dtype_of(x) or torch.float32
        word = Rope(rotary_dim, offset, style, "half", inverse, torch.float32 if once else kept, kept)
        results.append(build.reshaped(build.word(word, build.reshaped(x, shape), cos, sin), shape_of(x)))
    return results


def _heads(x: fx.Node, head_size: int) -> tuple[Size, ...]:
    """The shape of ``x`` as heads: ``[tokens, heads, head_size]``.

    Raises:
        Miss: it has none.
    """
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)))
    tokens, *rest = shape_of(x)
    width = rest[-1]
    if len(rest) == 2:
        return (tokens, *rest)
    if len(rest) != 1 or not isinstance(width, int) or width % head_size:
        raise Miss("%{} is not rows of heads of {}", x, x, head_size)
    return (tokens, width // head_size, head_size)
