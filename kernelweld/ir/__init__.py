"""Words: the semantic operations that kernelweld recognises, plans and generates code for.

A word is a frozen dataclass of static parameters together with a ``torch.ops.kernelweld.<kind>``
operator, so a graph that holds words still runs on any device. ``WORDS`` are kernelweld's own,
:func:`words` has those of other distributions too; the word of a node is found with :func:`word_of`.
"""

from __future__ import annotations

from kernelweld.ir.cache_write import CacheWrite
from kernelweld.ir.e2m1 import E2M1
from kernelweld.ir.e4m3 import E4M3
from kernelweld.ir.e8m0 import E8M0
from kernelweld.ir.expert_topk import ExpertTopK
from kernelweld.ir.gate_mul import GateMul
from kernelweld.ir.l2_norm import L2Norm
from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.ir.matvec import MatVec
from kernelweld.ir.pointwise import Pointwise
from kernelweld.ir.quant import Quant
from kernelweld.ir.quant_scale import QuantScale
from kernelweld.ir.residual_add import ResidualAdd
from kernelweld.ir.rms_norm import RMSNorm
from kernelweld.ir.rope import Rope
from kernelweld.ir.rope_table import RopeTable
from kernelweld.ir.router_scores import RouterScores
from kernelweld.ir.row_reduce import RowReduce
from kernelweld.ir.vocabulary import WORDS, insert_word, op_of, step_of, word_of, words
from kernelweld.ir.word import Word

__all__ = [
    "E2M1",
    "E4M3",
    "E8M0",
    "WORDS",
    "CacheWrite",
    "ExpertTopK",
    "GateMul",
    "L2Norm",
    "LayerNorm",
    "MatVec",
    "Pointwise",
    "Quant",
    "QuantScale",
    "RMSNorm",
    "ResidualAdd",
    "Rope",
    "RopeTable",
    "RouterScores",
    "RowReduce",
    "Word",
    "insert_word",
    "op_of",
    "step_of",
    "word_of",
    "words",
]
