"""Words in plain torch: what a kernel is judged against, and what runs where a word is left alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import fx

from kernelweld.ir import CacheWrite, QuantScale, Word
from kernelweld.passes.restore import trace


class Spellings:
    """The plain nodes of words, traced once for operands of one kind."""

    def __init__(self) -> None:
        self._known: dict[Hashable, fx.Graph] = {}

    def __call__(self, word: Word, values: Sequence[torch.Tensor | None]) -> fx.Graph:
        """``word`` of fake ``values`` as a graph whose output is a tuple."""
        key = (word, *map(_kind, values))
        if key not in self._known:
            self._known[key] = _spelled(word, values)
        return self._known[key]


def _kind(value: torch.Tensor | None) -> Hashable:
    if value is None:
        return None
    return value.dtype, value.device, str(tuple(value.shape)), str(value.stride())


def _spelled(word: Word, values: Sequence[torch.Tensor | None]) -> fx.Graph:
    def results(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        found = _formula(word, tensors)
        return found if isinstance(found, tuple) else (found,)

    return trace(torch.func.functionalize(results, remove="mutations"), values)


def _formula(word: Word, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The reference, with powers of two by their logarithm: the reference takes them from the bits of
    float32, which a run in float64 has not. Parts of a cache are written without changing memory.
    """
    if isinstance(word, CacheWrite) and len(tensors) > 4 and tensors[4] is not None:
        return _put_back(word, *tensors)
    if isinstance(word, QuantScale) and word.format == "ue8m0":
        plain = QuantScale(word.limit, word.eps, word.eps_place, word.inverse_limit).reference(*tensors)
        return torch.exp2(torch.ceil(torch.log2(plain)))
    return word.reference(*tensors)


def _put_back(word: CacheWrite, *tensors: torch.Tensor | None) -> torch.Tensor:
    """The tensor that the cache is a part of, with that part written."""
    *given, whole = tensors
    part = given[0]
    assert part is not None and whole is not None
    written = word.reference(*given)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(whole.shape, whole.stride(), strict=True))
    memory = whole.as_strided((extent,), (1,)).clone().view(part.dtype)
    start = part.storage_offset() - whole.storage_offset() * whole.dtype.itemsize // part.dtype.itemsize
    found = torch.as_strided_scatter(memory, written, part.shape, part.stride(), start)
    return found.view(whole.dtype).as_strided(whole.shape, whole.stride())
