"""Operators are welded whole or not at all: one whose words are not all in welds is put back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx

from kernelweld.ir.expansion import Expanded, expanded
from kernelweld.passes.weld import Chain, Weld

Pack = tuple[Chain, ...]


def whole_packs(graph: fx.Graph, packs: Sequence[Pack]) -> tuple[list[Pack], dict[fx.Node, str]]:
    """``packs`` without the chains that hold a part of an operator and not all of it, and the reason for
    each step that was given up.
    """
    found, lost = expanded(graph.nodes), dict[fx.Node, str]()
    while cut := _cut(found, (step for pack in packs for chain in pack for step in chain.steps)):
        torn = {word: one.expansion.name for one in cut for word in one.words}
        for chain in (chain for pack in packs for chain in pack):
            names = dict.fromkeys(torn[step] for step in chain.steps if step in torn)
            if names:
                reason = f"only a part of {' and '.join(names)} would be welded"
                lost.update(dict.fromkeys(chain.steps, reason))
        kept = (tuple(chain for chain in pack if chain.steps[0] not in lost) for pack in packs)
        packs = [pack for pack in kept if pack]
    return list(packs), lost


def whole_welds(graph: fx.Graph, welds: Sequence[Weld]) -> list[Weld]:
    """``welds`` without those that hold a part of an operator and not all of it."""
    found, kept = expanded(graph.nodes), list(welds)
    while cut := _cut(found, (step for weld in kept for step in weld.steps)):
        torn = {word for one in cut for word in one.words}
        kept = [weld for weld in kept if torn.isdisjoint(weld.steps)]
    return kept


def unwelded(graph: fx.Graph, welds: Iterable[Weld]) -> list[Expanded]:
    """The operators of which no word is in ``welds``."""
    steps = {step for weld in welds for step in weld.steps}
    return [one for one in expanded(graph.nodes) if one.is_whole and steps.isdisjoint(one.words)]


def _cut(found: Iterable[Expanded], steps: Iterable[fx.Node]) -> list[Expanded]:
    """The operators of which some words are among ``steps``, but not all."""
    held = set(steps)
    return [
        one
        for one in found
        if not (held.isdisjoint(one.words) or (one.is_whole and held.issuperset(one.words)))
    ]
