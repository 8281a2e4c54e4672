"""``only-welds``: drops welds from a plan by their ids or names, to find the one that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx

from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.weld import WeldPlan
from kernelweld.passes.weld_ids import weld_ids


@dataclass(frozen=True)
class OnlyWeldsPass(Pass):
    """Keeps some welds of a plan and drops the others; changes nothing in the graph.

    Before: a plan of welds A, B, C
    After: with ``ids`` the id of B the same plan with B alone, with ``without`` the id of B the same plan of
    A and C; with neither, no weld

    Preconditions: runs between ``plan`` and ``lower``, which restores the words of a dropped weld to the
    nodes they came from. ``kernelweld bisect`` shows ids; the name of a kernel stands for all welds of that
    name. What names no weld of the plan means nothing. Welds that share an operator with a dropped one are
    not carried out either.
    """

    name = "only-welds"

    ids: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ids and self.without:
            raise ValueError("give ids or without, not both")

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        ids = weld_ids(gm.graph, plan.welds)
        kept = [i for i, weld in enumerate(plan.welds) if self._keeps(ids[weld], weld.name)]
        welds = tuple(plan.welds[i] for i in kept)
        context.left_out += [(weld.name, ids[weld]) for weld in plan.welds if weld not in welds]
        if len(kept) < len(plan.welds):
            context.plan = replace(plan, welds=welds, reports=tuple(plan.reports[i] for i in kept))
        return PassResult(modified=False, count=len(kept))

    def _keeps(self, *names: str) -> bool:
        if self.without:
            return set(names).isdisjoint(self.without)
        return not set(names).isdisjoint(self.ids)
