"""Rows that are joined of the results of several chains: each writes its piece, and no copy joins them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.passes.contraction import escaping, producers
from kernelweld.passes.tasks.axes import DomainMismatch
from kernelweld.passes.tasks.domain import find_domain
from kernelweld.passes.tasks.landing import is_joined_of, landing, pieces_of
from kernelweld.passes.tasks.layout import lay_out
from kernelweld.passes.tasks.steps import is_concat
from kernelweld.passes.weld import Chain

_CAT = torch.ops.aten.cat.default


@dataclass(frozen=True)
class Join:
    """A concatenation ``node`` of the results of ``chains``, which are to share a launch."""

    node: fx.Node
    chains: tuple[Chain, ...]


def cut_joins(
    graph: fx.Graph, chains: Sequence[Chain], kept: Collection[fx.Node]
) -> tuple[list[Chain], list[Join]]:
    """``chains`` without the concatenations that join their results, and those joins but for the ``kept``.

    A chain that joins its result with that of another waits for that one. Where nothing but the joined row
    reads the pieces, the kernel of both chains can write them side by side instead.
    """
    home = {step: chain for chain in chains for step in chain.steps}
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in graph.find_nodes(op="call_function", target=_CAT):
        if node not in kept and is_concat(node) and _is_cut(node, home):
            found[node] = pieces_of(node)
    trimmed = {chain: _without(chain, found) for chain in chains}
    joins = [
        Join(node, tuple(dict.fromkeys(trimmed[home[piece]] for piece in pieces)))
        for node, pieces in found.items()
    ]
    return [chain for chain in trimmed.values() if chain.steps], joins


def joined_by(pack: Sequence[Chain], joins: Sequence[Join]) -> tuple[fx.Node, ...]:
    """The concatenations of ``joins`` whose pieces all come from ``pack`` and can be written in place."""
    steps = {step for chain in pack for step in chain.steps}
    found = (join.node for join in joins if is_joined_of(join.node, steps))
    return tuple(node for node in found if all(map(_Landings(pack, node).lands, pieces_of(node))))


@dataclass(frozen=True)
class _Landings:
    """Whether pieces of ``joined`` come to lie in it, if the kernel of ``pack`` writes them."""

    pack: Sequence[Chain]
    joined: fx.Node

    def lands(self, piece: fx.Node) -> bool:
        """One piece alone would leave the rest of the row unwritten: all must."""
        (chain,) = [chain for chain in self.pack if piece in chain.steps]
        try:
            layout = lay_out(chain.steps)
            domain = find_domain(layout, escaping(chain.steps))
        except DomainMismatch:
            return False
        return landing(layout, domain, piece, (self.joined,)).place is self.joined


def _is_cut(node: fx.Node, home: Mapping[fx.Node, Chain]) -> bool:
    """Whether ``node`` joins results of at least two chains, which nothing else reads, and ends its own."""
    pieces = pieces_of(node)
    if not pieces or any(piece not in home for piece in pieces):
        return False
    own = home.get(node)
    ends = own is None or not any(node in producers(step) for step in own.steps)
    return ends and len({home[piece] for piece in pieces}) > 1


def _without(chain: Chain, nodes: Collection[fx.Node]) -> Chain:
    left = tuple(step for step in chain.steps if step not in nodes)
    return chain if len(left) == len(chain.steps) else Chain(left)
