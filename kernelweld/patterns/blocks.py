"""How values are brought into the units of a scale for each block, in FX."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import is_static, same_shape
from kernelweld.patterns.ops import (
    DIV,
    EXPAND,
    FLOATS,
    MUL,
    RESHAPE,
    SQUEEZE,
    UNSQUEEZE,
    Size,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
)
from kernelweld.patterns.peel import row_statistic, upcast
from kernelweld.patterns.reading import NEARLY, Miss
from kernelweld.patterns.scalars import scalar


@dataclass(frozen=True)
class InBlocks:
    """``x`` in units of ``scale``, by the ``operation`` of the word that reads them, and of the whole
    tensor's scale; blocks are the last dimension of ``x``, ``block`` elements.
    """

    operation: str
    x: fx.Node
    scale: fx.Node
    whole: fx.Node | None
    block: int


def read_blocks(y: fx.Node, cover: Cover) -> InBlocks:
    """How ``y`` comes from values and a scale for each block.

    Raises:
        Miss: it does not.
    """
    pair = operands(y) if is_call(y, *MUL, *DIV) else None
    shape = shape_of(y)
    divided = is_call(y, *DIV)
    for x, scale in _orders(pair, divided):
        if _is_blockwise(scale, shape) and same_shape(shape_of(x), shape) and isinstance(shape[-1], int):
            _check(x, scale)
            cover.take(y)
            scale = row_statistic(scale, cover)
            operation, scale, whole = ("divide", scale, None) if divided else _factor(scale, cover)
            return InBlocks(operation, x, scale, whole, shape[-1])
    raise Miss("the numbers %{} have no scale for each block", y, y, stage=NEARLY)


def _orders(pair: tuple[object, object] | None, fixed: bool) -> list[tuple[fx.Node, fx.Node]]:
    """Both operands if they are tensors, in the order given and, unless that is ``fixed``, the other."""
    if pair is None or not isinstance(pair[0], fx.Node) or not isinstance(pair[1], fx.Node):
        return []
    return [(pair[0], pair[1])] if fixed else [(pair[0], pair[1]), (pair[1], pair[0])]


def _is_blockwise(scale: fx.Node, shape: tuple[Size, ...]) -> bool:
    return bool(shape) and same_shape(shape_of(scale), (*shape[:-1], 1))


def _check(x: fx.Node, scale: fx.Node) -> None:
    if dtype_of(upcast(x)) not in FLOATS or dtype_of(x) != torch.float32:
        raise Miss("%{} is scaled in {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    if dtype_of(scale) != torch.float32:
        raise Miss("the scale %{} is {}", scale, scale, dtype_name(dtype_of(scale)), stage=NEARLY)


def _factor(factor: fx.Node, cover: Cover) -> tuple[str, fx.Node, fx.Node | None]:
    """A factor by how it comes from a scale and one of the whole tensor; as it is if it does not."""
    for read in (_reciprocals, _quotient):
        trial = Cover()
        found = read(factor, trial)
        if found is not None:
            cover.merge(trial)
            return found
    return "multiply", factor, None


def _reciprocals(factor: fx.Node, cover: Cover) -> tuple[str, fx.Node, fx.Node] | None:
    """``r(scale * r(whole))``."""
    product = _unless_zero(factor, cover)
    if product is None or not is_call(product, *MUL):
        return None
    for scale, inverse in _orders(operands(product), fixed=False):
        whole = _one_element(_unless_zero(inverse, cover), cover)
        if whole is not None:
            cover.take(product)
            return "reciprocals", scale, whole
    return None


def _quotient(factor: fx.Node, cover: Cover) -> tuple[str, fx.Node, fx.Node] | None:
    """``1 / whole / scale``."""
    pairs = _orders(operands(factor), fixed=True) if is_call(factor, *DIV) else []
    for inverse, scale in pairs:
        whole = _one_element(_reciprocal(inverse, cover), cover)
        if whole is not None:
            cover.take(factor)
            return "quotient", row_statistic(scale, cover), whole
    return None


def _unless_zero(node: fx.Node, cover: Cover) -> fx.Node | None:
    """``a`` of ``where(a == 0, 0, 1 / a)``, or of the same the other way round."""
    if not is_call(node, aten.where.self):
        return None
    test, *branches = node.args
    if is_call(test, aten.ne.Scalar):
        branches.reverse()
    elif not is_call(test, aten.eq.Scalar):
        return None
    zero, inverse = branches
    value = _reciprocal(inverse, cover) if isinstance(inverse, fx.Node) else None
    if value is None or scalar(zero) != 0.0 or test.args[0] is not value or scalar(test.args[1]) != 0.0:
        return None
    cover.share(test, node)
    return value


def _reciprocal(node: fx.Node, cover: Cover) -> fx.Node | None:
    """``a`` of ``1 / a``."""
    value = node.args[0] if is_call(node, aten.reciprocal.default) else None
    if is_call(node, *DIV) and scalar(node.args[0]) == 1.0:
        value = node.args[1]
    if isinstance(value, fx.Node):
        cover.share(node)
        return value
    return None


def _one_element(node: fx.Node | None, cover: Cover) -> fx.Node | None:
    """The single float32 number that ``node`` is, below views of it."""
    while is_call(node, *RESHAPE, EXPAND, UNSQUEEZE, *SQUEEZE) and shape_of(node) not in ((), (1,)):
        cover.share(node)
        node = node.args[0]  # type: ignore[assignment]
    if node is None or dtype_of(node) != torch.float32 or not is_static(*shape_of(node)):
        return None
    return node if math.prod(map(int, shape_of(node))) == 1 and len(shape_of(node)) < 2 else None
