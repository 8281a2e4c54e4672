"""Elementwise functions in FX, known by their values: what is computed of a number, by whatever steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from kernelweld.patterns.ops import CAST, CLONE, RESHAPE, SQUEEZE, UNSQUEEZE, aten, dtype_of, is_call
from kernelweld.patterns.scalars import scalar

#: Operations that see every element by itself, and numbers.
_ELEMENTWISE = frozenset(
    getattr(aten, name)
    for name in (
        *("abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "clamp", "clamp_max"),
        *(
            "clamp_min",
            "div",
            "eq",
            "ge",
            "gt",
            "index_put",
            "le",
            "logical_and",
            "logical_not",
            "logical_or",
        ),
        *("logical_xor", "lt", "maximum", "minimum", "mul", "ne", "neg", "round", "sign", "sgn", "signbit"),
        *("sub", "where", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
)
#: Views that keep the order of the elements.
_SAME = (*RESHAPE, *SQUEEZE, UNSQUEEZE, CLONE)
_FILLED = (aten.full.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default)

#: No function that is looked for takes more steps.
_MOST = 160


@dataclass(frozen=True)
class Function:
    """``result`` as a function of ``leaves``, by way of ``nodes`` in graph order, of which ``constants`` hold
    the same number everywhere.
    """

    result: fx.Node
    leaves: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]

    def __call__(self, *values: torch.Tensor) -> torch.Tensor:
        """Its values where the leaves have ``values``."""
        known: dict[fx.Node, Any] = dict(zip(self.leaves, values, strict=True))
        for node in self.nodes:
            known[node] = _computed(node, known)
        return cast(torch.Tensor, known[self.result])

    def numbers(self) -> tuple[float, ...]:
        """The numbers that stand in it."""
        arguments = (argument for node in self.nodes for argument in node.args)
        return tuple(number for argument in arguments if (number := scalar(argument)) is not None)

    def signature(self) -> tuple[object, ...]:
        """Equal for functions that take the same steps."""
        place = {node: i for i, node in enumerate((*self.leaves, *self.nodes))}
        steps = [(str(n.target), str(dtype_of(n)), _placed(n, place)) for n in self.nodes]
        return (*steps, place[self.result])


class Walk:
    """Goes down from a value through elementwise steps, the last of the graph first."""

    def __init__(self, result: fx.Node, is_leaf: Callable[[fx.Node], bool] = lambda node: False) -> None:
        self._result, self._is_leaf = result, is_leaf
        self._open: set[fx.Node] = {result}
        self._ends: set[fx.Node] = set()
        self._nodes: set[fx.Node] = set()
        self._constants: set[fx.Node] = set()

    def step(self) -> bool:
        """Takes one node; False if there is none left, or there were too many."""
        if not self._open or len(self._nodes) >= _MOST:
            return False
        node = max(self._open)
        self._open.remove(node)
        if is_call(node, *_FILLED) or scalar(node) is not None:
            self._constants.add(node)
        elif self._is_leaf(node) or not is_elementwise(node):
            self._ends.add(node)
            return True
        else:
            self._open.update(_tensors(node))
        self._nodes.add(node)
        return True

    def function(self) -> Function:
        """The function as far as the walk got: of the values that it came to."""
        leaves = tuple(sorted(self._open - set(self._filled()) | self._ends))
        nodes = tuple(sorted(self._nodes | set(self._filled())))
        return Function(self._result, leaves, nodes, tuple(sorted({*self._constants, *self._filled()})))

    def _filled(self) -> Collection[fx.Node]:
        return [node for node in self._open if is_call(node, *_FILLED) or scalar(node) is not None]

    @property
    def leaves(self) -> tuple[fx.Node, ...]:
        """The values that the walk has come to."""
        return (*(self._open - set(self._filled())), *self._ends)


def is_elementwise(node: fx.Node) -> bool:
    """Whether each element of ``node`` is made of those at the same place of its operands."""
    if node.op != "call_function":
        return False
    if is_call(node, *_SAME, CAST) or is_call(node, aten.view.dtype):
        return node.target is not aten.view.dtype or _same_width(node)
    return getattr(node.target, "overloadpacket", None) in _ELEMENTWISE


def _same_width(node: fx.Node) -> bool:
    below, above = (dtype_of(n) for n in (node.all_input_nodes[0], node))
    return below is not None and above is not None and below.itemsize == above.itemsize


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The operands of an elementwise step, without sizes."""
    if is_call(node, *_SAME):
        return [node.args[0]]  # type: ignore[list-item]
    return [operand for operand in node.all_input_nodes if dtype_of(operand) is not None]


def _computed(node: fx.Node, known: Mapping[fx.Node, Any]) -> object:
    if is_call(node, *_FILLED, aten.scalar_tensor.default):
        return torch.full((), cast(float, _filling(node)), dtype=dtype_of(node))
    if is_call(node, *_SAME):
        return known[node.args[0]]  # type: ignore[index]
    args, kwargs = cast("tuple[Any, Any]", fx.map_arg((node.args, node.kwargs), known.__getitem__))
    if is_call(node, CAST):
        return args[0].to(args[1])
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _filling(node: fx.Node) -> object:
    """The number that a constant holds."""
    known = {aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.scalar_tensor.default: node.args[0]}
    return known[node.target] if node.target in known else node.args[1]


def _placed(node: fx.Node, place: Mapping[fx.Node, int]) -> str:
    """The arguments as text, operands by their places; those of views say nothing."""
    if is_call(node, *_SAME):
        return str(place[node.args[0]])  # type: ignore[index]
    args = node.args[1:] if is_call(node, *_FILLED) else node.args
    return str(fx.map_arg((args, dict(node.kwargs)), lambda n: place.get(n, n.name)))
