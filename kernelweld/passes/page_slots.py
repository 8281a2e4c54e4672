"""``page-slots``: positions that a selection gives become slots of a paged cache in its own launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.kernels.index_topk import index_topk
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.effects import eliminate_dead
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import CAST, aten, dtype_of, is_call, shape_of
from kernelweld.patterns.scalars import scalar

_INHERITED = ("val", "stack_trace", "nn_module_stack", "source_fn_stack", "from_node")


@dataclass(frozen=True)
class PageSlotsPass(Pass):
    """Gives ``index_topk`` the page table that its result is looked up in.

    Before: ``%2 = index_topk(%scores, %lengths); %9 = where(%2 >= 0, gather(%table, 1, %2 // 64) * 64 + %2 %
    64, -1)``
    After: ``%9 = index_topk(%scores, %lengths, %table, block=64)``

    Not handled: a selection whose positions are also used otherwise; tables that are not int32.
    """

    name = "page-slots"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        found = [
            lookup
            for node in gm.graph.find_nodes(op="call_function", target=index_topk.overload)
            if len(node.args) == 2 and (lookup := _lookup(node)) is not None
        ]
        for lookup in found:
            lookup.fold()
        if found:
            eliminate_dead(gm.graph)
        return PassResult(modified=bool(found), count=len(found))


@dataclass(frozen=True)
class _Lookup:
    """The slots ``result`` of the positions ``topk``: ``table`` names the pages of ``block`` tokens."""

    topk: fx.Node
    table: fx.Node
    block: int
    result: fx.Node

    def fold(self) -> None:
        """Puts the selection with its table in the place of the slots."""
        graph, result = self.topk.graph, self.result
        with graph.inserting_before(result):
            operands = (*self.topk.args, self.table)
            slots = graph.call_function(
                index_topk.overload, operands, {**self.topk.kwargs, "block": self.block}
            )
        slots.meta = {key: result.meta[key] for key in _INHERITED if key in result.meta}
        result.replace_all_uses_with(slots)


def _lookup(topk: fx.Node) -> _Lookup | None:
    """The lookup that ``topk`` goes through, if that is all that becomes of it."""
    for result in _chosen(topk):
        kept, slot, other = result.args
        if not _is_found(kept, topk) or scalar(other) != -1 or not is_call(slot, aten.add.Tensor):
            continue
        found = _slot(slot, topk)
        if found is None or not same_shape(shape_of(result), shape_of(topk)):
            continue
        table, block, inner = found
        if set(topk.users) <= {kept, *inner} and dtype_of(result) == torch.int32:
            return _Lookup(topk, table, block, result)
    return None


def _chosen(topk: fx.Node) -> Iterator[fx.Node]:
    """What is chosen by whether there is a position."""
    for mask in topk.users:
        yield from (user for user in mask.users if is_call(user, aten.where.self) and user.args[0] is mask)


def _is_found(mask: object, topk: fx.Node) -> bool:
    """Whether ``mask`` says where there is a position."""
    if is_call(mask, aten.ge.Scalar):
        return mask.args == (topk, 0)
    return is_call(mask, aten.gt.Scalar) and mask.args == (topk, -1)


def _slot(slot: fx.Node, topk: fx.Node) -> tuple[fx.Node, int, set[fx.Node]] | None:
    """Table and block size of ``table[row, i // block] * block + i % block``, and its reads of ``topk``."""
    scaled, row = slot.args[:2]
    if not is_call(scaled, aten.mul.Tensor) or not is_call(row, aten.remainder.Scalar) or slot.kwargs:
        return None
    page, number = scaled.args[0], scalar(scaled.args[1])
    block = 0 if number is None or not number.is_integer() else int(number)
    if not is_call(page, aten.gather.default) or page.args[1] != 1 or row.args != (topk, block):
        return None
    table, quotient = page.args[0], _unclamped(page.args[2])
    if not is_call(quotient, aten.div.Tensor_mode) or quotient.args != (topk, block):
        return None
    whole = quotient.kwargs.get("rounding_mode") == "floor" and block > 0
    if not whole or not isinstance(table, fx.Node) or dtype_of(table) != torch.int32:
        return None
    return table, block, {quotient, row}


def _unclamped(number: object) -> object:
    """A page's number without its conversion and the bound that keeps it from being negative."""
    if is_call(number, CAST):
        number = number.args[0]
    if is_call(number, aten.clamp_min.default) and number.args[1] == 0:
        number = number.args[0]
    return number
