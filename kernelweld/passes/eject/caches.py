"""Writes to caches in torch: the part of a cache that is written, and rows put to their places in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import sympy

from kernelweld.ir.cache_write import CacheWrite
from kernelweld.passes.eject.layout import statement
from kernelweld.passes.eject.subject import Given, Subject
from kernelweld.passes.verification.specimen import CachePart


def part_of(part: CachePart, subject: Subject) -> str:
    """The written part of its cache as an expression: by indexing, or by a function for its strides."""
    cache = subject.inputs[part.cache]
    seen = cache.name if part.dtype == cache.dtype else f"{cache.name}.view({part.dtype})"
    found = next(_indexed(part, cache, subject.traced), None)
    if found is not None:
        return f"{seen}{found}"
    return f"{strided_name(part, cache)}({cache.name})"


def strided_name(part: CachePart, cache: Given) -> str:
    """What the function for a part is called that no index gives."""
    dtype = str(part.dtype).removeprefix("torch.")
    return f"_part_of_{cache.name}_{dtype}_{part.start}"


def strided_lines(part: CachePart, cache: Given) -> list[str]:
    """That function."""
    seen = cache.name if part.dtype == cache.dtype else f"{cache.name}.view({part.dtype})"
    place = f"part.storage_offset() + {part.start}" if part.start else "part.storage_offset()"
    return [
        f"def {strided_name(part, cache)}({cache.name}: torch.Tensor) -> torch.Tensor:",
        '    """The part that is written, by its strides."""',
        f"    part = {seen}",
        *statement(f"return part.as_strided({part.shape}, {part.strides}, {place})", 4),
    ]


def _indexed(part: CachePart, cache: Given, traced: Callable[[sympy.Expr], int]) -> Iterator[str]:
    """The ways to index the cache that give the part; an empty text is all of it."""
    shape, strides = (list(map(traced, extents)) for extents in (cache.shape, cache.strides))
    if cache.dtype != part.dtype:
        shape, strides = _seen(shape, strides, cache, part)
    yield from _tries(part, shape, strides)
    for dim in range(len(shape) - 1):
        if strides[dim] == strides[dim + 1] * shape[dim + 1]:
            joined = [*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :]]
            for text in _tries(part, joined, [*strides[:dim], *strides[dim + 1 :]]):
                yield f".flatten({dim}, {dim + 1}){text}"


def _tries(part: CachePart, shape: Sequence[int], strides: Sequence[int]) -> Iterator[str]:
    places = [None, *range(len(shape))]
    for taken, cut in product(places, places):
        text = _tried(part, shape, strides, taken, cut)
        if text is not None:
            yield text


def _seen(
    shape: Sequence[int], strides: Sequence[int], cache: Given, part: CachePart
) -> tuple[list[int], list[int]]:
    """Bytes as elements of another dtype."""
    width = part.dtype.itemsize // cache.dtype.itemsize
    return [*shape[:-1], shape[-1] // width], [*(s // width for s in strides[:-1]), strides[-1]]


def _tried(
    part: CachePart, shape: Sequence[int], strides: Sequence[int], taken: int | None, cut: int | None
) -> str | None:
    """The part as one index of dimension ``taken`` and a range of ``cut``, if it is that."""
    kept = [dim for dim in range(len(shape)) if dim != taken]
    if (taken is not None and cut is not None) or len(part.shape) != len(kept):
        return None
    sizes, start, items = [shape[dim] for dim in kept], part.start, [":"] * len(shape)
    if tuple(strides[dim] for dim in kept) != part.strides:
        return None
    if taken is not None:
        number, start = start // strides[taken], start % strides[taken]
        items[taken] = str(number)
        if not 0 <= number < shape[taken]:
            return None
    if cut is not None:
        first, start = start // strides[cut], start % strides[cut]
        length = part.shape[kept.index(cut)]
        if first + length > shape[cut]:
            return None
        sizes[kept.index(cut)] = length
        items[cut] = f"{first or ''}:{first + length if first + length < shape[cut] else ''}"
    if start or tuple(sizes) != part.shape:
        return None
    while items and items[-1] == ":":
        items.pop()
    if len(items) == len(shape) > 1 and set(items[:-1]) == {":"}:
        return f"[..., {items[-1]}]"
    return f"[{', '.join(items)}]" if items else ""


def write_lines(word: CacheWrite, part: CachePart, ranks: Sequence[int]) -> list[str]:
    """The body of a function that writes ``rows`` to ``part`` at ``index`` (and ``index2``). ``ranks`` are
    those of the rows and of the indices.
    """
    rows_rank, rank = ranks[:2]
    indices = ["index", "index2"][: len(ranks) - 1]
    lines: list[str] = []
    rows = "rows"
    missing = len(part.shape) - len(word.dims) + rank - rows_rank
    if missing > 0:
        rows = f"{rows}[{'None, ' * (missing - 1)}None]"
    if word.negative == "nowhere":
        rows, indices = _existing(word, rank, rows, indices, lines)
    elif _moves(word):
        rows = _front(rows, word.place, rank)
    if len(indices) < len(word.dims):
        block = f"part.shape[{word.dims[1]}]"
        lines.append(f"index, index2 = {indices[0]} // {block}, {indices[0]} % {block}")
        indices = ["index", "index2"]
    lines.append(f"{_target(word, indices)} = {rows}")
    return [line for text in lines for line in statement(text, 4)]


def _existing(
    word: CacheWrite, rank: int, rows: str, indices: Sequence[str], lines: list[str]
) -> tuple[str, list[str]]:
    """Rows and indices without those that are below zero, which are written nowhere."""
    tests = [f"{index} >= 0" for index in indices]
    lines.append(f"kept = {tests[0] if len(tests) == 1 else ' & '.join(f'({test})' for test in tests)}")
    rows = f"{_front(rows, word.place, rank)}[kept]"
    return rows, [f"{index}[kept]" for index in indices]


def _front(rows: str, place: int, rank: int) -> str:
    """The dimensions of the index first."""
    if place == 0:
        return rows
    return f"{rows}.movedim({tuple(range(place, place + rank))}, {tuple(range(rank))})"


def _moves(word: CacheWrite) -> bool:
    """Whether indexing puts the dimensions of the index elsewhere than the rows have them."""
    return not _together(word) or word.dims[0] != word.place


def _together(word: CacheWrite) -> bool:
    return list(word.dims) == list(range(word.dims[0], word.dims[0] + len(word.dims)))


def _target(word: CacheWrite, indices: Sequence[str]) -> str:
    """What is assigned to: dimensions indexed apart come first by themselves, others are moved there."""
    front = word.negative == "nowhere" or _moves(word)
    if front and _together(word) and word.dims[0] != 0:
        moved = f"part.movedim({word.dims}, {tuple(range(len(word.dims)))})"
        return f"{moved}[{', '.join(indices)}]"
    items = [":"] * (word.dims[-1] + 1)
    for dim, index in zip(word.dims, indices, strict=True):
        items[dim] = index
    return f"part[{', '.join(items)}]"
