"""Views with one spelling: plain numbers for dimensions and bounds, and no view that can be left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import SymInt, fx
from torch.fx.node import Argument

from kernelweld.passes.canonicalize.edit import put_before
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.passes.canonicalize.strides import contiguous_strides, same_strides, view_strides
from kernelweld.patterns.dims import is_static, same_shape, same_size
from kernelweld.patterns.ops import (
    CAT,
    RESHAPE,
    SELECT,
    SLICE,
    UNSQUEEZE,
    argument,
    aten,
    is_call,
    shape_of,
    value_of,
)

PERMUTE = aten.permute.default
SPLITS = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)


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
    if _is_contiguous(source):
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


def _is_contiguous(node: fx.Node) -> bool:
    val = value_of(node)
    if val is None:
        return False
    step: int = 1
    for size, stride in zip(reversed(val.shape), reversed(val.stride()), strict=True):
        if not same_size(size, 1) and not same_size(stride, step):
            return False
        step = step * size
    return True


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


def _order(node: fx.Node) -> list[int]:
    dims = node.args[1]
    assert isinstance(dims, Sequence)
    return [d % len(dims) for d in dims if isinstance(d, int)]


def plain_dim(node: fx.Node, storage: Storage) -> fx.Node | None:
    """Negative dimensions (and the negative index of a select) are counted from the front."""
    if is_call(node, UNSQUEEZE, CAT):
        rank, dim = len(shape_of(node)), argument(node, 1, "dim", 0)
        return _set(node, (node.args[0], dim % rank)) if isinstance(dim, int) and rank else None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    dim, index = argument(node, 1, "dim"), argument(node, 2, "index")
    if not isinstance(dim, int) or not isinstance(index, int):
        return None
    dim %= len(shape_of(source))
    size = shape_of(source)[dim]
    if isinstance(size, int):
        index %= size
    return _set(node, (source, dim, index))


def plain_slice(node: fx.Node, storage: Storage) -> fx.Node | None:
    """Bounds of a slice are numbers within the dimension; step 1 is left out."""
    return _plain_bounds(node, 1)


def plain_slice_scatter(node: fx.Node, storage: Storage) -> fx.Node | None:
    """As :func:`plain_slice`, for what is written to a slice."""
    return _plain_bounds(node, 2)


def _plain_bounds(node: fx.Node, first: int) -> fx.Node | None:
    """Writes out dimension, start, end and step, which are the arguments from ``first`` on."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    dim, step = argument(node, first, "dim", 0), argument(node, first + 3, "step", 1)
    start, end = argument(node, first + 1, "start"), argument(node, first + 2, "end")
    if not isinstance(dim, int) or not shape_of(source):
        return None
    dim %= len(shape_of(source))
    size = shape_of(source)[dim]
    start, end = 0 if start is None else start, 2**63 - 1 if end is None else end
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        start, end = (min(max(b + size if b < 0 else b, 0), size) for b in (start, end))
        end = max(start, end)
    bounds = (dim, start, end) if step == 1 else (dim, start, end, step)
    return _set(node, (*node.args[:first], *cast("tuple[Argument, ...]", bounds)))


def plain_select_scatter(node: fx.Node, storage: Storage) -> fx.Node | None:
    """Dimension and index are counted from the front."""
    dim, index = argument(node, 2, "dim"), argument(node, 3, "index")
    if not isinstance(dim, int) or not isinstance(index, int):
        return None
    dim %= len(shape_of(node))
    size = shape_of(node)[dim]
    return _set(node, (*node.args[:2], dim, index % size if isinstance(size, int) else index))


def _set(node: fx.Node, args: tuple[Argument, ...]) -> fx.Node | None:
    """Gives ``node`` these positional arguments; None if it had them."""
    if node.args == args and not node.kwargs:
        return None
    node.args, node.kwargs = args, {}
    return node


def idle_slice(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A slice of everything becomes the value."""
    if len(node.args) == 5:
        return None
    return idle_view(node, storage)


def nested_slice(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A slice of a slice that nobody else reads becomes one slice."""
    inner = node.args[0]
    if not is_call(inner, SLICE) or len(inner.users) != 1 or inner.args[1] != node.args[1]:
        return None
    if (
        len(inner.args) == 5
        or not is_static(*inner.args[2:4], *node.args[2:4])
        or not is_static(*shape_of(inner))
    ):
        return None
    source, dim, offset, _ = inner.args
    start, end = node.args[2:4]
    assert isinstance(offset, int) and isinstance(start, int) and isinstance(end, int)
    return _set(node, (source, dim, start + offset, end + offset, *node.args[4:]))


def split_part(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A part of a split becomes a slice."""
    split, index = node.args
    if not is_call(split, *SPLITS) or not isinstance(index, int):
        return None
    source, dim = split.args[0], argument(split, 2, "dim", 0)
    parts = split.meta.get("val")
    if not isinstance(source, fx.Node) or not isinstance(dim, int) or not isinstance(parts, (list, tuple)):
        return None
    dim %= len(shape_of(source))
    sizes = [part.shape[dim] for part in parts]
    if any(isinstance(size, SymInt) for size in sizes[: index + 1]):
        return None
    start = sum(sizes[:index])
    return put_before(node, SLICE, (source, dim, start, start + sizes[index]))


def unbound(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A part of an unbind becomes a select."""
    unbind, index = node.args
    if not is_call(unbind, aten.unbind.int) or not isinstance(index, int):
        return None
    source, dim = unbind.args[0], argument(unbind, 1, "dim", 0)
    if not isinstance(source, fx.Node) or not isinstance(dim, int):
        return None
    return put_before(node, SELECT, (source, dim, index))
