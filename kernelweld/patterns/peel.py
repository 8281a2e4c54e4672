"""What a reading looks through: exact upcasts, clones, and views that only add or repeat dimensions."""

from __future__ import annotations

import math

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import is_static, same_shape, same_size
from kernelweld.patterns.ops import (
    CAST,
    CLONE,
    EXPAND,
    FLOATS,
    RESHAPE,
    SQUEEZE,
    UNSQUEEZE,
    Size,
    dtype_of,
    is_call,
    shape_of,
)


def is_upcast(node: object) -> bool:
    """Whether ``node`` is an exact cast to float32, or a clone."""
    if is_call(node, CLONE):
        return True
    if not is_call(node, CAST) or dtype_of(node) != torch.float32:
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and dtype_of(source) in FLOATS


def upcast(node: fx.Node, cover: Cover | None = None) -> fx.Node:
    """The value below exact casts to float32 and clones; a word reads it in float32 anyhow."""
    while is_upcast(node):
        if cover is not None:
            cover.share(node)
        node = node.args[0]  # type: ignore[assignment]
    return node


def same_value(a: object, b: object) -> bool:
    """Whether two nodes are one value in float32."""
    return isinstance(a, fx.Node) and isinstance(b, fx.Node) and upcast(a) is upcast(b)


def row_statistic(node: fx.Node, cover: Cover) -> fx.Node:
    """The statistic below views that only append the last dimension or repeat along it."""
    while is_call(node, EXPAND, UNSQUEEZE, CLONE, *RESHAPE):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if not _is_row_view(shape_of(source), shape_of(node)):
            break
        cover.take(node)
        node = source
    return node


def _is_row_view(below: tuple[Size, ...], above: tuple[Size, ...]) -> bool:
    if same_shape(below, above) or same_shape((*below, 1), above):
        return True
    return len(below) == len(above) and same_size(below[-1], 1) and same_shape(below[:-1], above[:-1])


def vector(node: fx.Node, width: Size, cover: Cover) -> fx.Node:
    """The value below views that repeat a vector of ``width`` over rows, and below upcasts of it."""
    while is_upcast(node) or is_call(node, EXPAND, UNSQUEEZE, *SQUEEZE, *RESHAPE):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if not is_upcast(node) and not _is_vector_view(shape_of(source), shape_of(node), width):
            break
        cover.share(node)
        node = source
    return node


def _is_vector_view(below: tuple[Size, ...], above: tuple[Size, ...], width: Size) -> bool:
    return bool(below and above) and is_vector(below, width) and same_size(above[-1], width)


def is_vector(shape: tuple[Size, ...], width: Size) -> bool:
    """Whether ``shape`` is ``[1, ..., 1, width]``."""
    leading = shape[:-1]
    return bool(shape) and same_size(shape[-1], width) and is_static(*leading) and math.prod(leading) == 1
