"""A graph at two points of its life, with one name for what is the same: the names of a printed graph count
its values, so that one value more would make every line after it another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from torch import fx
from torch.fx.node import Argument, Target, map_arg

from kernelweld.ir.printer import Printer, numbered


@dataclass(frozen=True, eq=False)
class Saved:
    """What a node was: passes change nodes in place."""

    node: fx.Node
    op: str
    target: Target
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    type: str

    @property
    def operands(self) -> list[fx.Node]:
        """The nodes among its arguments in order, each as often as it stands there."""
        found: list[fx.Node] = []
        map_arg((self.args, dict(self.kwargs)), found.append)
        return found


class Point:
    """The nodes of ``graph`` as they are now, and its text."""

    def __init__(self, graph: fx.Graph) -> None:
        self.names = numbered(graph.nodes)
        printer = Printer(graph.nodes, self.names)
        self.lines = tuple(map(printer.line, graph.nodes))
        self.nodes = saved(graph, printer)

    def lines_of(self, graph: fx.Graph) -> tuple[str, ...]:
        """The text of ``graph``, which was this one: what is the same has its name from here, all else gets
        numbers that nothing here has.
        """
        same = Pairing(self.nodes, saved(graph, Printer(graph.nodes))).run()
        new = count(len(self.names))
        values = (node for node in graph.nodes if node.op != "output")
        names = {node: self.names[same[node]] if node in same else f"%{next(new)}" for node in values}
        return tuple(map(Printer(graph.nodes, names).line, graph.nodes))


def saved(graph: fx.Graph, printer: Printer) -> tuple[Saved, ...]:
    """The nodes of ``graph`` as they are now."""
    return tuple(Saved(n, n.op, n.target, n.args, dict(n.kwargs), _type(n, printer)) for n in graph.nodes)


def _type(node: fx.Node, printer: Printer) -> str:
    return "" if node.op == "output" else printer.typed(node).partition(": ")[2]


class Pairing:
    """Finds for the nodes of a later graph those of an earlier one that they are, or stand for.

    A node is itself. Of the others, one that calls the same on the same operands is the same; and where two
    nodes are the same, so are the operands at the same places if nothing else is known of them: a kernel's
    result is named as what it replaced.
    """

    def __init__(self, before: Sequence[Saved], after: Sequence[Saved]) -> None:
        self._before = {one.node: one for one in before}
        self._after = {one.node: one for one in after}
        self._same = {one.node: one.node for one in after if one.node in self._before}

    def run(self) -> Mapping[fx.Node, fx.Node]:
        """The earlier node of each later one that has one."""
        self._down()
        self._up()
        self._down()
        return self._same

    def _down(self) -> None:
        """From operands to what is computed of them."""
        gone = self._before.keys() - set(self._same.values())
        keyed = ((_key(one), node) for node, one in reversed(self._before.items()) if node in gone)
        free = {key: node for key, node in keyed if key is not None}
        for node, one in self._after.items():
            key = None if node in self._same else _key(one, self._same)
            if key is not None and key in free:
                self._same[node] = free.pop(key)

    def _up(self) -> None:
        """From what reads values to the values."""
        taken = set(self._same.values())
        for node, one in reversed(self._after.items()):
            earlier = self._before.get(self._same[node]) if node in self._same else None
            if earlier is not None:
                for operand, old in self._operands(earlier, one):
                    if operand not in self._same and old not in taken:
                        self._same[operand] = old
                        taken.add(old)

    def _operands(self, before: Saved, after: Saved) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Operands at the same places of two calls of the same, where they have one type."""
        now, then = after.operands, before.operands
        if after.target == before.target and len(now) == len(then):
            for operand, old in zip(now, then, strict=True):
                one, other = self._after.get(operand), self._before.get(old)
                if one is not None and other is not None and one.type == other.type:
                    yield operand, old


def _key(one: Saved, same: Mapping[fx.Node, fx.Node] | None = None) -> tuple[object, ...] | None:
    """Equal for calls of the same on the same. None for no call, and if an operand is not in ``same``."""
    if one.op not in ("call_function", "get_attr"):
        return None
    if same is not None and not all(operand in same for operand in one.operands):
        return None
    earlier = (lambda node: node) if same is None else same.__getitem__
    arguments = map_arg((one.args, dict(one.kwargs)), lambda node: f"<{id(earlier(node))}>")
    return one.op, str(one.target), one.type, repr(arguments)
