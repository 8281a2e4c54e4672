"""Where a value of a weld is written: at once into the layout that copies behind it would give it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import sympy
import torch
from torch import fx

from kernelweld.codegen.task import Jump
from kernelweld.ir.expansion import EXPANSION
from kernelweld.passes.tasks.axes import Axis, AxisSpace, Dims, DomainMismatch, product
from kernelweld.passes.tasks.domain import Domain
from kernelweld.passes.tasks.layout import Layout
from kernelweld.passes.tasks.views import carry, sizes_of
from kernelweld.patterns.aliasing import fills_buffer

aten = torch.ops.aten

#: Views that a value may go through between its step and the copy.
_VIEWS = frozenset(
    {
        aten.permute.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.reshape.default,
        aten.view.default,
        aten._unsafe_view.default,
    }
)


def landing(layout: Layout, domain: Domain, node: fx.Node) -> tuple[fx.Node, AxisSpace, Dims]:
    """The last copy that the only use of ``node`` besides the steps comes to through views, or ``node``
    itself; and its dimensions, in a space of axes of its own: views may split those of rows and heads.

    Column-major scales, with gaps between columns or without, scales in tiles of 128 by 4, or rotated
    heads made contiguous for an attention kernel, need no copy of their own. Bytes that are copied as
    integers have a dimension more than the copy: which byte of one it is.
    """
    space, dims, byte = _copied(layout.space), layout.held[node].dims, Dims()
    found = node, _copied(space), dims
    for view in way(node, layout.steps):
        try:
            if view.target is aten.view.dtype:
                dims, byte = _packed(space, view, dims)
            elif not fills_buffer(view):
                dims = carry(space, view, dims)
            if is_copy(view):
                _check_tile(domain, space)
                found = view, _copied(space), dims + byte
        except DomainMismatch:
            break
    return found


def _packed(space: AxisSpace, view: fx.Node, dims: Dims) -> tuple[Dims, Dims]:
    """The dimensions of bytes seen as integers, and that of the bytes of one."""
    integers, size = sizes_of(view)[-1], view.meta["val"].dtype.itemsize
    whole, byte = space.regroup(dims[-1:], (integers, sympy.Integer(size)))
    return (*dims[:-1], whole), (byte,)


def _copied(space: AxisSpace) -> AxisSpace:
    return AxisSpace(dict(space.finer))


def way(node: fx.Node, steps: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The views and copies that are the only uses, one after the other."""
    users = [user for user in node.users if user not in steps]
    while len(users) == 1 and (users[0].target in _VIEWS or is_copy(users[0]) or _packs(users[0])):
        yield users[0]
        users = list(users[0].users)


def landed(steps: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The nodes of operators behind ``steps`` that lay out what these leave: their kernel writes it so."""
    for node in steps:
        path = list(way(node, steps))
        while path and not (is_copy(path[-1]) and EXPANSION in path[-1].meta):
            path.pop()
        yield from path


def _packs(node: fx.Node) -> bool:
    """Whether ``node`` sees bytes as integers."""
    if node.target is not aten.view.dtype:
        return False
    seen, given = node.meta["val"].dtype, node.all_input_nodes[0].meta["val"].dtype
    return bool(given.itemsize == 1 < seen.itemsize)


def is_copy(node: fx.Node) -> bool:
    """Whether ``node`` has the elements of its operand in memory of its own."""
    return node.target is aten.clone.default or fills_buffer(node)


def _check_tile(domain: Domain, space: AxisSpace) -> None:
    """The elements of a tile follow each other at one stride."""
    if any(len(space.resolve((axis,))) != 1 for axis in domain.features):
        raise DomainMismatch("the last dimension of a tile is cut by a view")


def jumps_of(dim: int | None, parts: Sequence[Axis], strides: Mapping[Axis, sympy.Expr]) -> Iterator[Jump]:
    """What an address moves by beyond the stride of the last part, where an axis falls into ``parts``."""
    for i, (outer, inner) in enumerate(pairwise(parts)):
        step = sympy.expand(strides.get(outer, 0) - inner.size * strides.get(inner, 0))
        if step != 0:
            yield Jump(dim, product([part.size for part in parts[i + 1 :]]), step)
