"""The angles of a rotary table: the outer product of positions and frequencies, upright or turned."""

from __future__ import annotations

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import (
    CAST,
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
from kernelweld.patterns.peel import is_upcast, is_vector, vector
from kernelweld.patterns.reading import NEARLY, Miss, something_else

_VIEWS = (UNSQUEEZE, *SQUEEZE, *RESHAPE)
INTEGERS = (torch.int64, torch.int32)


def outer_product(node: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node]:
    """Positions and frequencies of ``positions[..., None] * inv_freq``, or of the product turned:
    ``(inv_freq[:, None] * positions[..., None, :]).transpose(-2, -1)``.

    Raises:
        Miss: ``node`` is no such product (stage 0), or one that is not computed in float32.
    """
    shape, trial = shape_of(node), Cover()
    product, turned = _below_turn(node, trial)
    pair = operands(product) if is_call(product, *MUL) else None
    for first, second in (pair, pair[::-1]) if pair is not None and shape else ():
        if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
            continue
        attempt = Cover()
        inv_freq = _standing(second, shape[-1], attempt) if turned else vector(second, shape[-1], attempt)
        positions = _positions(first, shape_of(product), shape[:-1], turned, attempt)
        if positions is None or inv_freq is None or not is_vector(shape_of(inv_freq), shape[-1]):
            continue
        _check_float32(product, first, second)
        cover.merge(trial)
        cover.merge(attempt)
        cover.take(product)
        return positions, inv_freq
    raise something_else(node)


def _below_turn(node: fx.Node, cover: Cover) -> tuple[fx.Node, bool]:
    """The product below a transposition of its last two dimensions, and whether there is one.

    A batched matrix product has one batch dimension, which is cut up again behind it; a plain one has none.
    """
    rank = len(shape_of(node))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    source = node.args[0] if is_call(node, aten.permute.default) else None
    if rank < 2 or not isinstance(source, fx.Node) or node.args[1] != swapped:
        return node, False
    cover.take(node)
    below = source.args[0] if is_call(source, *_VIEWS) else None
    if isinstance(below, fx.Node) and same_shape(shape_of(below)[-2:], shape_of(source)[-2:]):
        cover.take(source)
        return below, True
    return source, True


def _positions(
    node: fx.Node, product: tuple[Size, ...], rows: tuple[Size, ...], turned: bool, cover: Cover
) -> fx.Node | None:
    """``p``, a number for each row, if ``node`` is ``float(p)`` with a dimension of one element for the
    frequencies: the last value of that shape below casts and views, which keep the order of elements.
    """
    opened = (*product[:-2], 1, product[-1]) if turned else (*product[:-1], 1)
    if not same_shape(shape_of(node), opened):
        return None
    found, trial, dtype = None, Cover(), dtype_of(node)
    while True:
        if same_shape(shape_of(node), rows):
            found = node
            cover.merge(trial)
        source = node.args[0] if is_call(node, *_VIEWS) or _is_cast(node, dtype) else None
        if not isinstance(source, fx.Node):
            return found
        trial.share(node)
        node = source


def _is_cast(node: fx.Node, dtype: torch.dtype | None) -> bool:
    """Whether ``node`` casts positions as a table does itself: to the angle's ``dtype``, or integers to
    integers.
    """
    source = node.args[0] if is_call(node, CAST) else None
    if not isinstance(source, fx.Node) or dtype_of(source) not in (*INTEGERS, *FLOATS):
        return False
    return dtype_of(node) == dtype or (dtype_of(node) in INTEGERS and dtype_of(source) in INTEGERS)


def _standing(node: fx.Node, width: Size, cover: Cover) -> fx.Node | None:
    """The vector below views that stand it up as ``[..., width, 1]`` and repeat that."""
    while True:
        source = node.args[0] if is_upcast(node) or is_call(node, EXPAND, *_VIEWS) else None
        if not isinstance(source, fx.Node) or not _is_column(shape_of(node), width):
            return None
        cover.share(node)
        if not _is_column(shape_of(source), width):
            return vector(source, width, cover) if is_vector(shape_of(source), width) else None
        node = source


def _is_column(shape: tuple[Size, ...], width: Size) -> bool:
    return len(shape) >= 2 and same_size(shape[-1], 1) and same_size(shape[-2], width)


def _check_float32(*values: fx.Node) -> None:
    for value in values:
        if dtype_of(value) != torch.float32:
            dtype = dtype_name(dtype_of(value))
            raise Miss("%{}, part of the angle, is {}", value, value, dtype, stage=NEARLY)
