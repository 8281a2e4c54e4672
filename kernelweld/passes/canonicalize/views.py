"""Views with one spelling: sizes written out, and no view that can be left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.passes.canonicalize.edit import put_before
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.passes.canonicalize.strides import (
    contiguous_strides,
    is_contiguous,
    same_strides,
    view_strides,
)
from kernelweld.patterns.dims import is_static, same_shape, same_size
from kernelweld.patterns.ops import (
    CAST,
    EXPAND,
    RESHAPE,
    SLICE,
    SQUEEZE,
    UNSQUEEZE,
    aten,
    is_call,
    shape_of,
    value_of,
)

PERMUTE = aten.permute.default

#: Views that others can undo, and how many of them a view is compared with.
_VIEWS = (*RESHAPE, PERMUTE, EXPAND, UNSQUEEZE, *SQUEEZE, SLICE)
_REACH = 8


def as_reshape(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``view`` becomes ``reshape``, as Inductor makes of it too."""
    return put_before(node, RESHAPE[0], node.args)


def as_permute(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``transpose`` and ``t`` become ``permute``."""
    rank = len(shape_of(node))
    order = list(range(rank))
    first, second = node.args[1:] if len(node.args) == 3 else (0, rank - 1)
    if isinstance(first, int) and isinstance(second, int) and rank:
        order[first], order[second] = order[second], order[first]
    return put_before(node, PERMUTE, (node.args[0], order))


def only_part(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A select from a dimension of one element is a squeeze."""
    source, dim, index = node.args
    if not isinstance(source, fx.Node) or not isinstance(dim, int) or index != 0:
        return None
    if not same_size(shape_of(source)[dim], 1):
        return None
    return put_before(node, SQUEEZE[0], (source, dim))


def idle_view(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A view with the shape that a value has becomes the value."""
    source = node.args[0]
    if (
        isinstance(source, fx.Node)
        and value_of(source) is not None
        and same_shape(shape_of(source), shape_of(node))
    ):
        return source
    return None


def written_out(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``reshape(x, [14, -1])`` and ``expand(x, [2, -1])`` name their sizes."""
    shape = shape_of(node)
    if not is_static(*shape) or list(shape) == node.args[1]:
        return None
    node.args = (node.args[0], list(shape))
    return node


def nested_reshape(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A reshape of a reshape becomes one, where the result keeps its strides and gets no new alias."""
    inner = node.args[0]
    source = inner.args[0] if is_call(inner, RESHAPE[0]) else None
    if not isinstance(source, fx.Node) or not isinstance(inner, fx.Node):
        return None
    if not _joins(source, inner, node, storage):
        return None
    node.args = (source, *node.args[1:])
    return node


def _joins(source: fx.Node, inner: fx.Node, node: fx.Node, storage: Storage) -> bool:
    below, middle, above = value_of(source), value_of(inner), value_of(node)
    if below is None or middle is None or above is None:
        return False
    if is_contiguous(source):
        return True
    if (
        not is_static(*below.shape, *below.stride(), *middle.shape, *above.shape, *above.stride())
        or 0 in below.shape
    ):
        return False
    direct = view_strides(below.shape, below.stride(), above.shape)
    strides = contiguous_strides(above.shape) if direct is None else direct
    was_view = view_strides(below.shape, below.stride(), middle.shape) is not None
    if direct is not None and not was_view and not storage.may_alias(node, source):
        return False
    return same_strides(above.shape, strides, above.stride())


def view_of_codes(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A cast of a reshape to a dtype of one byte becomes a reshape of the cast: codes are written where their
    scales are taken.
    """
    view, dtype = node.args
    source = view.args[0] if is_call(view, RESHAPE[0]) else None
    if not isinstance(view, fx.Node) or not isinstance(source, fx.Node) or len(view.users) > 1:
        return None
    if not isinstance(dtype, torch.dtype) or dtype.itemsize > 1 or not is_contiguous(source):
        return None
    codes = put_before(node, CAST, (source, dtype))
    codes.meta["val"] = source.meta["val"].to(dtype)
    return put_before(node, RESHAPE[0], (codes, view.args[1]))


def identity_permute(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A permutation that, with the one below it, moves nothing becomes the value."""
    source, order = node.args[0], _order(node)
    if not isinstance(source, fx.Node):
        return None
    if order == list(range(len(order))):
        return source
    inner = source.args[0] if is_call(source, PERMUTE) else None
    if isinstance(inner, fx.Node) and [_order(source)[d] for d in order] == list(range(len(order))):
        return inner
    return None


def undone_view(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A view that lies in memory as a value below it becomes the value: a squeeze of an unsqueeze, say."""
    source = node.args[0]
    for _ in range(_REACH):
        if not is_call(source, *_VIEWS):
            break
        source = source.args[0]
        if isinstance(source, fx.Node) and _same_memory(node, source):
            return source
    return None


def _same_memory(node: fx.Node, source: fx.Node) -> bool:
    a, b = value_of(node), value_of(source)
    if a is None or b is None or a.dtype != b.dtype or a.dim() != b.dim():
        return False
    extents = (*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset())
    if not all(map(same_size, *extents)):
        return False
    return bool(StorageWeakRef(a.untyped_storage()) == StorageWeakRef(b.untyped_storage()))


def _order(node: fx.Node) -> list[int]:
    dims = node.args[1]
    assert isinstance(dims, Sequence)
    return [d % len(dims) for d in dims if isinstance(d, int)]
