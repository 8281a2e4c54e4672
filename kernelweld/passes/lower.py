"""``lower``: each weld becomes one kernel call; what was not welded is restored to exactly the nodes
it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.codegen.tuning import Tuning
from kernelweld.errors import UnknownName
from kernelweld.ir import CacheWrite, step_of, word_of
from kernelweld.ir.word import Word
from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.effects import eliminate_dead
from kernelweld.passes.launcher import Launcher
from kernelweld.passes.restore import inline_reference, restore_all, restore_operators
from kernelweld.passes.shared_inputs import write_shared_inputs
from kernelweld.passes.weld import Weld, WeldPlan
from kernelweld.passes.whole import unwelded, whole_welds

TARGETS = ("auto", "triton", "reference")


@dataclass(frozen=True)
class LowerPass(Pass):
    """Carries out the plan.

    Before: ``%2 = residual_add(%0, %1); %3 = rms_norm(%2, %w)``, planned as one weld
    After: ``%4 = triton_kernel_wrapper_functional(...); %2 = %4["residual_add_out_ptr"]; %3 =
    %4["rms_norm_out_ptr"]``

    ``target="triton"`` inserts generated kernels. ``target="reference"`` inlines the references of the
    welded words instead, for devices that Triton does not compile for: one graph of plain torch, which
    the compiler around us fuses as it can. ``"auto"`` chooses by the device of each weld.
    """

    name = "lower"

    target: str = "auto"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        if self.target not in TARGETS:
            raise UnknownName("lower target", self.target, TARGETS)
        plan = context.plan or WeldPlan(())
        welds = whole_welds(gm.graph, plan.welds)  # a weld may have been dropped since they were planned
        # first: kernels are generated for the strides that operators leave
        restore_operators(gm.graph, unwelded(gm.graph, welds))
        kernels = [weld for weld in welds if self._is_triton(weld)]
        _launch(gm, kernels, context.tuning)
        _inline(gm, [weld for weld in welds if weld not in kernels])
        restored = restore_all(gm)
        write_shared_inputs(gm.graph)
        eliminate_dead(gm.graph)
        gm.graph.lint()
        return PassResult(modified=bool(welds) or restored > 0, count=len(welds))

    def _is_triton(self, weld: Weld) -> bool:
        device: str = weld.steps[0].meta["val"].device.type
        return self.target == "triton" or (self.target == "auto" and device == "cuda")


def _launch(gm: fx.GraphModule, welds: Sequence[Weld], tuning: Tuning | None) -> None:
    launcher = Launcher(gm.graph, tuning)
    for weld in welds:
        launcher.insert(weld)
    launcher.finish()


def _inline(gm: fx.GraphModule, welds: Sequence[Weld]) -> None:
    for weld in welds:
        for node in weld.steps:
            word = step_of(node)
            if isinstance(word, CacheWrite):  # its own nodes write in place, which the reference does not
                continue
            if isinstance(word, Word) and word_of(node) is not None:
                inline_reference(gm.graph, node, word)
