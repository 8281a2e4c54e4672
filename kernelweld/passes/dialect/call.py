"""One operator that writes into its arguments, as it stands in a functional graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import SymInt, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._ops import OpOverload

from kernelweld.ir.origin import Origin, record_origin
from kernelweld.patterns.aliasing import BUFFERS, VIEWS
from kernelweld.patterns.cache_part import Part
from kernelweld.patterns.cover import dimension_of
from kernelweld.patterns.reading import Miss


@dataclass(frozen=True)
class Call:
    """``auto_functionalized(operator, **arguments)``, which returns what the operator would have returned
    and then the arguments that it writes to, written.

    ``values`` are all arguments in the order of the schema, absent ones by their defaults. ``parts`` are the
    arguments that are parts of a cache, which is written in their place: that is the target of such an
    argument, any other argument its own. ``results`` are the nodes of the written targets that others read.
    """

    node: fx.Node
    operator: OpOverload
    values: tuple[object, ...]
    results: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    parts: Mapping[fx.Node, Part] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``_C.rms_norm``."""
        return _name(self.operator)

    def takes_none(self, name: str) -> bool:
        """Whether the schema allows None for the argument ``name``."""
        found = (a for a in self.operator._schema.arguments if a.name == name)
        return any(isinstance(a.type, torch.OptionalType) for a in found)

    def has(self, name: str) -> bool:
        """Whether the schema has an argument ``name``."""
        return any(a.name == name for a in self.operator._schema.arguments)

    def written(self) -> tuple[fx.Node, ...]:
        """The arguments that the operator writes to, in the order of the schema; absent ones left out."""
        pairs = zip(self.operator._schema.arguments, self.values, strict=True)
        return tuple(value for a, value in pairs if is_written(a) and isinstance(value, fx.Node))

    def target(self, argument: fx.Node) -> fx.Node:
        """What is written where ``argument`` is."""
        return self.parts[argument].whole if argument in self.parts else argument

    def buffers(self) -> tuple[fx.Node, ...]:
        """The nodes that make buffers for the results, and views of them, users first."""
        found = [node for n in _tensors(self.values) for node in reversed(_buffer(n) or ())]
        return tuple(dict.fromkeys(found))

    def operands(self) -> tuple[fx.Node, ...]:
        """What the call reads, without the buffers that were made for its results."""
        return tuple(dict.fromkeys(self.target(n) for n in _tensors(self.values) if _buffer(n) is None))

    def views(self) -> tuple[fx.Node, ...]:
        """The views of caches that the call is given."""
        given = (part for part in self.parts.values() if self.node in part.views[0].users)
        return tuple(view for part in given for view in part.views)

    def own(self) -> tuple[fx.Node, ...]:
        """The call, its results, and what leads from them to the targets that others read."""
        behind = [*self.results.values(), *(back for part in self.parts.values() for back in part.backs)]
        return tuple(sorted({self.node, *self.node.users, *behind}))

    def origin(self) -> Origin:
        """The call with its buffers and views of caches, from its operands to those results that others read.

        Raises:
            Miss: a buffer has a size that no operand has.
        """
        operands, read = self.operands(), list(self.results.values())
        own = [node for node in self.own() if node.users]
        nodes = sorted({*self.buffers(), *self.views(), *own})
        pending = sorted({n for node in nodes for n in node.all_input_nodes} - {*nodes, *operands})
        sizes: dict[fx.Node, tuple[fx.Node, int]] = {}
        computed: dict[fx.Node, None] = {}
        while pending:
            size = pending.pop()
            found = dimension_of(size, operands)
            if found is not None:
                sizes[size] = found
            elif size not in computed:
                computed[size] = None
                pending += self._computed_from(size)
        at = [(size, *where) for size, where in sizes.items()]
        return record_origin(sorted({*nodes, *computed}), operands, read, at)

    def _computed_from(self, size: fx.Node) -> list[fx.Node]:
        """The sizes that a size is computed from, as one that is rounded up is."""
        if size.op != "call_function" or not all(_is_size(n) for n in (size, *size.all_input_nodes)):
            raise Miss("%{} has a buffer of a size, %{}, that no operand has", size, self.node, size)
        return size.all_input_nodes


def called_name(node: fx.Node) -> str:
    """The operator that a functional call calls, ``_C.rms_norm``; empty for any other node."""
    functional = node.op == "call_function" and node.target in (auto_functionalized, auto_functionalized_v2)
    called = node.args[0] if functional else None
    return _name(called) if isinstance(called, OpOverload) else ""


def _name(called: OpOverload) -> str:
    return str(called.name()).replace("::", ".")


def read_call(node: fx.Node) -> Call | None:
    """The call that ``node`` is, or None.

    Raises:
        Miss: one value is given for two arguments that are written, which then are two results.
    """
    if node.op != "call_function" or node.target is not auto_functionalized:
        return None
    called = node.args[0]
    if not isinstance(called, OpOverload) or called._schema.returns:
        return None
    arguments = called._schema.arguments
    values = tuple(node.kwargs.get(a.name, a.default_value) for a in arguments)
    written = [value for a, value in zip(arguments, values, strict=True) if is_written(a)]
    twice = next((v for v in written if isinstance(v, fx.Node) and written.count(v) > 1), None)
    if twice is not None:
        raise Miss("%{} writes to two copies of %{}", node, node, twice)
    found = {arg: result_of(node, i) for i, arg in enumerate(written, 1) if isinstance(arg, fx.Node)}
    return Call(node, called, values, {arg: result for arg, result in found.items() if result is not None})


def is_written(argument: torch.Argument) -> bool:
    """Whether an operator writes to ``argument``."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def result_of(node: fx.Node, index: int) -> fx.Node | None:
    """The node of result ``index`` of a call, if others read it."""
    found = (u for u in node.users if u.target is operator.getitem and u.args[1] == index and u.users)
    return next(found, None)


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), SymInt)


def _tensors(values: tuple[object, ...]) -> Iterator[fx.Node]:
    yield from (value for value in values if isinstance(value, fx.Node))


def _buffer(node: fx.Node) -> list[fx.Node] | None:
    """The nodes that make an empty buffer and views of it, first to last; None if ``node`` is none."""
    found = [node]
    while found[0].target in VIEWS and isinstance(found[0].args[0], fx.Node):
        found.insert(0, found[0].args[0])
    return found if found[0].target in BUFFERS else None
