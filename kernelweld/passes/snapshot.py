"""What a graph was, from which it can be put back, node for node, when a pass has failed half-way."""

from __future__ import annotations

from typing import NamedTuple

from torch import fx
from torch.fx.node import Argument, Target, map_arg


class _Saved(NamedTuple):
    """A node and what it was; arguments are immutable in torch.fx, so they need no copy."""

    node: fx.Node
    op: str
    target: Target
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    meta: dict[str, object]


class Snapshot:
    """The nodes of ``graph`` and their metadata as they are now. Costs a few microseconds a node."""

    def __init__(self, graph: fx.Graph) -> None:
        self._saved = [_Saved(n, n.op, n.target, n.args, n.kwargs, dict(n.meta)) for n in graph.nodes]

    def restore(self, graph: fx.Graph) -> None:
        """Makes ``graph``, the object that its owners hold, what it was; only names may get a new number."""
        names = {saved.node: saved.node.name for saved in self._saved}
        _clear(graph)
        env: dict[fx.Node, fx.Node] = {}
        for saved in self._saved:
            args, kwargs = map_arg((saved.args, dict(saved.kwargs)), env.__getitem__)
            new = graph.create_node(saved.op, saved.target, args, kwargs, names[saved.node], saved.node.type)
            new.meta = saved.meta
            env[saved.node] = new


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
