"""Scales that a weld writes and another kernel moves: which, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import fx

from kernelweld.ir import E4M3, E8M0, word_of
from kernelweld.ir.origin import source_line
from kernelweld.ir.report import NearMiss
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.landing import is_copy, way
from kernelweld.passes.weld import Weld

aten = torch.ops.aten

#: Operators that put rows into a larger tensor.
_PADDING = frozenset(
    {aten.constant_pad_nd.default, aten.slice_scatter.default, aten.copy.default, aten.cat.default}
)

_REMEDY = "Let the scales be used as the weld writes them, one row after the other, or in tiles of 128 by 4."


def moved_scales(welds: Sequence[Weld]) -> tuple[NearMiss, ...]:
    """The bytes of scales that are padded or copied behind the weld that computes them."""
    return tuple(miss for weld in welds if _scales(weld) for miss in _moved(weld))


def _scales(weld: Weld) -> list[fx.Node]:
    return [node for node in weld.steps if isinstance(word_of(node), (E4M3, E8M0))]


def _moved(weld: Weld) -> Iterator[NearMiss]:
    places = program_of(weld)[1].outputs
    for node in _scales(weld):
        path = [node, *way(node, weld.steps)]
        reason = _reason(path, places, [user for user in path[-1].users if user not in weld.steps])
        word = word_of(node)
        if reason is not None and word is not None:
            line = source_line(node.meta)
            yield NearMiss(node.name, word.kind, line, reason, "layout", node.name, line, _REMEDY)


def _reason(path: Sequence[fx.Node], places: Collection[fx.Node], users: Sequence[fx.Node]) -> str | None:
    padding = next((user for user in users if user.target in _PADDING), None)
    if padding is not None:
        return f"written row by row: %{padding.name} pads it, in another kernel"
    copy = next((node for node in reversed(path) if is_copy(node)), None)
    if copy is not None and copy not in places:
        return f"written row by row: the views before %{copy.name} do not follow its rows, so it is a copy"
    return None
