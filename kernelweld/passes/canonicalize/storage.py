"""What may be aliased: rewrites must not give an output or a written value a new alias."""

from __future__ import annotations

from torch import fx

from kernelweld.patterns.aliasing import VIEWS, storage_root, written


class Storage:
    """Values that leave the graph through views alone, and storages that the graph writes to."""

    def __init__(self, graph: fx.Graph) -> None:
        self._leaving: set[fx.Node] = set()
        self._written = {storage_root(target) for node in graph.nodes for target in written(node)}
        for output in graph.find_nodes(op="output"):
            for node in output.all_input_nodes:
                self._leave(node)

    def leaves(self, node: fx.Node) -> bool:
        """Whether ``node`` is an output, or an output is a view of it."""
        return node in self._leaving

    def may_alias(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether ``node``, a value of its own so far, may be replaced by (a view of) ``source``."""
        return (
            not self.leaves(node) and node not in self._written and storage_root(source) not in self._written
        )

    def is_written(self, node: fx.Node) -> bool:
        """Whether the graph writes to the storage that ``node`` makes."""
        return node in self._written

    def inherit(self, replacement: fx.Node, node: fx.Node) -> None:
        """Notes that ``replacement`` takes the place of ``node``."""
        if node in self._leaving:
            self._leave(replacement)

    def _leave(self, node: fx.Node) -> None:
        while node not in self._leaving:
            self._leaving.add(node)
            source = node.args[0] if node.target in VIEWS and node.args else None
            if not isinstance(source, fx.Node):
                return
            node = source
