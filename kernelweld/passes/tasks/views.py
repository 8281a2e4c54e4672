"""View operations between the steps of a weld: how each one carries the axes of a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import sympy
import torch
from torch import fx
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from kernelweld.passes.symbols import of_some
from kernelweld.passes.tasks.axes import AxisSpace, Dims, DomainMismatch

aten = torch.ops.aten


def sizes_of(node: fx.Node) -> tuple[sympy.Expr, ...]:
    """The shape of a node's value as sympy expressions."""
    return tuple(expression(s) for s in node.meta["val"].shape)


def expression(size: int | torch.SymInt) -> sympy.Expr:
    """A size or stride as sympy: an Integer, or the expression behind a SymInt."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def strides_of(node: fx.Node) -> tuple[sympy.Expr, ...]:
    """The strides of a node's value."""
    return tuple(of_some(expression(s)) for s in node.meta["val"].stride())


def _regroup(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    return space.regroup(dims, sizes_of(node))


def _permute(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    order = node.args[1]
    assert isinstance(order, (list, tuple))
    return tuple(dims[int(d) % len(dims)] for d in order)  # type: ignore[arg-type]


def _transpose(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    i, j = (int(d) % len(dims) for d in node.args[1:3])  # type: ignore[arg-type]
    swapped = list(dims)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return tuple(swapped)


def _same(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    return dims


def _expand(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    sizes = sizes_of(node)
    padded = ((),) * (len(sizes) - len(dims)) + dims
    if any(not dim and size != 1 for dim, size in zip(padded, sizes, strict=True)):
        raise DomainMismatch("a broadcast dimension is expanded inside the chain")
    return padded


_Carry = Callable[[AxisSpace, fx.Node, Dims], Dims]

#: View operators (and copies that only change layout) that a weld carries in its addressing.
VIEWS: Mapping[OpOverload, _Carry] = MappingProxyType(
    {
        aten.reshape.default: _regroup,
        aten.view.default: _regroup,
        aten._unsafe_view.default: _regroup,
        aten.unsqueeze.default: _regroup,
        aten.squeeze.dim: _regroup,
        aten.squeeze.dims: _regroup,
        aten.permute.default: _permute,
        aten.transpose.int: _transpose,
        aten.expand.default: _expand,
        aten.clone.default: _same,
        aten.alias.default: _same,
    }
)


def is_view(node: fx.Node) -> bool:
    """Whether a weld can carry this node in its addressing."""
    return node.op == "call_function" and node.target in VIEWS


def carry(space: AxisSpace, node: fx.Node, dims: Dims) -> Dims:
    """The axes of a view's result, from those of its operand; DomainMismatch if the view does not
    follow the axes.
    """
    return VIEWS[node.target](space, node, tuple(space.resolve(d) for d in dims))  # type: ignore[index]


_ALIASES = frozenset(VIEWS) - {aten.clone.default} | {aten.slice.Tensor, aten.select.int}


def base_of(node: fx.Node) -> fx.Node:
    """The value whose memory ``node`` is a view of: itself, or what it views through any number of aliases.

    A kernel that is given the base with strides and an offset shares one argument, and one copy of it in
    memory, among all views.
    """
    while node.op == "call_function" and node.target in _ALIASES:
        source: fx.Node = node.args[0]  # type: ignore[assignment]
        if not _share_memory(node.meta["val"], source.meta["val"]):
            break
        node = source
    return node


#: Views that keep all elements in their order.
_RESHAPES = frozenset({target for target, carried in VIEWS.items() if carried is _regroup})


def copied_from(node: fx.Node) -> fx.Node | None:
    """What ``node`` is a copy of, in any dimensions, made for the sake of ``node`` alone; else None."""
    while node.op == "call_function" and node.target in _RESHAPES:
        source: fx.Node = node.args[0]  # type: ignore[assignment]
        if len(source.users) > 1 or not _share_memory(node.meta["val"], source.meta["val"]):
            return None
        node = source
    is_copy = node.op == "call_function" and node.target is aten.clone.default
    return node.args[0] if is_copy else None  # type: ignore[return-value]


def original_of(node: fx.Node) -> fx.Node | None:
    """What a kernel may read in place of ``node``, by its own strides, so that no copy is made.

    None if there is nothing; if its rows are others, as no tile is cut; or if something writes to it: the
    copy may be of what was there before.
    """
    original = copied_from(node)
    if original is None or sizes_of(original)[-1:] != sizes_of(node)[-1:]:
        return None
    return None if any(map(_writes, base_of(original).users)) else original


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _share_memory(view: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether two fake tensors have one storage: a reshape that copies does not."""
    return bool(StorageWeakRef(view.untyped_storage()) == StorageWeakRef(source.untyped_storage()))
