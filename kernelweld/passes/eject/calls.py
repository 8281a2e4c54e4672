"""One call of an operator, and the expressions that are made for it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

import torch
from torch import fx

from kernelweld.passes.eject.layout import expression

#: Gives the expression that stands for a node.
Names = Callable[[fx.Node], ast.expr]


class Call:
    """One call of an operator: its node, and its arguments as expressions."""

    def __init__(self, node: fx.Node, names: Names, device: str) -> None:
        self.node, self.device, self._names = node, device, names
        self.given: list[object] = list(node.args)

    def arg(self, place: int) -> ast.expr:
        return self.written(self.given[place])

    def value(self, place: int, default: object = None) -> object:
        """An argument as the graph has it."""
        return self.given[place] if place < len(self.given) else default

    def keyword(self, name: str, default: object = None) -> object:
        return self.node.kwargs.get(name, default)

    def written(self, value: object) -> ast.expr:
        """A node, number, dtype or list of them."""
        if isinstance(value, fx.Node):
            return self._names(value)
        if isinstance(value, (list, tuple)):
            return ast.Tuple([self.written(item) for item in value], ast.Load())
        return literal(value)

    def rank(self, place: int = 0) -> int:
        """The dimensions of an operand."""
        return int(self.fake(place).dim())

    def fake(self, place: int = 0) -> torch.Tensor:
        """What is known of an operand."""
        operand = self.given[place]
        assert isinstance(operand, fx.Node)
        value = operand.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value

    @property
    def dtype(self) -> torch.dtype:
        """Of the result."""
        value = self.node.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value.dtype


def literal(value: object) -> ast.expr:
    """A Python number, dtype or None."""
    if isinstance(value, torch.dtype):
        return expression(str(value))
    if value is ...:
        return ast.Constant(value)
    if isinstance(value, torch.memory_format):
        return expression(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return expression(f'float("{value}")')
    return expression(repr(value))


def method(receiver: ast.expr, name: str, *args: ast.expr, **keywords: ast.expr) -> ast.expr:
    """``receiver.name(...)``."""
    return call(ast.Attribute(receiver, name, ast.Load()), *args, **keywords)


def function(name: str, *args: ast.expr, **keywords: ast.expr) -> ast.expr:
    """``torch.name(...)``."""
    return call(expression(f"torch.{name}"), *args, **keywords)


def call(callee: ast.expr, *args: ast.expr, **keywords: ast.expr) -> ast.expr:
    return ast.Call(callee, list(args), [ast.keyword(name, value) for name, value in keywords.items()])


def subscript(receiver: ast.expr, *items: ast.expr) -> ast.expr:
    index = items[0] if len(items) == 1 else ast.Tuple(list(items), ast.Load())
    return ast.Subscript(receiver, index, ast.Load())
