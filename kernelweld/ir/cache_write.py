"""``cache_write``: rows scattered to their slots of a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import INTEGERS, check_dtype, check_shape
from kernelweld.ir.word import Word


@dataclass(frozen=True)
class CacheWrite(Word):
    """A cache with rows of ``value`` written at places that ``index`` (and ``index2``) give.

    ``dims`` are the dimensions of the cache that are indexed, ascending; ``place`` is the position at which
    the dimensions of the index stand among those of the value, as in ``cache[:, :, index] = value``. Paged
    keys and values are caches ``[blocks, block, heads, D]`` indexed in (0, 1), or in (0, 2) where heads come
    before the block; a static cache ``[B, heads, length, D]`` in (2,). Two dimensions with one index are
    indexed by slots: block ``slot // size`` and row ``slot % size`` of it, with the second dimension's size.

    ``negative``: where an index below zero points. ``"end"`` counts from the end, as in Python and torch;
    ``"nowhere"`` writes nothing: the slot -1 of a padded batch. An index beyond the cache is an error of the
    caller; kernels write nothing for it. Which of several rows with one place remains is not defined.

    With ``whole`` the cache is a part of it: a view, such as the keys of a tensor that holds keys and values,
    a slice of its last dimension, or its bytes as another dtype. The result then is ``whole`` with the rows
    written to that part.

    Shapes: ``cache [c0, c1, ...]``, ``index`` of any shape, ``index2`` of the same, ``value`` the cache's
    dimensions that are not indexed with the index's in between, in the cache's dtype (leading ones may be
    left out); out like ``whole`` or else like the cache, all bytes outside the places written as they were.
    A cache of bytes (uint8) takes values of any dtype, whose bytes are written. No rounding.
    """

    kind = "cache_write"
    operands = ("cache", "value", "index", "index2?", "whole?")

    dims: tuple[int, ...]
    place: int = 0
    negative: str = "end"

    def check(self, *tensors: torch.Tensor | None) -> None:
        cache, value, index, index2, whole = _all(tensors)
        indices = [index] if index2 is None else [index, index2]
        ascending = self.dims == tuple(sorted(set(self.dims)))
        if not ascending or not self.dims or not 0 <= self.dims[0] <= self.dims[-1] < cache.dim():
            raise BadOperand(
                self.kind, "cache", f"{cache.dim()} dimensions", f"one with dimensions {self.dims}"
            )
        if not 1 <= len(indices) <= len(self.dims) <= 2:
            got = f"{len(indices)} for dimensions {self.dims}"
            raise BadOperand(self.kind, "index", got, "slots, or an index for each of one or two dimensions")
        if cache.dtype != torch.uint8:
            check_dtype(self.kind, "value", value, (cache.dtype,))
        for operand, places in zip(("index", "index2"), indices, strict=False):
            check_dtype(self.kind, operand, places, INTEGERS)
            check_shape(self.kind, operand, places, index.shape)
        rest = [size for dim, size in enumerate(cache.shape) if dim not in self.dims]
        rows = (*rest[: self.place], *index.shape, *rest[self.place :])
        missing = max(len(rows) - value.dim(), 0)
        omitted = all(isinstance(size, int) and size == 1 for size in rows[:missing])
        check_shape(self.kind, "value", _as(cache.dtype, value), rows[missing:] if omitted else rows)
        if whole is not None and _storage(whole) != _storage(cache):
            raise BadOperand(self.kind, "whole", "another tensor", "the one that `cache` is a part of")

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        cache, value, index, index2, whole = _all(tensors)
        written = self._written(cache, _as(cache.dtype, value), index, index2)
        return written if whole is None else _put_back(written, cache, whole)

    def _written(self, cache: torch.Tensor, value: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
        """A new cache with the rows of ``value``, of the cache's dtype."""
        indices = [index.long() for index in given if index is not None]
        if len(indices) < len(self.dims):
            block = cache.shape[self.dims[1]]
            indices = [indices[0] // block, indices[0] % block]
        front = tuple(range(len(self.dims)))
        rank = indices[0].dim()
        value = value[(None,) * (cache.dim() - len(self.dims) + rank - value.dim())]
        rows = value.movedim(tuple(range(self.place, self.place + rank)), tuple(range(rank)))
        if self.negative == "end":
            out = cache.clone()
            out.movedim(self.dims, front)[tuple(indices)] = rows
            return out
        moved = cache.movedim(self.dims, front)
        slots = moved.flatten(0, len(front) - 1) if len(front) > 1 else moved
        slot = indices[0] if len(front) == 1 else indices[0] * moved.shape[1] + indices[1]
        exists = torch.stack([index >= 0 for index in indices]).all(0)
        spare = torch.cat([slots, slots.new_zeros(1, *slots.shape[1:])])  # rows that go nowhere go here
        spare[torch.where(exists, slot, slots.shape[0])] = rows
        result: torch.Tensor = spare[:-1].unflatten(0, moved.shape[: len(front)]).movedim(front, self.dims)
        return result.contiguous() if cache.is_contiguous() else result


def _all(
    tensors: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The operands, with those that were not given."""
    cache, value, index, index2, whole = (*tensors, None, None)[:5]
    assert cache is not None and value is not None and index is not None
    return cache, value, index, index2, whole


def _as(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """The bytes of ``value`` as ``dtype``."""
    return value if value.dtype == dtype else value.contiguous().view(dtype)


def _storage(x: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(x.untyped_storage())


def _put_back(written: torch.Tensor, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A copy of ``whole``, strides kept, with ``written`` in the place of ``part``."""
    if whole.numel() == 0:
        return whole.clone()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(whole.shape, whole.stride(), strict=True))
    memory = whole.as_strided((extent,), (1,)).clone()
    first = whole.storage_offset() * whole.dtype.itemsize // part.dtype.itemsize
    place = memory.view(part.dtype).as_strided(part.shape, part.stride(), part.storage_offset() - first)
    place.copy_(written)
    return memory.as_strided(whole.shape, whole.stride(), 0)
