"""Sibling linears on one input become one GEMM.

Before:                              After, once equal expressions are shared:
    q = x @ Wq.T                         y = x @ W.T          # W = rows of Wq, Wk, Wv in one storage
    k = x @ Wk.T                         q = y[..., 0:nq]
    v = x @ Wv.T                         k = y[..., nq:nq + nk]
                                         v = y[..., nq + nk:]

This works on the modules before tracing, not on the graph: a graph does not know which parameters its inputs
are, so nothing in it could notice that one was replaced. `prepare(model, args, kwargs)` finds and merges the
siblings, `unmerge(model)` undoes it; a compiled model calls a `MergeOnFirstCall` before each call.

Not handled: parameters of modules that are not exactly `nn.Linear` (a router that calls `F.linear` itself).
Weights that need a gradient, while gradients are on: their separate GEMMs are traced.
"""

from __future__ import annotations

from kernelweld.passes.merge_gemms.first_call import MergeOnFirstCall
from kernelweld.passes.merge_gemms.merge import merge_gemms, packed_groups, prepare, unmerge
from kernelweld.passes.merge_gemms.report import MergedGroup, MergeReport, SkippedGroup
from kernelweld.passes.merge_gemms.siblings import Siblings, find_siblings

__all__ = [
    "MergeOnFirstCall",
    "MergeReport",
    "MergedGroup",
    "Siblings",
    "SkippedGroup",
    "find_siblings",
    "merge_gemms",
    "packed_groups",
    "prepare",
    "unmerge",
]
