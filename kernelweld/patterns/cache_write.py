"""Cache writes in FX: an ``index_put`` into a graph input, or a part of it, whose result is copied back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir import CacheWrite, word_of
from kernelweld.patterns.aliasing import storage_root
from kernelweld.patterns.cache_part import part_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import Size, argument, aten, dtype_name, dtype_of, is_call, shape_of, shape_text
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else

_INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class CacheWritePattern(ReadingPattern):
    """``cache[index] = value``, ``cache[block, offset] = value``, ``cache.index_copy_(dim, index, value)``:
    as the compiler sees them, a new value for an input. Of a part of an input (``cache[0]``,
    ``cache[..., :512]``, ``cache.view(dtype)``) the word is a new value of all of it.
    """

    name: ClassVar[str] = "cache_write"
    kind: ClassVar[str] = "cache_write"
    spelling: ClassVar[str] = "`cache[index] = value`, with one index a row"
    anchors: ClassVar[tuple[OpOverload, ...]] = (aten.index_put.default, aten._unsafe_index_put.default)

    def read(self, anchor: fx.Node) -> Match:
        cache, given, value = anchor.args[:3]
        assert isinstance(cache, fx.Node) and isinstance(value, fx.Node) and isinstance(given, (list, tuple))
        root = storage_root(cache)
        if argument(anchor, 3, "accumulate", False) or not is_kept(root):
            raise _written_before(anchor, root)
        dims, indices = _indices(anchor, given)
        place = dims[0] if dims == tuple(range(dims[0], dims[-1] + 1)) else 0
        _check_value(anchor, cache, value, indices[0], dims, place)
        cover = Cover()
        cover.take(anchor)
        places = _places(indices, shape_of(cache)[dims[-1]], cover)
        operands = (cache, _typed(cache, value, cover), *places)
        part = part_of(cache, anchor)
        if part is None:
            return cover.match(CacheWrite(dims, place), (*operands, None), anchor)
        cover.take(*part.backs)
        cover.share(*part.views)
        found = cover.match(CacheWrite(dims, place), (*operands, part.whole), part.backs[-1])
        return replace(found, keeps_strides=True)


def _typed(cache: fx.Node, value: fx.Node, cover: Cover) -> fx.Node:
    """The value whose bytes are written: that below a view as bytes, for a cache of bytes."""
    if dtype_of(cache) != torch.uint8 or not is_call(value, aten.view.dtype):
        return value
    source = value.args[0]
    assert isinstance(source, fx.Node)
    cover.share(value)
    return source


def _written_before(anchor: fx.Node, root: fx.Node) -> Miss:
    if not is_call(root, aten.select_scatter.default, aten.slice_scatter.default):
        return something_else(anchor)
    return Miss("its cache is written before by %{}, which is no cache write", root, root)


def is_kept(root: fx.Node) -> bool:
    """Whether ``root`` is an input that the graph writes a new value to at its end, perhaps by way of other
    cache writes.
    """
    while isinstance(word_of(root), CacheWrite) and isinstance(whole := argument(root, 4, "whole"), fx.Node):
        root = storage_root(whole)
    return root.op == "placeholder" and any(
        user.target is aten.copy_.default and user.args[0] is root for user in root.users
    )


def _indices(anchor: fx.Node, given: object) -> tuple[tuple[int, ...], tuple[fx.Node, ...]]:
    """The indexed dimensions, and their indices: one or two, integers of one shape."""
    assert isinstance(given, (list, tuple))
    found = {dim: index for dim, index in enumerate(given) if isinstance(index, fx.Node)}
    if not 1 <= len(found) <= 2:
        raise Miss("%{} is indexed in {} dimensions, not in one or two", anchor, anchor, len(found))
    first = next(iter(found.values()))
    for index in found.values():
        if dtype_of(index) not in _INTEGERS:
            template = "%{} is indexed by %{} of dtype {}, not by places"
            raise Miss(template, index, anchor, index, dtype_name(dtype_of(index)))
        if not same_shape(shape_of(index), shape_of(first)):
            template = "the indices %{} and %{} of %{} have different shapes"
            raise Miss(template, index, first, index, anchor, stage=NEARLY)
    return tuple(found), tuple(found.values())


def _places(indices: tuple[fx.Node, ...], block: Size, cover: Cover) -> tuple[fx.Node, fx.Node | None]:
    """The operands that say where: slots, or an index for each dimension."""
    slots = _slots(indices, block)
    if slots is not None:
        cover.share(*indices)
        return slots, None
    return indices[0], indices[1] if len(indices) > 1 else None


def _slots(indices: tuple[fx.Node, ...], block: Size) -> fx.Node | None:
    """The slots whose blocks and rows within a block ``indices`` are, if they are."""
    if len(indices) < 2 or not is_call(indices[0], aten.div.Tensor_mode):
        return None
    if not is_call(indices[1], aten.remainder.Scalar) or indices[0].kwargs.get("rounding_mode") != "floor":
        return None
    (slots, one), (same, other) = indices[0].args, indices[1].args
    found = slots is same and one == other == block and isinstance(block, int)
    return slots if found and isinstance(slots, fx.Node) else None


def _check_value(
    anchor: fx.Node, cache: fx.Node, value: fx.Node, index: fx.Node, dims: tuple[int, ...], place: int
) -> None:
    rest = [size for dim, size in enumerate(shape_of(cache)) if dim not in dims]
    expected = (*rest[:place], *shape_of(index), *rest[place:])
    missing = len(expected) - len(shape_of(value))
    if missing > 0 and all(same_size(size, 1) for size in expected[:missing]):
        expected = expected[missing:]
    if not same_shape(shape_of(value), expected):
        template = "the value %{} of shape {} is broadcast to the places of %{}, {}"
        if not all(isinstance(size, int) for size in (*shape_of(value), *expected)):
            template += "; torch._check tells which of these sizes are equal"
        shapes = shape_text(shape_of(value)), shape_text(expected)
        raise Miss(template, value, value, shapes[0], anchor, shapes[1], stage=NEARLY)
