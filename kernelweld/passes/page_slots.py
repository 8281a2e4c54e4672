"""``page-slots``: positions that a selection gives become slots of a paged cache in its own launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.kernels.index_topk import index_topk
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.effects import eliminate_dead
from kernelweld.patterns.aliasing import Writes
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import CAST, aten, dtype_of, is_call, shape_of
from kernelweld.patterns.scalars import scalar

#: A lookup has no more steps than these.
_STEPS = 12
_INHERITED = ("val", "stack_trace", "nn_module_stack", "source_fn_stack", "from_node")


@dataclass(frozen=True)
class PageSlotsPass(Pass):
    """Gives ``index_topk`` the page table that its result is looked up in.

    Before: ``%2 = index_topk(%scores, %lengths); %9 = where(%2 >= 0, gather(%table, 1, %2 // 64) * 64 + %2 %
    64, -1)``
    After: ``%9 = index_topk(%scores, %lengths, %table, block=64)``

    Not handled: a selection whose positions are also used otherwise; tables that are not int32, have other
    rows than the scores, or fewer places than these have columns, as far as is known.
    """

    name = "page-slots"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        writes = Writes(gm.graph)
        selections = gm.graph.find_nodes(op="call_function", target=index_topk.overload)
        lookups = (_lookup(node) for node in selections if len(node.args) == 2)
        found = [one for one in lookups if one is not None and one.is_safe(writes)]
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

    def is_safe(self, writes: Writes) -> bool:
        """Whether the operator takes the table, and nothing writes to what it reads before the slots."""
        table, scores = (node.meta["val"] for node in (self.table, self.topk.args[0]))  # type: ignore[union-attr]
        rows_alike = same_size(table.shape[0], scores.shape[0]) and table.stride(-1) == 1
        pages, columns = table.shape[1], scores.shape[1]
        whole = isinstance(pages, int) and isinstance(columns, int) and pages * self.block >= columns
        operands = (*self.topk.all_input_nodes, self.table)
        return rows_alike and whole and writes.between(self.topk, self.result, operands) is None

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
        if _is_all(result, topk) and dtype_of(result) == torch.int32:
            return _Lookup(topk, *found, result)
    return None


def _is_all(result: fx.Node, topk: fx.Node) -> bool:
    """Whether ``topk`` is used for ``result`` alone, at any remove."""
    seen: set[fx.Node] = set()
    todo = list(topk.users)
    while todo:
        node = todo.pop()
        if node is result or node in seen:
            continue
        seen.add(node)
        if len(seen) > _STEPS or not node.users:  # the output of the graph has none either
            return False
        todo.extend(node.users)
    return True


def _chosen(topk: fx.Node) -> Iterator[fx.Node]:
    """What is chosen by whether there is a position."""
    for mask in topk.users:
        yield from (user for user in mask.users if is_call(user, aten.where.self) and user.args[0] is mask)


def _is_found(mask: object, topk: fx.Node) -> bool:
    """Whether ``mask`` says where there is a position."""
    if is_call(mask, aten.ge.Scalar):
        return mask.args == (topk, 0)
    return is_call(mask, aten.gt.Scalar) and mask.args == (topk, -1)


def _slot(slot: fx.Node, topk: fx.Node) -> tuple[fx.Node, int] | None:
    """Table and block size of ``table[row, i // block] * block + i % block``."""
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
    return table, block


def _unclamped(number: object) -> object:
    """A page's number without its conversion and the bound that keeps it from being negative."""
    if is_call(number, CAST):
        number = number.args[0]
    if is_call(number, aten.clamp_min.default) and number.args[1] == 0:
        number = number.args[0]
    return number
