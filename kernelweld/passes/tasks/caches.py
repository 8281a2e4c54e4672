"""Caches that a kernel writes in place: where their parts lie, and which of them one kernel may not write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import cast

import sympy
import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.tasks.axes import DomainMismatch, quotient
from kernelweld.passes.tasks.boxes import Box, disjoint
from kernelweld.passes.tasks.steps import is_write, operands_of
from kernelweld.passes.tasks.views import base_of, copied_from, expression
from kernelweld.patterns.aliasing import VIEWS, storage_root
from kernelweld.patterns.ops import argument

_READS = "the kernel would read the cache that it writes"
_TWICE = "one cache is written twice"


@dataclass(frozen=True)
class Part:
    """The part of ``whole`` that a cache write writes to, in elements of the dtype that it stores: sizes and
    strides of its dimensions, and how far its first element lies behind that of ``whole``.
    """

    whole: fx.Node
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr

    @property
    def box(self) -> Box:
        """Its bytes."""
        size = self.dtype.itemsize
        return Box(self.offset * size, self.sizes, tuple(stride * size for stride in self.strides), size)


def returns_whole(write: fx.Node) -> bool:
    """Whether ``write`` returns all of the tensor that it changes, not only the part that it sees."""
    return argument(write, 4, "whole") is not None


def returned(write: fx.Node) -> fx.Node:
    """The operand whose new value ``write`` returns."""
    return argument(write, 4, "whole") or write.args[0]  # type: ignore[return-value]


def whole_of(write: fx.Node) -> fx.Node:
    """The tensor that ``write`` changes: what its cache is a view of."""
    return base_of(returned(write))


def target_of(write: fx.Node, steps: Collection[fx.Node]) -> fx.Node:
    """The tensor that a kernel of ``steps`` is given for ``write``: as it is before any of them."""
    whole = whole_of(write)
    while whole in steps:
        whole = whole_of(whole)
    return whole


def part_of(write: fx.Node) -> Part:
    """The part that ``write`` writes to; DomainMismatch if it is not aligned to what is stored."""
    whole, (cache, value) = whole_of(write), (_value(node) for node in write.args[:2])
    before = _start(whole) / cache.dtype.itemsize
    offset = expression(cache.storage_offset()) - before
    sizes, strides = (tuple(map(expression, extents)) for extents in (cache.shape, cache.stride()))
    part = Part(whole, value.dtype, sizes, strides, offset)
    width = value.dtype.itemsize // cache.dtype.itemsize
    if width == 1:
        return part
    _exactly(_start(_unwritten(whole)), width)  # memory is aligned to all values, a tensor in it need not be
    return _of_values(part, width, cast(CacheWrite, word_of(write)).dims)


def _start(whole: fx.Node) -> sympy.Expr:
    """The byte of its memory that a tensor begins at."""
    return expression(_value(whole).storage_offset()) * _value(whole).dtype.itemsize


def _unwritten(whole: fx.Node) -> fx.Node:
    """The tensor as it was before all writes."""
    while is_write(whole):
        whole = whole_of(whole)
    return whole


def _of_values(part: Part, width: int, dims: tuple[int, ...]) -> Part:
    """``part``, measured in bytes, in values of ``width`` bytes."""
    if part.strides[-1] != 1 or len(part.sizes) - 1 in dims:
        raise DomainMismatch("the bytes of a value do not follow each other in the cache")
    *strides, size, offset = (_exactly(e, width) for e in (*part.strides[:-1], part.sizes[-1], part.offset))
    return replace(part, sizes=(*part.sizes[:-1], size), strides=(*strides, sympy.S.One), offset=offset)


def _exactly(extent: sympy.Expr, width: int) -> sympy.Expr:
    found = quotient(extent, sympy.Integer(width))
    if found is None:
        raise DomainMismatch(f"values of {width} bytes do not lie at multiples of their size in the cache")
    return found


def clash(steps: Collection[fx.Node]) -> str | None:
    """Why ``steps`` cannot be one kernel for the sake of a cache they write in place; None if they can.

    Programs of a kernel run in any order: one that reads a cache could see what another has written, and of
    two writes to one place either could be the last. Writes to different parts of one tensor may share a
    kernel, if nothing else sees the tensor between them.
    """
    writes = [node for node in steps if is_write(node)]
    if not writes:
        return None
    if any(whole in steps and not is_write(whole) for whole in map(whole_of, writes)):
        return "the kernel would write to a value that it computes"
    targets = defaultdict[StorageWeakRef, list[fx.Node]](list)
    for write in writes:
        targets[_storage(target_of(write, steps))].append(write)
    for group in targets.values():
        if len(group) > 1 and (reason := _conflict(group)) is not None:
            return reason
    return _READS if any(_reads(node, targets, steps) for node in steps) else None


def _reads(node: fx.Node, targets: Collection[StorageWeakRef], steps: Collection[fx.Node]) -> bool:
    """Whether a step reads a cache of ``targets``, before or after one of ``steps`` writes to it; also where
    it reads a copy, since the kernel may read what that is a copy of.
    """
    operands = [o for o in operands_of(node)[is_write(node) :] if isinstance(o, fx.Node) and o not in steps]
    operands += [source for o in operands if (source := copied_from(o)) is not None]
    behind = any(root in steps and is_write(root) for root in map(storage_root, operands))
    return behind or any(_storage(operand) in targets for operand in operands)


def _conflict(writes: Sequence[fx.Node]) -> str | None:
    """Why writes to one tensor cannot share a kernel."""
    line = _line(writes)
    if line is None:
        return _TWICE
    if any(set(_readers(first)) != {second} for first, second in pairwise(line)):
        return "a cache is read between two writes to it"
    try:
        boxes = [part_of(write).box for write in line]
    except DomainMismatch as mismatch:
        return mismatch.reason
    return None if all(disjoint(a, b) for a, b in combinations(boxes, 2)) else _TWICE


def _line(writes: Sequence[fx.Node]) -> list[fx.Node] | None:
    """The writes in the order in which each takes up the tensor that the one before leaves, if they do so."""
    after = {whole_of(write): write for write in writes}
    line = [write for write in writes if whole_of(write) not in writes]
    if len(line) != 1 or len(after) != len(writes):
        return None
    while line[-1] in after:
        line.append(after[line[-1]])
    return line if all(map(returns_whole, line)) else None


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What uses a value, itself or by way of views."""
    for user in node.users:
        if user.target in VIEWS:
            yield from _readers(user)
        else:
            yield user


def _storage(node: fx.Node) -> StorageWeakRef:
    return StorageWeakRef(_value(node).untyped_storage())


def _value(node: object) -> torch.Tensor:
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value
