"""Operators that were replaced by words: which words stand for one call, and how the call is put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from kernelweld.ir.origin import Origin, graft

#: The key in ``node.meta`` under which a node that an operator was replaced by says so.
EXPANSION = "kernelweld_expansion"

#: Where an operand is found: the name of a graph input, or the number of a node of the expansion and the
#: places in arguments that lead from it to the operand.
Path = str | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Expansion:
    """What one call was replaced by.

    ``call`` is the original call with the buffers made for it; its placeholders are its other operands, its
    outputs the values it gave to others. ``paths`` say where each operand is read by the nodes that replace
    the call: nodes are replaced while passes run, so they are looked up when they are needed. ``results``
    are the numbers of the nodes with the values of the outputs, ``words`` those of the words. ``is_kernel``
    says whether the call launches a kernel, or is a name for plain operations that a later pass spells out.
    """

    name: str
    call: Origin
    paths: tuple[Path, ...]
    results: tuple[int, ...]
    words: frozenset[int]
    is_kernel: bool = True

    def __deepcopy__(self, memo: object) -> Expansion:
        return self  # immutable by convention; a copied graph may share it


@dataclass(frozen=True, eq=False)
class Member:
    """The part of a node in an expansion: its number."""

    expansion: Expansion
    number: int


@dataclass(frozen=True, eq=False)
class Expanded:
    """An expansion as it stands in a graph: those of its nodes that are there, by number."""

    expansion: Expansion
    nodes: Mapping[int, fx.Node]

    @property
    def words(self) -> tuple[fx.Node, ...]:
        """The words that are left."""
        return tuple(node for number, node in self.nodes.items() if number in self.expansion.words)

    @property
    def is_whole(self) -> bool:
        """Whether all words are there."""
        return self.expansion.words <= self.nodes.keys()

    def operands(self) -> Iterator[fx.Node]:
        """The operands of the call."""
        for path in self.expansion.paths:
            yield self._input(path) if isinstance(path, str) else self._operand(path)

    def _operand(self, path: tuple[int, ...]) -> fx.Node:
        node = self.nodes[path[0]]
        for place in path[1:]:
            node = node.args[place]  # type: ignore[assignment]
        return node

    def _input(self, name: str) -> fx.Node:
        graph = next(iter(self.nodes.values())).graph
        inputs: Iterable[fx.Node] = graph.find_nodes(op="placeholder")
        return next(node for node in inputs if node.target == name)


def expanded(nodes: Iterable[fx.Node]) -> tuple[Expanded, ...]:
    """The expansions that ``nodes`` belong to, in the order of their first nodes."""
    found: dict[Expansion, dict[int, fx.Node]] = {}
    for node in nodes:
        member = node.meta.get(EXPANSION)
        if isinstance(member, Member):
            found.setdefault(member.expansion, {})[member.number] = node
    return tuple(Expanded(expansion, members) for expansion, members in found.items())


def fold(one: Expanded) -> list[tuple[fx.Node, object]]:
    """Puts the call back in place of its words; returns what the call gives to others, each with the value
    that its users knew.

    The call stands after its last operand, which may be after a user of its results: the graph is to be
    sorted. Nodes of the expansion that others still read stay.
    """
    operands = tuple(one.operands())
    graph = next(iter(one.nodes.values())).graph
    inputs = graph.find_nodes(op="placeholder")
    place = max([*operands, *inputs[-1:]])
    with graph.inserting_before(place.next):
        results = graft(graph, one.expansion.call, operands)
    numbered = zip(one.expansion.results, results, strict=True)
    pairs = [(one.nodes[number], result) for number, result in numbered if number in one.nodes]
    for word, result in pairs:
        word.replace_all_uses_with(result)
    for _, node in sorted(one.nodes.items(), reverse=True):
        if not node.users:
            graph.erase_node(node)
    return [(result, word.meta["val"]) for word, result in pairs]
