"""Where a value of a weld is written: at once into the layout that copies behind it would give it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import sympy
import torch
from torch import fx

from kernelweld.codegen.task import Jump
from kernelweld.ir.expansion import EXPANSION
from kernelweld.passes.tasks.axes import Axis, AxisSpace, Dims, DomainMismatch, product
from kernelweld.passes.tasks.domain import Domain
from kernelweld.passes.tasks.layout import Layout
from kernelweld.passes.tasks.steps import is_concat
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


@dataclass(frozen=True)
class Landing:
    """The node whose buffer a value is written to, the dimensions of the value there, in a space of axes of
    its own, and how many columns of that buffer stand before it.
    """

    place: fx.Node
    space: AxisSpace
    dims: Dims
    column: sympy.Expr = sympy.S.Zero


def landing(layout: Layout, domain: Domain, node: fx.Node, joined: Collection[fx.Node] = ()) -> Landing:
    """The last copy that the only use of ``node`` besides the steps comes to through views, or ``node``
    itself; and its dimensions, in a space of axes of its own: views may split those of rows and heads.

    Column-major scales, with gaps between columns or without, scales in tiles of 128 by 4, or rotated
    heads made contiguous for an attention kernel, need no copy of their own. Bytes that are copied as
    integers have a dimension more than the copy: which byte of one it is. A row of ``joined`` has its pieces
    written side by side.
    """
    space, dims, byte = _copied(layout.space), layout.held[node].dims, Dims()
    found = Landing(node, _copied(space), dims)
    for view in way(node, layout.steps, joined):
        try:
            if view in joined:
                _check_tile(domain, space)
                return Landing(view, _copied(space), dims, _column(view, node))
            if view.target is aten.view.dtype:
                dims, byte = _packed(space, view, dims)
            elif not fills_buffer(view):
                dims = carry(space, view, dims)
            if is_copy(view):
                _check_tile(domain, space)
                found = Landing(view, _copied(space), dims + byte)
        except DomainMismatch:
            break
    return found


def pieces_of(joined: fx.Node) -> tuple[fx.Node, ...]:
    """The values that a concatenation joins, each seen through views and used for nothing else; none if one
    of them is used otherwise or joined twice.
    """
    found: list[fx.Node] = []
    for piece in cast("Sequence[fx.Node]", joined.args[0]):
        while _only_user(piece) is not None and piece.target in _VIEWS:
            piece = piece.args[0]  # type: ignore[assignment]
        if _only_user(piece) is None:
            return ()
        found.append(piece)
    return tuple(found) if len(set(found)) == len(found) else ()


def is_joined_of(node: fx.Node, weld: Collection[fx.Node]) -> bool:
    """Whether ``node`` joins along the last dimension results of ``weld``, which nothing else reads, as they
    are: of one dtype.
    """
    if not is_concat(node) or node in weld:
        return False
    parts = cast("Sequence[fx.Node]", node.args[0])
    if any(part.meta["val"].dtype != node.meta["val"].dtype for part in parts):
        return False
    pieces = pieces_of(node)
    return bool(pieces) and all(piece in weld for piece in pieces)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _column(joined: fx.Node, piece: fx.Node) -> sympy.Expr:
    """The columns of ``joined`` before ``piece``."""
    before = pieces_of(joined).index(piece)
    parts = cast("Sequence[fx.Node]", joined.args[0])
    return sympy.Add(*(sizes_of(part)[-1] for part in parts[:before]))


def _packed(space: AxisSpace, view: fx.Node, dims: Dims) -> tuple[Dims, Dims]:
    """The dimensions of bytes seen as integers, and that of the bytes of one."""
    integers, size = sizes_of(view)[-1], view.meta["val"].dtype.itemsize
    whole, byte = space.regroup(dims[-1:], (integers, sympy.Integer(size)))
    return (*dims[:-1], whole), (byte,)


def _copied(space: AxisSpace) -> AxisSpace:
    return AxisSpace(dict(space.finer))


def way(node: fx.Node, steps: Collection[fx.Node], joined: Collection[fx.Node] = ()) -> Iterator[fx.Node]:
    """The views and copies that are the only uses, one after the other, up to one of the ``joined`` rows."""
    users = [user for user in node.users if user not in steps]
    while len(users) == 1 and (users[0].target in _VIEWS or is_copy(users[0]) or _packs(users[0])):
        yield users[0]
        users = list(users[0].users)
    if len(users) == 1 and users[0] in joined:
        yield users[0]


def landed(steps: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The nodes behind ``steps`` that lay out what these leave, of operators, or that join it to rows: their
    kernel writes it so.
    """
    for node in steps:
        path = list(way(node, steps))
        path += [user for user in (path or [node])[-1].users if is_joined_of(user, steps)]
        while path and not _is_laid_out(path[-1]):
            path.pop()
        yield from path


def _is_laid_out(node: fx.Node) -> bool:
    return node.target is aten.cat.default or (is_copy(node) and EXPANSION in node.meta)


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
