"""Numbers in a graph: Python scalars, and constant tensors that hold one number."""

from __future__ import annotations

import math

import torch
from torch import fx

from kernelweld.patterns.ops import aten, is_call, operands, shape_of


def scalar(value: object) -> float | None:
    """The number that ``value`` is: a Python number, or a node that makes a 0-dimensional constant."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if is_call(value, aten.full.default) and shape_of(value) == ():
        return scalar(value.args[1])
    return scalar(value.args[0]) if is_call(value, aten.scalar_tensor.default) else None


def split_scalar(node: fx.Node) -> tuple[fx.Node, float] | None:
    """The tensor and the number of a commutative call of both, in either order; None if it is none."""
    pair = operands(node)
    if pair is None:
        return None
    for tensor, number in (pair, pair[::-1]):
        found = scalar(number)
        if isinstance(tensor, fx.Node) and found is not None and scalar(tensor) is None:
            return tensor, found
    return None


def close_to(a: float, b: float) -> bool:
    """Whether two written constants are the same number up to float32 precision."""
    return math.isclose(a, b, rel_tol=torch.finfo(torch.float32).eps)
