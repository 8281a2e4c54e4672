"""Parts of a tensor that are written: the views that lead to a part, and what puts its new value back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import (
    RESHAPE,
    SELECT,
    SLICE,
    SQUEEZE,
    UNSQUEEZE,
    aten,
    dtype_of,
    is_call,
    shape_of,
    value_of,
)
from kernelweld.patterns.reading import NEARLY, Miss

_PERMUTE = aten.permute.default
_AS_DTYPE = aten.view.dtype
_SHAPING = (*RESHAPE, UNSQUEEZE, *SQUEEZE)
#: Views that show some of the elements, or their bytes: what is written there must be put back.
_PARTIAL = (SELECT, SLICE, _AS_DTYPE)


@dataclass(frozen=True)
class Part:
    """``views`` lead from the part down to ``whole`` (left out), ``backs`` from the written part to the new
    value of ``whole``, which is the last of them.
    """

    whole: fx.Node
    views: tuple[fx.Node, ...]
    backs: tuple[fx.Node, ...]


def part_of(
    cache: fx.Node, written: fx.Node, now: Mapping[fx.Node, fx.Node] = MappingProxyType({})
) -> Part | None:
    """How ``cache`` is a part of a larger tensor, and ``written`` is put back there; None if it is the tensor
    itself, or a view of all of it in its own dtype. That tensor may be such a view in turn. ``now`` are the
    values that tensors have got since ``cache`` was taken from them.

    Raises:
        Miss: the new value of the part does not become a new value of the tensor in its place.
    """
    views = _views(cache)
    if not views:
        return None
    whole = views[-1].args[0]
    assert isinstance(whole, fx.Node)
    backs: list[fx.Node] = []
    for view in views:
        last = backs[-1] if backs else written
        source = view.args[0]
        assert isinstance(source, fx.Node)
        source = now.get(source, source)
        back = next((user for user in last.users if _puts_back(user, view, source, last)), None)
        if back is None:
            raise Miss(
                "%{} is written as a part of %{}, but not put back there", cache, cache, whole, stage=NEARLY
            )
        backs.append(back)
    if not _lies_alike(cache, whole, backs[-1]):
        raise Miss("%{} lies in memory otherwise than %{}", whole, backs[-1], whole, stage=NEARLY)
    return Part(whole, tuple(views), tuple(backs))


def _views(node: fx.Node) -> list[fx.Node]:
    """The views from ``node`` down to the last one that shows a part."""
    views: list[fx.Node] = []
    while is_call(node, *_PARTIAL, *_SHAPING, _PERMUTE) and isinstance(node.args[0], fx.Node):
        views.append(node)
        node = node.args[0]
    while views and not is_call(views[-1], *_PARTIAL):
        views.pop()
    return views


def _puts_back(user: fx.Node, view: fx.Node, source: fx.Node, written: fx.Node) -> bool:
    """Whether ``user`` is ``source`` with ``written`` in the place of ``view``."""
    if is_call(user, aten.select_scatter.default):
        return user.args[:2] == (source, written) and user.args[2:] == _selection(view, source)
    if is_call(user, aten.slice_scatter.default):
        return is_call(view, SLICE) and user.args[:2] == (source, written) and user.args[2:] == view.args[1:]
    if is_call(view, _AS_DTYPE):
        return is_call(user, _AS_DTYPE) and dtype_of(user) == dtype_of(source)
    if is_call(view, _PERMUTE):
        return is_call(user, _PERMUTE) and _is_inverse(user.args[1], view.args[1])
    return (
        is_call(view, *_SHAPING) and is_call(user, *_SHAPING) and same_shape(shape_of(user), shape_of(source))
    )


def _selection(view: fx.Node, source: fx.Node) -> tuple[object, ...]:
    """Dimension and index of what ``view`` selects; a dimension of one element may be squeezed instead."""
    if is_call(view, SQUEEZE[0]) and isinstance(dim := view.args[1], int):
        return (dim, 0) if same_size(shape_of(source)[dim], 1) else ()
    return view.args[1:] if is_call(view, SELECT) else ()


def _is_inverse(order: object, other: object) -> bool:
    assert isinstance(order, (list, tuple)) and isinstance(other, (list, tuple))
    return [other[dim] for dim in order] == list(range(len(other)))


def _lies_alike(part: fx.Node, whole: fx.Node, result: fx.Node) -> bool:
    """Whether ``part`` is memory of ``whole``, and ``result`` has the strides of ``whole``."""
    values = [value_of(node) for node in (part, whole, result)]
    if any(value is None for value in values):
        return False
    a, b, c = (value for value in values if value is not None)
    shared = StorageWeakRef(a.untyped_storage()) == StorageWeakRef(b.untyped_storage())
    return bool(shared) and b.dtype == c.dtype and all(map(same_size, b.stride(), c.stride()))
