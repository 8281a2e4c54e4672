"""Vertical grouping: each step joins the chain of its producers when their rows nest and nothing
outside lies between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from kernelweld.ir import word_of
from kernelweld.passes.contraction import Contraction, escaping, producers
from kernelweld.passes.tasks.axes import DomainMismatch
from kernelweld.passes.tasks.caches import clash
from kernelweld.passes.tasks.domain import find_domain
from kernelweld.passes.tasks.layout import Layout, lay_out
from kernelweld.passes.tasks.steps import is_step, is_write

#: A chain longer than this is cut: its registers would not fit, and planning stays linear.
MAX_STEPS = 24


class Chainer:
    """Grows chains over a graph, greedily in topological order."""

    def __init__(self, graph: fx.Graph) -> None:
        self.contraction = Contraction(graph)
        self.chains: dict[frozenset[fx.Node], Layout] = {}
        self.refusals: dict[fx.Node, str] = {}

    def run(self, graph: fx.Graph) -> list[tuple[fx.Node, ...]]:
        """All chains, each in topological order, in the order of their first steps."""
        for node in graph.nodes:
            if is_step(node):
                self._place(node)
        order = self.contraction.index
        chains = [tuple(sorted(chain, key=order.__getitem__)) for chain in self.chains]
        return sorted(chains, key=lambda chain: order[chain[0]])

    def _place(self, node: fx.Node) -> None:
        found = dict.fromkeys(self.contraction.group(p) for p in producers(node))
        neighbours = [group for group in found if group in self.chains and self._may_join(group, node)]
        candidates: list[Sequence[frozenset[fx.Node]]] = [neighbours] if len(neighbours) > 1 else []
        candidates += [[group] for group in sorted(neighbours, key=len, reverse=True)]
        for groups in candidates:
            if self._try(node, groups):
                return
        self._try(node, ())

    def _may_join(self, group: frozenset[fx.Node], node: fx.Node) -> bool:
        """Unnamed work that others need too is not drawn into one chain: the others would have to wait
        for that chain.
        """
        return any(word_of(member) is not None for member in group) or not escaping({*group, node}) & group

    def _try(self, node: fx.Node, groups: Sequence[frozenset[fx.Node]]) -> bool:
        members = {node}.union(*groups)
        if len(members) > MAX_STEPS:
            return False
        layout = self._fit(node, groups)
        if layout is None or not self.contraction.is_convex(members) or self._clashes(node, members):
            return False
        for group in groups:
            del self.chains[group]
        self.chains[self.contraction.join(members)] = layout
        return True

    def _clashes(self, node: fx.Node, members: Collection[fx.Node]) -> bool:
        """Whether a cache write cannot share a chain with another; it can still be a chain of its own."""
        several = is_write(node) and sum(map(is_write, members)) > 1
        reason = clash(members) if several else None
        if reason is not None:
            self.refusals[node] = reason
        return reason is not None

    def _fit(self, node: fx.Node, groups: Sequence[frozenset[fx.Node]]) -> Layout | None:
        """The layout of ``node`` behind the chains it joins; None if they share no domain."""
        try:
            layout = self._grown(node, groups)
            if groups or word_of(node) is not None:  # one unnamed step is no weld, whatever its rows
                find_domain(layout.copy(), escaping(set(layout.steps)))
        except DomainMismatch as mismatch:
            self.refusals[node] = mismatch.reason
            return None
        return layout

    def _grown(self, node: fx.Node, groups: Sequence[frozenset[fx.Node]]) -> Layout:
        if len(groups) > 1:
            members = [n for group in groups for n in group]
            return lay_out([*sorted(members, key=self.contraction.index.__getitem__), node])
        layout = self.chains[groups[0]].copy() if groups else Layout()
        layout.add(node)
        return layout
