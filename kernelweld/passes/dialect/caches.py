"""``_C_cache_ops``: keys and values, latents, and keys of an indexer to their slots of paged caches.

Codes are of the quotient by a scale; the conversion of kernels saturates, as the clamp of the word does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import Quant, QuantScale
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.dialect.quants import E4M3, LIMIT, group_scale, is_row_major
from kernelweld.passes.dialect.storing import FP8, PLAIN, Store
from kernelweld.patterns.ops import HALVES, dtype_name, dtype_of, shape_of, shape_text
from kernelweld.patterns.reading import Miss

#: The smallest scale of a tile of a latent: the smallest normal float32.
_TINY = float(torch.finfo(torch.float32).tiny)
#: Widths of a latent with its scales and its rotated part: 512 codes in tiles, 4 scales, 64 halves.
_LATENT, _TILE, _ROTATED = 512, 128, 64
#: The smallest largest magnitude of an indexer's key, and its width.
_KEY_EPS, _KEY = 1e-4, 128


def reshape_and_cache_flash(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``reshape_and_cache_flash(key, value, key_cache!, value_cache!, slot_mapping, kv_cache_dtype, k_scale,
    v_scale)``: caches ``[blocks, block, heads, D]`` of any strides; a slot below zero writes nothing.
    """
    key, value, key_cache, value_cache, slots = cast("tuple[fx.Node, ...]", call.values[:5])
    kind, scales = call.values[5], cast("tuple[fx.Node, fx.Node]", call.values[6:8])
    store = Store(call, build, slots)
    rows = [_rows(store, x, kind, scale) for x, scale in zip((key, value), scales, strict=True)]
    return [store.write(cache, x) for cache, x in zip((key_cache, value_cache), rows, strict=True)]


def concat_and_cache_mla(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``concat_and_cache_mla(kv_c, k_pe, kv_cache!, slot_mapping, kv_cache_dtype, scale)``: a latent and its
    rotated part, side by side in a row of ``kv_cache [blocks, block, width]``.
    """
    latent, rotated, cache, slots = cast("tuple[fx.Node, ...]", call.values[:4])
    kind, scale = call.values[4], cast(fx.Node, call.values[5])
    store = Store(call, build, slots)
    if kind == "fp8_ds_mla":
        return [_tiled(store, latent, rotated, cache)]
    widths = [shape_of(x)[-1] for x in (latent, rotated)]
    if any(not isinstance(width, int) for width in widths):
        raise Miss("the widths of %{} and %{} are symbols", latent, latent, rotated)
    first, width = int(widths[0]), int(widths[0]) + int(widths[1])
    if shape_of(cache)[2:] != (width,):
        raise Miss("the rows of %{} are not {} wide", cache, cache, width)
    store.write(cache, _rows(store, latent, kind, scale), lambda c: build.part(c, 0, first))
    return [store.write(cache, _rows(store, rotated, kind, scale), lambda c: build.part(c, first, width))]


def _rows(store: Store, x: fx.Node, kind: object, scale: fx.Node) -> fx.Node:
    """``x`` as caches of ``kind`` hold it."""
    if kind in PLAIN:
        return x
    if kind not in FP8:
        raise Miss("the caches hold {}", x, kind)
    return store.codes(x, scale)


def _tiled(store: Store, latent: fx.Node, rotated: fx.Node, cache: fx.Node) -> fx.Node:
    """Codes of a latent with a scale for each tile, the scales, and the rotated part as it is: 656 bytes."""
    build, codes, scales = store.build, _LATENT, 4 * _LATENT // _TILE
    bytes_ = codes + scales + 2 * _ROTATED
    if dtype_of(cache) != torch.uint8 or shape_of(cache)[2:] != (bytes_,):
        name, shape = dtype_name(dtype_of(cache)), shape_text(shape_of(cache))
        raise Miss("the rows of %{}, {} {}, are not {} bytes", cache, cache, name, shape, bytes_)
    if shape_of(latent)[1:] != (_LATENT,) or shape_of(rotated)[1:] != (_ROTATED,):
        raise Miss("%{} and %{} are not {} and {} wide", latent, latent, rotated, _LATENT, _ROTATED)
    if dtype_of(latent) not in HALVES or dtype_of(rotated) not in HALVES:
        raise Miss("%{} and %{} are not of 16 bits", latent, latent, rotated)
    tokens = shape_of(latent)[0]
    tiles = build.reshaped(latent, (tokens, _LATENT // _TILE, _TILE))
    scale = build.word(QuantScale(LIMIT, _TINY, "scale"), tiles, None)
    coded = build.word(Quant(-LIMIT, LIMIT, "divide"), tiles, scale)
    _part(store, cache, build.reshaped(coded, (tokens, _LATENT)), 0, codes)
    _part(store, cache, build.reshaped(scale, (tokens, _LATENT // _TILE)), codes, codes + scales)
    return _part(store, cache, rotated, codes + scales, bytes_)


def _part(store: Store, cache: fx.Node, x: fx.Node, start: int, end: int) -> fx.Node:
    """``x`` written to bytes of the rows of ``cache``."""
    build = store.build
    return store.write(cache, x, lambda c: build.part(c, start, end), lambda c: build.bits(c, dtype_of(x)))


def indexer_k_quant_and_cache(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``indexer_k_quant_and_cache(k, kv_cache!, slot_mapping, quant_block_size, scale_fmt)``: codes of 128
    values with one scale. A block of ``kv_cache [blocks, block, 132]`` holds the codes of all its keys, and
    then their scales.
    """
    k, cache, slots = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values[:3])
    group, kind = call.values[3:5]
    blocks, block, *rest = shape_of(cache)
    if group != _KEY or shape_of(k)[1:] != (_KEY,) or not is_row_major(k) or dtype_of(k) not in HALVES:
        raise Miss("the keys %{} are not rows of 128 values of 16 bits, one group each", k, k)
    if dtype_of(cache) != torch.uint8 or rest != [_KEY + 4] or not is_row_major(cache):
        raise Miss("the cache %{} is not pages of rows of {} bytes", cache, cache, _KEY + 4)
    if not isinstance(block, int):
        raise Miss("the blocks of %{} are of a size that is a symbol", cache, cache)
    scale = build.word(group_scale(LIMIT, _KEY_EPS, kind == "ue8m0"), k, None)
    coded = build.word(Quant(-LIMIT, LIMIT, "divide"), k, scale)
    store, end = Store(call, build, slots), block * _KEY

    def pages(c: fx.Node) -> fx.Node:
        return build.reshaped(c, (blocks, block * (_KEY + 4)))

    def codes(c: fx.Node) -> fx.Node:
        return build.reshaped(build.bits(build.part(c, 0, end), E4M3), (blocks, block, _KEY))

    def scales(c: fx.Node) -> fx.Node:
        return build.bits(build.part(c, end, end + 4 * block), torch.float32)

    store.write(cache, coded, pages, codes)
    return [store.write(cache, build.reshaped(scale, shape_of(k)[:1]), pages, scales)]
