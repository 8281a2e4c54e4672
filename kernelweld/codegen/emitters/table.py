"""The one table from steps and words to their emitters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from kernelweld.codegen.emitters.contract import Emitter, no_alignment
from kernelweld.codegen.emitters.e2m1 import E2M1_PAIRS
from kernelweld.codegen.emitters.elementwise import ELEMENTWISE
from kernelweld.codegen.emitters.gate import GATE_MUL, RESIDUAL_ADD
from kernelweld.codegen.emitters.matvec import MATVEC
from kernelweld.codegen.emitters.norms import L2_NORM, LAYER_NORM, RMS_NORM
from kernelweld.codegen.emitters.quant import E4M3_NUMBER, E8M0_BYTE, QUANT, QUANT_SCALE
from kernelweld.codegen.emitters.reduce import REDUCE
from kernelweld.codegen.emitters.renaming import CONCAT, SLICE
from kernelweld.codegen.emitters.rope import ROPE
from kernelweld.codegen.emitters.rope_table import ROPE_TABLE
from kernelweld.codegen.memory import emit_load, emit_store
from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.task import Apply, Concat, Elementwise, Load, Reduce, Slice, Store, TaskStep
from kernelweld.ir.e2m1 import E2M1
from kernelweld.ir.e4m3 import E4M3
from kernelweld.ir.e8m0 import E8M0
from kernelweld.ir.gate_mul import GateMul
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.matvec import MatVec
from kernelweld.ir.quant import Quant
from kernelweld.ir.quant_scale import QuantScale
from kernelweld.ir.residual_add import ResidualAdd
from kernelweld.ir.rms_norm import RMSNorm
from kernelweld.ir.rope import Rope
from kernelweld.ir.rope_table import RopeTable
from kernelweld.ir.word import Word

#: Emitters of words; a new word is one line here.
WORD_EMITTERS: Mapping[type[Word], Emitter[Apply]] = MappingProxyType(
    {
        RMSNorm: RMS_NORM,
        LayerNorm: LAYER_NORM,
        L2Norm: L2_NORM,
        ResidualAdd: RESIDUAL_ADD,
        Rope: ROPE,
        RopeTable: ROPE_TABLE,
        GateMul: GATE_MUL,
        QuantScale: QUANT_SCALE,
        Quant: QUANT,
        E8M0: E8M0_BYTE,
        E4M3: E4M3_NUMBER,
        E2M1: E2M1_PAIRS,
        MatVec: MATVEC,
    }
)

#: Emitters of the steps that are not words. ``Any``: each takes its own step class.
STEP_EMITTERS: Mapping[type[TaskStep], Emitter[Any]] = MappingProxyType(
    {
        Load: Emitter(no_alignment, emit_load),
        Store: Emitter(no_alignment, emit_store),
        Elementwise: ELEMENTWISE,
        Reduce: REDUCE,
        Slice: SLICE,
        Concat: CONCAT,
    }
)


def emitter_of(step: TaskStep) -> Emitter[TaskStep]:
    """The emitter of a step, by its class or by the class of its word."""
    found = WORD_EMITTERS.get(type(step.word)) if isinstance(step, Apply) else STEP_EMITTERS.get(type(step))
    if found is None:
        name = step.word.kind if isinstance(step, Apply) else type(step).__name__
        raise Refused(f"`{name}` has no emitter")
    return cast("Emitter[TaskStep]", found)
