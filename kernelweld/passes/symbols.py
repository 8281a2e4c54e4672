"""Symbolic sizes as graph nodes: integers that a kernel or an allocation needs at run time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max

Size = int | fx.Node

_OPERATORS: Mapping[type[sympy.Basic], Callable[..., int]] = MappingProxyType(
    {sympy.Add: operator.add, sympy.Mul: operator.mul, FloorDiv: operator.floordiv}
)


def of_some(stride: sympy.Expr) -> sympy.Expr:
    """``size`` of ``Max(1, size)``, which is a stride of a tensor that may have no elements."""
    is_guarded = isinstance(stride, Max) and len(stride.args) == 2 and sympy.S.One in stride.args
    return next(size for size in stride.args if size != 1) if is_guarded else stride


class SymbolNodes:
    """Finds, or makes at the graph's insertion point, the nodes that hold symbolic sizes."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._known: dict[sympy.Expr, fx.Node] = {}
        self._tensors: dict[sympy.Expr, tuple[fx.Node, int]] = {}
        for node in graph.find_nodes(op="placeholder"):
            self._note(node)

    def _note(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self._known.setdefault(value.node.expr, node)
        elif isinstance(value, torch.Tensor):
            sizes: tuple[int | torch.SymInt, ...] = tuple(value.shape)
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    self._tensors.setdefault(size.node.expr, (node, dim))

    def node(self, expr: sympy.Expr) -> Size:
        """``expr`` as a Python int or as a node. Nodes made here are not shared: each stands at its
        own insertion point.
        """
        if expr.is_Integer:
            return int(expr)
        if expr in self._known:
            return self._known[expr]
        if expr in self._tensors:
            tensor, dim = self._tensors[expr]
            return self._call(torch.ops.aten.sym_size.int, tensor, dim)
        return self._compound(expr)

    def _compound(self, expr: sympy.Expr) -> Size:
        if isinstance(expr, CeilDiv):
            base, divisor = expr.args
            return self.node(FloorDiv(base + divisor - 1, divisor))
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and int(expr.exp) > 0:
            return self.node(sympy.Mul(*[expr.base] * int(expr.exp), evaluate=False))
        if type(expr) not in _OPERATORS:
            raise ValueError(f"size {expr} cannot be computed from the graph's inputs")
        first, *rest = (self.node(arg) for arg in expr.args)
        for arg in rest:
            first = self._call(_OPERATORS[type(expr)], first, arg)
        return first

    def _call(self, target: Callable[..., object], *args: Size) -> Size:
        if all(isinstance(arg, int) for arg in args):
            return int(target(*args))  # type: ignore[call-overload, no-any-return]
        node = self._graph.call_function(target, args)
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
        return node
