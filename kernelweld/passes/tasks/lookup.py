"""Tables of rotations that a kernel looks up itself: rows of a cache, at the positions of its own rows.

A table of its own costs a launch, which one kernel of rotations is not worth. Where more of them share it,
it is: each of them would wait for a position before it knows where its cosines are.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.ir import RopeTable, word_of
from kernelweld.passes.tasks.views import sizes_of

aten = torch.ops.aten

#: Queries and keys of one layer are rotated by one kernel.
FEW = 2

_LEADING = frozenset(
    {aten.reshape.default, aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims}
)


@dataclass(frozen=True)
class Lookup:
    """Half a row of ``cache [places, 2H]`` for each of ``positions``: the first half, or the second."""

    cache: fx.Node
    positions: fx.Node
    second: bool


def lookup_of(table: fx.Node) -> Lookup | None:
    """How a kernel looks up ``table``, cosines or sines with the dimensions of positions before the last;
    None if it reads them from memory of their own.
    """
    half = _viewed(table)
    if half.op != "call_function" or half.target is not operator.getitem:
        return None
    tables: fx.Node = half.args[0]  # type: ignore[assignment]
    word = word_of(tables)
    if not isinstance(word, RopeTable) or not _is_plain(word, tables) or len(set(_readers(tables))) > FEW:
        return None
    positions, cache = tables.args
    assert isinstance(positions, fx.Node) and isinstance(cache, fx.Node)
    moving = [[s for s in sizes if s != 1] for sizes in (sizes_of(table)[:-1], sizes_of(positions))]
    return Lookup(cache, positions, bool(half.args[1])) if moving[0] == moving[1] else None


def is_looked_up(tables: fx.Node, steps: Collection[fx.Node]) -> bool:
    """Whether kernels of ``steps`` look up all that anything reads of the table ``tables``."""
    readers = set(_readers(tables))
    read = [x for reader in readers for x in reader.all_input_nodes if _is_half(_viewed(x), tables)]
    return bool(read) and readers <= set(steps) and all(lookup_of(x) is not None for x in read)


def _is_half(node: fx.Node, tables: fx.Node) -> bool:
    return node.target is operator.getitem and node.args[0] is tables


def _viewed(node: fx.Node) -> fx.Node:
    """What ``node`` is, but for dimensions before the last."""
    while node.target in _LEADING and sizes_of(node)[-1:] == sizes_of(node.args[0])[-1:]:  # type: ignore[arg-type]
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_plain(word: RopeTable, node: fx.Node) -> bool:
    """Whether the halves of a row are the table, but for a widening."""
    positions, cache = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    kept = word.dtype in (torch.float32, cache.dtype)
    integer = positions.dtype in (torch.int32, torch.int64)
    return (word.source, word.layout, word.section_order) == ("cache", "half", "none") and kept and integer


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a table, itself or by way of views."""
    for user in node.users:
        if user.target in _LEADING or user.target is operator.getitem:
            yield from _readers(user)
        else:
            yield user
