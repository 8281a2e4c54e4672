"""A small graph in place of a part of a large one: equal parts have equal keys, and known launches."""

from __future__ import annotations

import heapq
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

from kernelweld.ir import word_of
from kernelweld.ir.origin import ORIGIN, Origin
from kernelweld.passes.launches import predict
from kernelweld.passes.restore import restore
from kernelweld.passes.surroundings import Unit

#: Labels of the entries that stand for no node of their own.
_INPUT, _CALL, _RESULT = "input", "call", "result"


@dataclass(frozen=True)
class Entry:
    """One node of a miniature: a label without names, the positions of its operands, what it stands for."""

    label: str
    operands: tuple[int, ...]
    node: fx.Node | None = None

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What equal entries share."""
        return self.label, self.operands


class Labels:
    """Texts that equal operations share: operator, numbers, shapes, dtypes and strides, but no names."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, fx.Node], str] = {}

    def operation(self, node: fx.Node) -> str:
        """The label of a call; the origin of a raised word is part of it."""
        return self._keep(("operation", node), _operation)

    def value(self, node: fx.Node) -> str:
        """The label of a value."""
        return self._keep(("value", node), lambda n: _value(n.meta.get("val")))

    def _keep(self, key: tuple[str, fx.Node], make: Callable[[fx.Node], str]) -> str:
        if key not in self._known:
            self._known[key] = make(key[1])
        return self._known[key]


class Miniature:
    """The entries of some units in the order in which they could run."""

    def __init__(self, units: Iterable[Unit], labels: Labels) -> None:
        self._labels = labels
        self.entries: list[Entry] = []
        self.position: dict[fx.Node, int] = {}
        ordered = _ordered(units)
        read = {value for unit in ordered for value in unit.reads}
        for unit in ordered:
            self._add(unit, read)

    @property
    def key(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Equal for parts of one structure, wherever they are in their graph."""
        return tuple(entry.key for entry in self.entries)

    @property
    def calls(self) -> int:
        """How many of the launches are calls."""
        return sum(entry.label == _CALL for entry in self.entries)

    def launches(self) -> int:
        """The predicted launches, of which each call is one."""
        return predict(self._graph())

    def _add(self, unit: Unit, read: set[fx.Node]) -> None:
        operands = tuple(self._operand(value) for value in unit.reads)
        if unit.node is not None:
            self._put(unit.node, Entry(self._labels.operation(unit.node), operands, unit.node))
            return
        results = [value for value in unit.members if value in read]
        if not results and self._ends_in_a_reader():  # two in a row are as good as one
            operands = tuple(sorted({*self.entries.pop().operands, *operands}))
        call = len(self.entries)
        self.entries.append(Entry(_CALL, operands))
        for value in results:
            self._put(value, Entry(f"{_RESULT} {self._labels.value(value)}", (call,), value))

    def _operand(self, value: fx.Node) -> int:
        if value not in self.position:
            self._put(value, Entry(f"{_INPUT} {self._labels.value(value)}", (), value))
        return self.position[value]

    def _put(self, value: fx.Node, entry: Entry) -> None:
        self.position[value] = len(self.entries)
        self.entries.append(entry)

    def _ends_in_a_reader(self) -> bool:
        return bool(self.entries) and self.entries[-1].label == _CALL

    def _graph(self) -> fx.Graph:
        graph, values = fx.Graph(), list[fx.Node]()
        for entry in self.entries:
            values.append(_build(graph, entry, [values[i] for i in entry.operands]))
        for node in list(graph.nodes):
            if ORIGIN in node.meta and word_of(node) is not None:
                restore(graph, node)
        return graph


def _build(graph: fx.Graph, entry: Entry, operands: Sequence[fx.Node]) -> fx.Node:
    if entry.node is None:
        call = graph.call_function(triton_kernel_wrapper_functional, tuple(operands))
        call.meta["val"] = ()
        return call
    if entry.label.startswith(_INPUT):
        result = graph.placeholder("operand")
    elif entry.label.startswith(_RESULT):
        result = graph.call_function(operator.getitem, (operands[0], 0))
    else:
        env = dict(zip(entry.node.all_input_nodes, operands, strict=True))
        return graph.node_copy(entry.node, env.__getitem__)
    result.meta["val"] = entry.node.meta["val"]
    return result


def _ordered(units: Iterable[Unit]) -> list[Unit]:
    """Units after those whose values they read, otherwise as they stand in the graph."""
    home = {value: unit for unit in units for value in unit.members}
    waits = {unit: {home[v] for v in unit.reads if v in home} for unit in home.values()}
    readers: Mapping[Unit, list[Unit]] = defaultdict(list)
    for unit, sources in waits.items():
        for source in sources:
            readers[source].append(unit)
    return list(_drained({unit: len(sources) for unit, sources in waits.items()}, readers))


def _drained(missing: dict[Unit, int], readers: Mapping[Unit, list[Unit]]) -> Iterator[Unit]:
    ready = [(unit.order, unit) for unit, count in missing.items() if count == 0]
    heapq.heapify(ready)
    while ready:
        _, unit = heapq.heappop(ready)
        yield unit
        for reader in readers.get(unit, ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (reader.order, reader))


def _operation(node: fx.Node) -> str:
    parts = [_call(node), _value(node.meta.get("val"))]
    origin = node.meta.get(ORIGIN)
    if isinstance(origin, Origin):
        number = {n: f"%{i}" for i, n in enumerate(origin.graph.nodes)}
        parts += [_call(n, number) for n in origin.graph.nodes]
    return " ".join(parts)


def _call(node: fx.Node, names: Mapping[fx.Node, str] | None = None) -> str:
    """Operator and arguments, with the nodes among them by ``names`` or else by their places."""
    names = names or {n: f"%{i}" for i, n in enumerate(node.all_input_nodes)}
    target = node.target if node.op == "call_function" else ""
    return f"{node.op} {target} {fx.node.map_arg((node.args, node.kwargs), names.__getitem__)}"


def _value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    return str(value)
