"""``_C_cache_ops.reshape_and_cache_flash``: keys and values of tokens to their slots of paged caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import CacheWrite
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import aten, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss


def reshape_and_cache_flash(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``reshape_and_cache_flash(key, value, key_cache!, value_cache!, slot_mapping, kv_cache_dtype, k_scale,
    v_scale)``: caches ``[blocks, block, heads, D]`` of any strides; a slot below zero writes nothing.
    """
    key, value, key_cache, value_cache, slots = cast("tuple[fx.Node, ...]", call.values[:5])
    kind = call.values[5]
    if kind != "auto":
        raise Miss("the caches hold {}, scaled", call.node, kind)
    return [_written(build, cache, x, slots) for cache, x in ((key_cache, key), (value_cache, value))]


def _written(build: Builder, cache: fx.Node, x: fx.Node, slots: fx.Node) -> fx.Node:
    if cache.op != "placeholder" or not _is_kept(cache):
        raise Miss("the cache %{} is no input that the graph writes", cache, cache)
    if dtype_of(cache) != dtype_of(x):
        names = map(dtype_name, (dtype_of(cache), dtype_of(x)))
        raise Miss("the cache %{} is {}, the values {}", cache, cache, *names)
    if dtype_of(slots) not in (torch.int64, torch.int32):
        raise Miss("the slots %{} are {}", slots, slots, dtype_name(dtype_of(slots)))
    if not same_shape(shape_of(x)[1:], shape_of(cache)[2:]):
        raise Miss("%{} has not the heads of the cache %{}", x, x, cache)
    if not same_size(shape_of(x)[0], shape_of(slots)[0]):
        raise Miss("%{} has rows without a slot", x, x)
    return build.word(CacheWrite((0, 1), negative="nowhere"), cache, x, slots, None, None)


def _is_kept(cache: fx.Node) -> bool:
    return any(user.target is aten.copy_.default and user.args[0] is cache for user in cache.users)
