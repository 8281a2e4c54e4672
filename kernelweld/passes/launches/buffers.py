"""Which values of a graph are written to memory, and what each of those writes reads."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import fx

from kernelweld.passes.launches.sizes import Size, elements, is_tensor, quotient
from kernelweld.passes.launches.traits import Trait, dim_of, launches_of, row_length, trait_of

#: Inductor writes a value of several users to memory if it reads more than this …
READS_IF_REUSED = 4
#: … and any value that reads more than this, or takes more operations than that.
READS = 8
OPERATIONS = 30


_IN_ROW = "row "  # begins the names of ways that lead to another place of the same row


class Kind(Enum):
    """How a buffer comes to be. Inputs and results of library calls take part in no fusion."""

    INPUT = auto()
    POINTWISE = auto()
    REDUCTION = auto()
    LIBRARY = auto()


@dataclass(eq=False)
class Buffer:
    """Memory written in a loop over ``points`` around one over ``row``, or by ``launches`` of a library."""

    kind: Kind
    points: Size
    row: Size = 1
    launches: int = 0
    reads: frozenset[Read] = frozenset()


@dataclass(frozen=True)
class Read:
    """How a buffer is read: ``way`` names partial views and gathers in between; () is element for element."""

    buffer: Buffer
    way: tuple[str, ...] = ()

    def through(self, way: tuple[str, ...]) -> Read:
        """The same read for some of the elements: all parts of a row read its reduction alike."""
        if self.buffer.kind is Kind.REDUCTION and all(step.startswith(_IN_ROW) for step in way):
            return self
        return Read(self.buffer, self.way + way)


@dataclass(eq=False)
class Value:
    """A value before views: its buffer, or what it would read and compute wherever it is used."""

    points: Size
    reads: frozenset[Read] = frozenset()
    operations: int = 0
    buffer: Buffer | None = None


@dataclass(frozen=True)
class View:
    """A value as one node sees it."""

    value: Value
    way: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[Read]:
        if self.value.buffer is not None:
            return frozenset((Read(self.value.buffer, self.way),))
        return frozenset(read.through(self.way) for read in self.value.reads)

    @property
    def operations(self) -> int:
        return 0 if self.value.buffer is not None else self.value.operations


@dataclass(frozen=True)
class Realized:
    """The buffers that are written when a graph runs, in order, and how each node sees its value."""

    buffers: list[Buffer]
    views: dict[fx.Node, View]


def realize(graph: fx.Graph) -> Realized:
    """What is written when ``graph`` runs."""
    writer = _Writer()
    for node in graph.nodes:
        writer.visit(node)
    return Realized(writer.buffers, writer.views)


@dataclass
class _Writer:
    buffers: list[Buffer] = field(default_factory=list)
    views: dict[fx.Node, View] = field(default_factory=dict)

    def visit(self, node: fx.Node) -> None:
        if node.op == "output":
            self._write_all(self._operands(node))
        elif node.op != "call_function" or not is_tensor(node):
            self.views[node] = View(Value(elements(node), buffer=Buffer(Kind.INPUT, elements(node))))
        elif node.users or trait_of(node) in _EFFECTS:
            self.views[node] = self._call(node, trait_of(node))
            self._write_if_reused(node)

    def _call(self, node: fx.Node, trait: Trait) -> View:
        match trait:
            case Trait.SAME | Trait.PART:
                return self._view(node, trait)
            case Trait.LIBRARY:
                return self._library(node)
            case Trait.REDUCTION:
                return self._reduction(node)
            case Trait.SCATTER:
                return self._scatter(node)
            case Trait.STORE:
                return self._store(node)
            case Trait.UNSET:
                return View(Value(elements(node), buffer=Buffer(Kind.INPUT, elements(node))))
            case _:
                return View(self._inlined(node, gathers=trait is Trait.INDEXED))

    def _operands(self, node: fx.Node) -> list[View]:
        return [self.views[operand] for operand in node.all_input_nodes if is_tensor(operand)]

    def _view(self, node: fx.Node, trait: Trait) -> View:
        source = self.views[node.all_input_nodes[0]]
        return source if trait is Trait.SAME else View(source.value, (*source.way, _way(node)))

    def _inlined(self, node: fx.Node, *, gathers: bool) -> Value:
        operands = self._operands(node)
        if gathers:
            moved = len(operands) if node.target is torch.ops.aten.cat.default else 1  # indices stay in place
            operands[:moved] = [View(view.value, (*view.way, _way(node))) for view in operands[:moved]]
        operations = 1 + sum(view.operations for view in operands)
        return Value(elements(node), _reads(operands), operations if operands else 0)

    def _reduction(self, node: fx.Node) -> View:
        reads = _reads(self._operands(node))
        row = row_length(node)
        points = quotient(elements(node.all_input_nodes[0]), row)
        return self._new(Buffer(Kind.REDUCTION, points, row, reads=reads))

    def _library(self, node: fx.Node) -> View:
        operands = self._operands(node)
        self._write_all(operands)
        reads = _reads(operands)
        return self._new(Buffer(Kind.LIBRARY, elements(node), launches=launches_of(node), reads=reads))

    def _scatter(self, node: fx.Node) -> View:
        """Updates written over the first operand, which is copied first unless it is an input or unset."""
        target, *updates = self._operands(node)
        base = self._write(target.value)
        points = elements(node.all_input_nodes[-1])
        reads = _reads(updates) | {Read(base, (node.name,))}
        return self._new(Buffer(Kind.POINTWISE, points, reads=reads))

    def _store(self, node: fx.Node) -> View:
        """A new value for an input: what computes it writes there, unless it is written already."""
        destination, source = self._operands(node)
        written = source.value.buffer
        self._write(source.value)
        if written is None or any(read.buffer is destination.value.buffer for read in written.reads):
            return source
        return self._new(Buffer(Kind.POINTWISE, elements(node), reads=source.reads))

    def _write_if_reused(self, node: fx.Node) -> None:
        value = self.views[node].value
        if value.buffer is not None:
            return
        much = len(value.reads) > READS or value.operations > OPERATIONS
        if len(node.users) > 1:
            much = much or len(value.reads) > READS_IF_REUSED or any(map(_takes_memory, node.users))
        if much and len(value.reads) > 1:
            self._write(value)

    def _write_all(self, views: Sequence[View]) -> None:
        for view in views:
            self._write(view.value)

    def _write(self, value: Value) -> Buffer:
        if value.buffer is None:
            value.buffer = Buffer(Kind.POINTWISE, value.points, reads=value.reads)
            self.buffers.append(value.buffer)
        return value.buffer

    def _new(self, buffer: Buffer) -> View:
        self.buffers.append(buffer)
        return View(Value(buffer.points, buffer=buffer))


def _reads(views: Iterable[View]) -> frozenset[Read]:
    return frozenset(read for view in views for read in view.reads)


_EFFECTS = frozenset({Trait.STORE, Trait.LIBRARY})


def _takes_memory(user: fx.Node) -> bool:
    return user.op == "output" or trait_of(user) is Trait.LIBRARY


def _way(node: fx.Node) -> str:
    """A name for a partial view that equal views of equal values share."""
    constants = [a for a in node.args if not isinstance(a, (fx.Node, list))]
    return f"{_IN_ROW if _stays_in_row(node) else ''}{node.target}{constants}"


def _stays_in_row(node: fx.Node) -> bool:
    """Whether a slice, split or concatenation is of the last dimension."""
    if node.target is operator.getitem:
        return _stays_in_row(node.all_input_nodes[0])
    rank = node.all_input_nodes[0].meta["val"].dim()
    return dim_of(node) in (rank - 1, -1)
