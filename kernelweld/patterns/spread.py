"""The repetition that widens a rotary table from one value a pair to one value an element."""

from __future__ import annotations

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import CLONE, EXPAND, RESHAPE, UNSQUEEZE, Size, is_call, only_user, shape_of
from kernelweld.patterns.rope_join import last_dim_parts

#: A spread takes at most this many nodes: unsqueeze, expand, clone, reshape.
_LONGEST = 4


def spread_of(node: fx.Node, cover: Cover) -> tuple[fx.Node, str]:
    """What ``node`` repeats: ``halves`` (all, twice), ``pairs`` (each twice), ``half`` (not at all)."""
    parts = last_dim_parts(node)
    if parts is not None and len(parts) == 2 and parts[0] is parts[1]:
        cover.take(node)
        return parts[0], "halves"
    flat, expanded = node, node.args[0] if is_call(node, *RESHAPE) else None
    clone = expanded
    if is_call(clone, CLONE):
        expanded = clone.args[0]
    column = expanded.args[0] if is_call(expanded, EXPAND) else None
    if not is_call(column, UNSQUEEZE, *RESHAPE) or not isinstance(expanded, fx.Node):
        return node, "half"
    source = column.args[0]
    layout = _layout(source, expanded, flat) if isinstance(source, fx.Node) else None
    if layout is None or not isinstance(source, fx.Node) or not isinstance(clone, fx.Node):
        return node, "half"
    cover.take(flat, clone, expanded, column)
    return source, layout


def _layout(source: fx.Node, expanded: fx.Node, flat: fx.Node) -> str | None:
    below = shape_of(source)
    if not below or not same_shape((*below[:-1], 2 * below[-1]), shape_of(flat)):
        return None
    layouts: dict[str, tuple[Size, ...]] = {
        "halves": (*below[:-1], 2, below[-1]),
        "pairs": (*below, 2),
    }
    column = expanded.args[0]
    assert isinstance(column, fx.Node)
    ones = {"halves": (*below[:-1], 1, below[-1]), "pairs": (*below, 1)}
    for layout, shape in layouts.items():
        if same_shape(shape, shape_of(expanded)) and same_shape(ones[layout], shape_of(column)):
            return layout
    return None


def spread_above(value: fx.Node, cover: Cover) -> tuple[fx.Node, str]:
    """The node that repeats ``value``, its only use, and how; ``value`` itself and ``half`` if none does."""
    node = value
    for _ in range(_LONGEST):
        user = only_user(node)
        if user is None:
            break
        trial = Cover()
        source, layout = spread_of(user, trial)
        if layout != "half" and source is value:
            cover.merge(trial)
            return user, layout
        node = user
    return value, "half"
