"""``cache_write``: rows scattered to their slots of a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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

    Shapes: ``cache [c0, c1, ...]``, ``index`` of any shape, ``index2`` of the same, ``value`` the cache's
    dimensions that are not indexed with the index's in between, in the cache's dtype (leading ones may be
    left out); out like the cache, all bytes outside the places written as they were. No rounding.
    """

    kind = "cache_write"
    operands = ("cache", "value", "index", "index2?")

    dims: tuple[int, ...]
    place: int = 0
    negative: str = "end"

    def check(self, *tensors: torch.Tensor | None) -> None:
        cache, value, *given = tensors
        assert cache is not None and value is not None
        indices = [index for index in given if index is not None]
        ascending = self.dims == tuple(sorted(set(self.dims)))
        if not ascending or not self.dims or not 0 <= self.dims[0] <= self.dims[-1] < cache.dim():
            raise BadOperand(
                self.kind, "cache", f"{cache.dim()} dimensions", f"one with dimensions {self.dims}"
            )
        if not 1 <= len(indices) <= len(self.dims) <= 2:
            got = f"{len(indices)} for dimensions {self.dims}"
            raise BadOperand(self.kind, "index", got, "slots, or an index for each of one or two dimensions")
        check_dtype(self.kind, "value", value, (cache.dtype,))
        for operand, index in zip(("index", "index2"), indices, strict=False):
            check_dtype(self.kind, operand, index, INTEGERS)
            check_shape(self.kind, operand, index, indices[0].shape)
        rest = [size for dim, size in enumerate(cache.shape) if dim not in self.dims]
        rows = (*rest[: self.place], *indices[0].shape, *rest[self.place :])
        missing = max(len(rows) - value.dim(), 0)
        omitted = all(isinstance(size, int) and size == 1 for size in rows[:missing])
        check_shape(self.kind, "value", value, rows[missing:] if omitted else rows)

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        cache, value, *given = tensors
        assert cache is not None and value is not None
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
