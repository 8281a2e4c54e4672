"""The graph with groups of nodes drawn together: what reaches what, and whether a set of nodes can
become one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from torch import fx

from kernelweld.passes.effects import following
from kernelweld.passes.tasks.steps import is_feature_slice, is_write, operands_of
from kernelweld.passes.tasks.views import is_view
from kernelweld.patterns.aliasing import VIEWS


class Contraction:
    """Disjoint groups over a graph in topological order. A group counts as one node: to enter it is to
    leave it from any member.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self._next = following(graph.nodes)
        self._group: dict[fx.Node, frozenset[fx.Node]] = {}

    def join(self, members: Iterable[fx.Node]) -> frozenset[fx.Node]:
        """Makes ``members`` one group, replacing the groups they were in."""
        group = frozenset(members)
        self._group.update(dict.fromkeys(group, group))
        return group

    def dissolve(self, members: Iterable[fx.Node]) -> None:
        """Takes nodes out of their group."""
        for node in members:
            self._group.pop(node, None)

    def group(self, node: fx.Node) -> frozenset[fx.Node]:
        """The group of a node; a node of its own is a group of one."""
        return self._group.get(node) or frozenset((node,))

    def is_convex(self, members: Collection[fx.Node]) -> bool:
        """Whether no path leaves ``members`` and comes back, so that they can run as one. Views on the
        way inside do not count; from a call with effects a path leads to the next one.
        """
        last = max(self.index[node] for node in members)
        seen: set[fx.Node] = set()
        stack = list(self._exits(members))
        while stack:
            node = stack.pop()
            if node in members:
                return False
            if node in seen:
                continue
            group = self.group(node)
            seen |= group
            if min(self.index[n] for n in group) <= last:
                stack.extend(n for member in group for n in self._followers(member))
        return True

    def _followers(self, node: fx.Node) -> Iterator[fx.Node]:
        yield from node.users
        if node in self._next:
            yield self._next[node]

    def _exits(self, members: Collection[fx.Node]) -> Iterator[fx.Node]:
        """The nodes that do outside work on values of ``members``, looking through views. One cache write of
        another's result, of another part of it, is no such work.
        """
        stack = [(user, is_write(node)) for node in members for user in node.users]
        seen: set[fx.Node] = set()
        while stack:
            node, of_cache = stack.pop()
            if node in members or node in seen:
                continue
            seen.add(node)
            if _is_carried(node) or (of_cache and node.target in VIEWS):
                stack.extend((user, of_cache) for user in node.users)
            else:
                yield node


def escaping(members: Collection[fx.Node]) -> frozenset[fx.Node]:
    """The members whose values are used outside, directly or through views."""
    return frozenset(node for node in members if _leaves(node, members))


def _leaves(node: fx.Node, members: Collection[fx.Node]) -> bool:
    for user in node.users:
        if user in members:
            continue
        if not _is_carried(user) or _leaves(user, members):
            return True
    return False


def producers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that compute the operands of ``node``, looking through views. A cache write waits for nobody
    to compute its cache.
    """
    rows = operands_of(node)[1:] if is_write(node) else node.all_input_nodes
    for operand in (value for value in rows if isinstance(value, fx.Node)):
        while _is_carried(operand):
            operand = operand.args[0]  # type: ignore[assignment]
        yield operand


def _is_carried(node: fx.Node) -> bool:
    return is_view(node) or is_feature_slice(node)
