"""``verify-welds``: runs every planned kernel beside the nodes it replaces, and drops the welds that
break the numerics contract.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from torch import fx

from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.tuning import Tuning
from kernelweld.errors import KernelweldWarning, NotInterpreting, VerificationFailed
from kernelweld.ir.origin import sources_of
from kernelweld.ir.report import NearMiss
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.verification.check import WeldCheck, check_weld
from kernelweld.passes.weld import Weld, WeldPlan


@dataclass(frozen=True)
class VerifyWeldsPass(Pass):
    """Checks a plan before it is carried out; changes nothing in the graph.

    Before: a plan of welds ``rms_norm``, ``rope``, ``gate_mul``
    After: the same plan without ``rope``, if its kernel was further from a float64 run than its original
    nodes are plus one unit in the last place

    Preconditions: runs between ``plan`` and ``lower``; needs a GPU for CUDA graphs, or Triton's
    interpreter for CPU graphs. ``samples`` draws of inputs are tried for each distinct weld, from
    ``seed`` on. With ``strict`` a broken contract raises.
    """

    name = "verify-welds"

    samples: int = 1
    seed: int = 0
    strict: bool = False

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        plan = context.plan or WeldPlan(())
        if not interpreting() and any(weld.steps[0].meta["val"].device.type == "cpu" for weld in plan.welds):
            raise NotInterpreting("verify-welds on a CPU")
        kept: list[int] = []
        for index, weld in enumerate(plan.welds):
            broken = self._broken(weld, context.tuning)
            if broken is None:
                kept.append(index)
                continue
            self._complain(weld, broken)
            context.near_misses.append(_miss(weld, broken))
        welds = tuple(plan.welds[i] for i in kept)
        context.plan = replace(plan, welds=welds, reports=tuple(plan.reports[i] for i in kept))
        return PassResult(modified=False, count=len(kept))

    def _broken(self, weld: Weld, tuning: Tuning | None) -> WeldCheck | None:
        checks = (check_weld(weld, self.seed + i, tuning) for i in range(self.samples))
        return next((check for check in checks if not check.holds), None)

    def _complain(self, weld: Weld, check: WeldCheck) -> None:
        error = _error(weld, check)
        if self.strict:
            raise error
        warnings.warn(KernelweldWarning.of(error), stacklevel=2)


def _error(weld: Weld, check: WeldCheck) -> VerificationFailed:
    worst = max((e for e in check.errors if not e.holds), key=lambda e: e.weld - e.allowed)
    sources = sources_of(weld.steps[0])
    return VerificationFailed(weld.name, worst.weld, worst.allowed, source=sources[0] if sources else "")


def _miss(weld: Weld, check: WeldCheck) -> NearMiss:
    error = _error(weld, check)
    node, line = weld.steps[0].name, error.source or None
    return NearMiss(node, weld.name, line, error.what, "numerics", node, line, error.remedy)
