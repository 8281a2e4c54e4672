"""The ``cat`` that joins the two halves of a rotary embedding, end to end or element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import CAT, RESHAPE, UNSQUEEZE, argument, is_call, only_user, shape_of
from kernelweld.patterns.reading import something_else


@dataclass(frozen=True)
class Join:
    """``value`` holds ``first`` and ``second``: in the first and second half, or alternating if ``pairs``."""

    first: fx.Node
    second: fx.Node
    value: fx.Node
    pairs: bool


def last_dim_parts(node: object) -> tuple[fx.Node, ...] | None:
    """What a ``cat`` along the last dimension joins, or None."""
    if not is_call(node, CAT):
        return None
    parts, dim = node.args[0], argument(node, 1, "dim", 0)
    if not isinstance(parts, Sequence) or not isinstance(dim, int):
        return None
    nodes = tuple(p for p in parts if isinstance(p, fx.Node))
    return (
        nodes if len(nodes) == len(parts) and dim % len(shape_of(node)) == len(shape_of(node)) - 1 else None
    )


def read_join(anchor: fx.Node, cover: Cover) -> Join:
    """The join that ``anchor`` is.

    Raises:
        Miss: it joins another number of values or along another dimension (stage 0).
    """
    parts = last_dim_parts(anchor)
    if parts is None or len(parts) != 2:
        raise something_else(anchor)
    cover.take(anchor)
    columns = tuple(_column(p) for p in parts)
    flat = only_user(anchor)
    if columns[0] is None or columns[1] is None or not is_call(flat, *RESHAPE) or not _flattens(anchor, flat):
        return Join(parts[0], parts[1], anchor, pairs=False)
    cover.take(flat, *parts)
    return Join(columns[0], columns[1], flat, pairs=True)


def _column(part: fx.Node) -> fx.Node | None:
    """``h`` if ``part`` is ``h[..., None]``."""
    source = part.args[0] if is_call(part, UNSQUEEZE, *RESHAPE) else None
    if not isinstance(source, fx.Node) or not same_shape((*shape_of(source), 1), shape_of(part)):
        return None
    return source


def _flattens(joined: fx.Node, flat: fx.Node) -> bool:
    """Whether ``flat`` merges the last two dimensions of ``joined``."""
    below, above = shape_of(joined), shape_of(flat)
    return (
        len(above) == len(below) - 1
        and same_shape(below[:-2], above[:-1])
        and same_size(below[-2] * 2, above[-1])
    )
