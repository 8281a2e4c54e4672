"""The part of a graph around a weld: what Inductor could fuse with its steps, and the calls that bound it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from torch import fx

from kernelweld.ir import word_of
from kernelweld.ir.expansion import Expanded, expanded
from kernelweld.ir.origin import ORIGIN
from kernelweld.passes.launches.sizes import is_tensor
from kernelweld.passes.launches.traits import Trait, trait_of
from kernelweld.passes.tasks.lookup import lookup_of
from kernelweld.passes.tasks.steps import is_feature_slice
from kernelweld.passes.tasks.views import base_of, is_view, original_of

#: A region ends after so many nodes: what is farther away is not fused with the weld.
NODES = 256
#: Nor is it by way of a value with more users: Inductor writes that to memory.
FAN_OUT = 16
#: How many nodes are searched to find out which calls a call waits for.
LOOK_BACK = 256

_Group: TypeAlias = tuple[fx.Node, ...]
#: A value of a call that reads from a region, and all that the call reads from it.
_Reader: TypeAlias = tuple[fx.Node, frozenset[fx.Node]]

_BOUNDS = frozenset({Trait.LIBRARY, Trait.UNSET})
_VIEWS = frozenset({Trait.SAME, Trait.PART})


class Landscape:
    """A graph with welds in it: the order of its nodes, what each is to Inductor, and which weld holds it."""

    def __init__(self, graph: fx.Graph, welds: Iterable[Collection[fx.Node]]) -> None:
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.traits: dict[fx.Node, Trait] = {}
        self.constants: set[fx.Node] = set()
        self._holder: dict[fx.Node, _Group] = {}
        self._reads: dict[_Group, list[fx.Node]] = {}
        calls = [one for one in expanded(graph.nodes) if one.expansion.is_kernel]
        self._operators = {node: one for one in calls for node in one.nodes.values()}
        for node in graph.nodes:
            self._classify(node)
        for weld in welds:
            self.hold(weld)

    def hold(self, steps: Collection[fx.Node]) -> None:
        """Makes ``steps`` one weld."""
        group = tuple(sorted(steps, key=self.index.__getitem__))
        self._holder.update(dict.fromkeys(group, group))

    def release(self, steps: Iterable[fx.Node]) -> None:
        """Gives ``steps`` back to Inductor."""
        for node in steps:
            del self._holder[node]

    def holds(self, node: fx.Node) -> bool:
        """Whether ``node`` is a step of a weld."""
        return node in self._holder

    def computed_reads(self, steps: Collection[fx.Node]) -> list[fx.Node]:
        """What a kernel of ``steps`` reads of the values that Inductor computes, and so must write."""
        return [n for n in weld_reads(steps) if self.conducts(n) and n not in self.constants]

    def group(self, node: fx.Node) -> _Group:
        """The steps that run together with ``node``; itself alone outside of welds."""
        if (one := self.operator(node)) is not None:
            return tuple(one.nodes.values())
        return self._holder.get(node) or (node,)

    def operator(self, node: fx.Node) -> Expanded | None:
        """The operator that ``node`` stands for, if none of its words is in a weld: it is a call then."""
        one = self._operators.get(node)
        return one if one is not None and self._holder.keys().isdisjoint(one.words) else None

    def operators(self, nodes: Iterable[fx.Node]) -> list[Expanded]:
        """The operators that ``nodes`` stand for, whether they are in welds or not."""
        return list(dict.fromkeys(self._operators[node] for node in nodes if node in self._operators))

    def conducts(self, node: fx.Node) -> bool:
        """Whether Inductor may fuse ``node`` with what it reads and what reads it."""
        known = node in self.traits and self.traits[node] not in _BOUNDS
        return known and node not in self._holder and self.operator(node) is None

    def reads(self, group: _Group) -> list[fx.Node]:
        """The values outside that a group is called with."""
        if (one := self.operator(group[0])) is not None:
            return list(one.operands())
        if group[0] not in self._holder:
            return group[0].all_input_nodes
        if group not in self._reads:
            self._reads[group] = weld_reads(group)
        return self._reads[group]

    def _classify(self, node: fx.Node) -> None:
        if node.op != "call_function" or not is_tensor(node):
            return
        is_word = ORIGIN in node.meta and word_of(node) is not None
        self.traits[node] = Trait.ELEMENTWISE if is_word else trait_of(node)
        operands = [n for n in node.all_input_nodes if is_tensor(n)]
        if self.traits[node] not in _BOUNDS and self.constants.issuperset(operands):
            self.constants.add(node)


def weld_reads(steps: Collection[fx.Node]) -> list[fx.Node]:
    """The values that a kernel of ``steps`` is called with: the bases of its operands but for its own."""
    found: dict[fx.Node, None] = {}
    for step in steps:
        for operand in step.all_input_nodes:
            if (lookup := lookup_of(operand)) is not None:
                found |= dict.fromkeys((lookup.cache, lookup.positions))
                continue
            base = base_of(original_of(operand) or operand)
            if _source(operand, steps) not in steps and base not in steps:
                found[base] = None
    return list(found)


def _source(node: fx.Node, steps: Collection[fx.Node]) -> fx.Node:
    while node not in steps and (is_view(node) or is_feature_slice(node)):
        node = node.args[0]  # type: ignore[assignment]
    return node


@dataclass(eq=False)
class Unit:
    """What runs as one: a ``node`` of the region, or else a call of something that does not fuse.

    ``members`` are the values that others may read, ``order`` is the place of the last of them in the graph.
    """

    order: int
    members: _Group
    node: fx.Node | None = None
    reads: dict[fx.Node, None] = field(default_factory=dict)


class Surroundings:
    """The region of some steps, and the calls around it that read from it or lie between its nodes."""

    def __init__(self, land: Landscape, steps: Sequence[fx.Node]) -> None:
        self._land = land
        self.region = _region(land, steps)
        self._calls: dict[_Group, Unit] = {}
        self._find_readers()
        self._find_waits()

    @property
    def border(self) -> frozenset[fx.Node]:
        """The steps of other welds next to the region: without one of them the region is another."""
        around = {n for node in self.region for n in (*node.all_input_nodes, *_some_users(node))}
        return frozenset(n for n in around - self.region.keys() if self._land.holds(n))

    def is_bare(self, steps: Collection[fx.Node]) -> bool:
        """Whether ``steps`` stand alone: nothing else in the region computes anything."""
        land = self._land
        others = self.region.keys() - land.constants - set(steps)
        return all(land.traits[node] in _VIEWS for node in others)

    def units(self, welds: Iterable[Collection[fx.Node]]) -> list[Unit]:
        """What runs if each of ``welds`` in the region is one kernel, and the rest of it is Inductor's.

        An operator with no word in ``welds`` is a call, as it was.
        """
        kernels = [*welds]
        welded = [self._call(steps, weld_reads(steps)) for steps in kernels]
        welded += [self._operator(one) for one in self.operators(kernels)]
        calls = [*self._calls.values(), *welded]
        live = self._live(calls, {step for call in welded for step in call.members})
        return calls + [self._plain(node) for node in self.region if node in live]

    def operators(self, welds: Iterable[Collection[fx.Node]]) -> list[Expanded]:
        """The operators in the region that run as they were if ``welds`` are kernels."""
        held = {step for steps in welds for step in steps}
        return [one for one in self._land.operators(self.region) if held.isdisjoint(one.words)]

    def _operator(self, one: Expanded) -> Unit:
        return self._call(one.nodes.values(), one.operands())

    def _call(self, members: Collection[fx.Node], reads: Iterable[fx.Node]) -> Unit:
        ordered = tuple(sorted(members, key=self._land.index.__getitem__))
        return Unit(self._land.index[ordered[-1]], ordered, None, dict.fromkeys(reads))

    def _plain(self, node: fx.Node) -> Unit:
        return Unit(self._land.index[node], (node,), node, dict.fromkeys(node.all_input_nodes))

    def _find_readers(self) -> None:
        inside = self.region.keys() - self._land.constants
        for node in sorted(inside, key=self._land.index.__getitem__):
            for user in _some_users(node):
                group = self._land.group(user)
                if user not in self.region and group not in self._calls:
                    reads = [value for value in self._land.reads(group) if value in inside]
                    if reads:
                        self._calls[group] = self._call(group, reads)

    def _find_waits(self) -> None:
        """Lets each call that the region reads from read from those readers that it waits for."""
        readers = {n: (group[-1], frozenset(c.reads)) for group, c in self._calls.items() for n in group}
        outside = dict.fromkeys(
            self._land.group(value)
            for node in self.region
            for value in node.all_input_nodes
            if value not in self.region and value in self._land.traits
        )
        for group in outside:
            waits = self._waits(group, readers)
            if waits:
                self._calls.setdefault(group, self._call(group, ())).reads.update(waits)

    def _waits(self, group: _Group, readers: Mapping[fx.Node, _Reader]) -> dict[fx.Node, None]:
        """The readers that ``group`` depends on: of those that read the same, the nearest."""
        land, found = self._land, dict[frozenset[fx.Node], fx.Node]()
        lowest = min((land.index[node] for node in readers), default=0)
        seen, queue = {*group, *self.region}, deque(group)
        while queue and len(seen) < LOOK_BACK + len(self.region):
            for node in (n for member in land.group(queue.popleft()) for n in member.all_input_nodes):
                if node in seen or land.index[node] < lowest:
                    continue
                seen.add(node)
                if node not in readers:
                    queue.append(node)
                    continue
                value, reads = readers[node]
                found.setdefault(reads, value)
        return dict.fromkeys(found.values())

    def _live(self, calls: Iterable[Unit], welded: Collection[fx.Node]) -> set[fx.Node]:
        """The nodes of the region besides ``welded`` that something reads, or that write to an input."""
        stack = [node for call in calls for node in call.reads]
        stack += [node for node in self.region if self._land.traits.get(node) is Trait.STORE]
        live: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in self.region and node not in live and node not in welded:
                live.add(node)
                stack += node.all_input_nodes
        return live


def _region(land: Landscape, steps: Sequence[fx.Node]) -> dict[fx.Node, None]:
    """``steps`` and what Inductor could fuse with them, the nearest first up to ``NODES``, in graph order."""
    found, queue = dict.fromkeys(steps), deque(steps)
    while queue and len(found) < NODES:
        for node in _neighbours(land, queue.popleft()):
            if node not in found and land.conducts(node):
                found[node] = None
                queue.append(node)
    return dict.fromkeys(sorted(found, key=land.index.__getitem__))


def _some_users(node: fx.Node) -> Iterator[fx.Node]:
    """The users of a node, or as many as it takes to show that there are many: more change nothing."""
    return islice(node.users, FAN_OUT + 1)


def _neighbours(land: Landscape, node: fx.Node) -> Iterator[fx.Node]:
    yield from node.all_input_nodes
    if node not in land.constants and len(node.users) <= FAN_OUT:
        yield from node.users
