"""Slices with one spelling: plain numbers for dimensions and bounds, slices in place of splits."""

from __future__ import annotations

from typing import cast

from torch import SymInt, fx
from torch.fx.node import Argument

from kernelweld.passes.canonicalize.edit import put_before
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.passes.canonicalize.views import idle_view
from kernelweld.passes.values import fake, refresh
from kernelweld.patterns.dims import is_static, same_shape
from kernelweld.patterns.ops import CAT, SELECT, SLICE, UNSQUEEZE, argument, aten, is_call, shape_of, value_of

SPLITS = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)


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


def past_scatter(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A slice of what was written to a slice reads what was written, or, elsewhere, what it was written over.

    ``slice_scatter`` is how functional graphs write to a part of a value: a rotation of the queries in
    packed projections, say. The slice was a view of a value of its own and becomes one of another.
    """
    scatter = node.args[0]
    if not is_call(scatter, aten.slice_scatter.default) or len(node.args) != 4 or len(scatter.args) != 5:
        return None
    place, over = _place(scatter.args, node.args), scatter.args[0]
    if place is None or not storage.may_alias(node, place[0]) or not _same_strides(place[0], scatter):
        return None
    assert isinstance(over, fx.Node)
    if not storage.may_alias(node, _below_scatters(over)):  # a cache, to which writes follow each other
        return None
    part = put_before(node, SLICE, place)
    known = node.meta["val"]
    part.meta["val"] = node.meta["val"] = fake(part)  # it lies in other memory
    refresh([(node, known)])
    return part


def _place(
    written: tuple[Argument, ...], read: tuple[Argument, ...]
) -> tuple[fx.Node, int, Argument, Argument] | None:
    """What a slice of ``read`` reads of what was ``written``: all of it, some of it, or what is beside it."""
    (over, source, dim, first, last), (_, along, start, end) = written, read
    assert isinstance(over, fx.Node) and isinstance(source, fx.Node) and isinstance(dim, int)
    if dim != along:
        return None
    if first == start == 0 and last is end:  # which may be a symbol
        return source, dim, 0, last
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    if end <= first or last <= start:
        return over, dim, start, end
    if first <= start and end <= last:
        return source, dim, start - first, end - first
    return None


def _below_scatters(node: fx.Node) -> fx.Node:
    """What the first of several parts was written over."""
    while is_call(node, aten.slice_scatter.default, aten.select_scatter.default):
        assert isinstance(node.args[0], fx.Node)
        node = node.args[0]
    return node


def _same_strides(a: fx.Node, b: fx.Node) -> bool:
    one, other = value_of(a), value_of(b)
    return one is not None and other is not None and same_shape(one.stride(), other.stride())


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
