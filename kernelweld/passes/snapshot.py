"""A copy of a graph from which it can be put back, node for node, when a pass has failed half-way."""

from __future__ import annotations

from torch import fx


class Snapshot:
    """The nodes of ``graph`` and their metadata as they are now, at the cost of one copy of each node."""

    def __init__(self, graph: fx.Graph) -> None:
        self._copy = fx.Graph()
        _copy_nodes(graph, self._copy)

    def restore(self, graph: fx.Graph) -> None:
        """Makes ``graph``, the object that its owners hold, what it was; only names may get a new number."""
        _clear(graph)
        _copy_nodes(self._copy, graph)


def _clear(graph: fx.Graph) -> None:
    """Erases all nodes, also when a failed pass has left order and user lists in disarray."""
    nodes = list(graph.nodes)
    for node in nodes:
        for operand in node.all_input_nodes:
            operand.users[node] = None
    for node in nodes:
        node.args, node.kwargs = (), {}
    for node in nodes:
        node.users.clear()
        graph.erase_node(node)


def _copy_nodes(source: fx.Graph, target: fx.Graph) -> None:
    env: dict[fx.Node, fx.Node] = {}
    for node in source.nodes:
        env[node] = target.node_copy(node, env.__getitem__)
