"""Values that several kernels read, written to memory once."""

from __future__ import annotations

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor import inductor_prims

from kernelweld.passes.launches.traits import Trait, trait_of
from kernelweld.passes.symbols import Size, SymbolNodes

_RECOMPUTED = frozenset({Trait.ELEMENTWISE, Trait.INDEXED})
_VIEWS = frozenset({Trait.SAME, Trait.PART})


def write_shared_inputs(graph: fx.Graph) -> None:
    """Gives each value that several kernels read, and that Inductor would compute again for each of them, a
    place in memory.

    ``force_stride_order`` is Inductor's own primitive for this: it writes what is still an expression, and
    does nothing to what is in memory already.
    """
    symbols = SymbolNodes(graph)
    for node in list(graph.nodes):
        kernels = [u for u in node.users if u.target is triton_kernel_wrapper_functional]
        if len(kernels) > 1 and _is_recomputed(node) and node.meta["val"].is_contiguous():
            _write(node, kernels, symbols)


def _write(node: fx.Node, kernels: list[fx.Node], symbols: SymbolNodes) -> None:
    with node.graph.inserting_before(node.next):
        strides = [_size(stride, symbols) for stride in node.meta["val"].stride()]
        written = node.graph.call_function(inductor_prims.force_stride_order, (node, strides))
    written.meta = dict(node.meta)
    for kernel in kernels:
        kernel.replace_input_with(node, written)


def _is_recomputed(node: fx.Node) -> bool:
    """Whether Inductor keeps ``node`` as an expression rather than in memory."""
    while node.op == "call_function" and trait_of(node) in _VIEWS:
        node = node.all_input_nodes[0]
    return node.op == "call_function" and trait_of(node) in _RECOMPUTED


def _size(size: int | torch.SymInt, symbols: SymbolNodes) -> Size:
    return symbols.node(size.node.expr) if isinstance(size, torch.SymInt) else size
