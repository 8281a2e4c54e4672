"""Sizes of values as numbers or, where they are symbolic, as expressions that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import sympy
import torch
from torch import fx

Size: TypeAlias = int | sympy.Expr


def elements(node: fx.Node) -> Size:
    """The elements of a value; of several results, those of the first; 1 for what is no tensor."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return product(value.shape) if isinstance(value, torch.Tensor) else 1


def is_tensor(node: fx.Node) -> bool:
    """Whether a node is a tensor or several; sizes and their arithmetic are not, and cost no kernel."""
    value = node.meta.get("val")
    return isinstance(value, (torch.Tensor, tuple, list, dict))


def product(sizes: Iterable[int | torch.SymInt]) -> Size:
    """The product of sizes, without a guard on any of them."""
    total: Size = 1
    for size in sizes:
        total = total * (size if isinstance(size, int) else size.node.expr)
    return total


def quotient(a: Size, b: Size) -> Size:
    """``a / b``, for sizes of which one divides the other."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 1
    return sympy.sympify(a) / b
