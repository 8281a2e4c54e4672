"""Turning words back into plain torch: into the nodes they came from, or into their references."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import Word, word_of
from kernelweld.ir.origin import ORIGIN, restore_origin


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The operands of a word node that are present."""
    return [arg for arg in node.args if isinstance(arg, fx.Node)]


def restore(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces a word by exactly the nodes it came from."""
    _replace(graph, node, restore_origin(graph, node, tensor_operands(node)))


def inline_reference(graph: fx.Graph, node: fx.Node, word: Word) -> None:
    """Replaces a word by its reference, traced on the node's own fake operands."""
    traced = _trace(word, node)
    placeholders = traced.find_nodes(op="placeholder")
    env = dict(zip(placeholders, tensor_operands(node), strict=True))
    with graph.inserting_before(node):
        outputs = graph.graph_copy(traced, env)
    results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    for result in results:
        if isinstance(result, fx.Node) and "stack_trace" in node.meta:
            result.meta["stack_trace"] = node.meta["stack_trace"]
    _replace(graph, node, results)


def _trace(word: Word, node: fx.Node) -> fx.Graph:
    present = [arg is not None for arg in node.args]
    fakes = [arg.meta["val"] for arg in tensor_operands(node)]

    def reference(*tensors: torch.Tensor) -> object:
        given = iter(tensors)
        return word.reference(*(next(given) if here else None for here in present))

    with fakes[0].fake_mode:
        graph: fx.Graph = make_fx(reference, decomposition_table=select_decomp_table())(*fakes).graph
    return graph


def _replace(graph: fx.Graph, node: fx.Node, results: Sequence[fx.Node]) -> None:
    if len(results) == 1:
        node.replace_all_uses_with(results[0])
    else:
        for getitem in list(node.users):
            getitem.replace_all_uses_with(results[int(getitem.args[1])])  # type: ignore[arg-type]
            graph.erase_node(getitem)
    graph.erase_node(node)


def restore_all(gm: fx.GraphModule) -> int:
    """Restores every word of the graph; returns how many."""
    count = 0
    for node in list(gm.graph.nodes):
        if word_of(node) is not None and ORIGIN in node.meta:
            restore(gm.graph, node)
            count += 1
    return count
