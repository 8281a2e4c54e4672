"""Which nodes share storage, and which nodes write to it."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._ops import HigherOrderOperator, OpOverload

from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import aten, value_of

#: Operators whose result may share storage with their first argument.
VIEWS = frozenset(
    {
        aten.alias.default,
        aten.as_strided.default,
        aten.chunk.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.reshape.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.view.dtype,
        operator.getitem,
    }
)

#: Makers of memory with nothing in it, for later nodes to fill.
BUFFERS = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)

#: Higher-order operators that return new values and write to nothing.
_FUNCTIONAL = frozenset({"triton_kernel_wrapper_functional", "auto_functionalized", "auto_functionalized_v2"})


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The arguments that a node writes to; all of them, unless its operator is known."""
    if node.op != "call_function" or node.target is operator.getitem:
        return ()
    if isinstance(node.target, OpOverload):
        return _written_by_schema(node) if node.target._schema.is_mutable else ()
    if node.target is triton_kernel_wrapper_mutation or not isinstance(node.target, HigherOrderOperator):
        return tuple(node.all_input_nodes)
    return () if node.target.name() in _FUNCTIONAL else tuple(node.all_input_nodes)


def _written_by_schema(node: fx.Node) -> tuple[fx.Node, ...]:
    assert isinstance(node.target, OpOverload)
    found: list[fx.Node] = []
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        values = value if isinstance(value, (list, tuple)) else [value]
        found += [v for v in values if isinstance(v, fx.Node)]
    return tuple(found)


def reads_by_strides(node: fx.Node) -> bool:
    """Whether the result depends on how the argument lies in memory: not if each element is seen as one."""
    if node.target is not aten.view.dtype:
        return node.target is aten.as_strided.default
    seen, given = (value_of(n) for n in (node, node.all_input_nodes[0]))
    return seen is None or given is None or seen.dtype.itemsize != given.dtype.itemsize


def storage_root(node: fx.Node, roots: Mapping[fx.Node, fx.Node] = MappingProxyType({})) -> fx.Node:
    """The node whose storage ``node`` may share: itself, or the root of what it is a view of."""
    while node.target in VIEWS and isinstance(node.args[0], fx.Node):
        if node in roots:
            return roots[node]
        node = node.args[0]
    return node


def fills_buffer(node: fx.Node) -> bool:
    """Whether ``node`` is a copy of its second operand, element by element, into memory with nothing in it.
    It lies as that memory does, and what is between its elements is never written.
    """
    if node.target is not aten.copy.default or len(node.args) < 2:
        return False
    buffer, source = node.args[:2]
    if not isinstance(buffer, fx.Node) or not isinstance(source, fx.Node):
        return False
    value, given = value_of(node), value_of(source)
    if storage_root(buffer).target not in BUFFERS or value is None or given is None:
        return False
    alike = (value.dtype, value.device) == (given.dtype, given.device)
    return alike and same_shape(value.shape, given.shape)


class Writes:
    """The writes of a graph as it stood when this was made, in order."""

    def __init__(self, graph: fx.Graph) -> None:
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._writers: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            for target in written(node):
                self._writers[storage_root(target)].append(node)

    def between(self, first: fx.Node, last: fx.Node, operands: Iterable[fx.Node | None]) -> fx.Node | None:
        """The first node from ``first`` to ``last`` that writes to the storage of an operand, or None."""
        if not self._writers:
            return None
        for operand in operands:
            writers = self._writers.get(storage_root(operand), ()) if operand is not None else ()
            at = bisect_left(writers, self._position[first], key=self._position.__getitem__)
            if at < len(writers) and self._position[writers[at]] < self._position[last]:
                return writers[at]
        return None
