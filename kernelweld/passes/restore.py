"""Turning words back into plain torch: into the nodes they came from, or into their references."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from kernelweld.ir import Word, word_of
from kernelweld.ir.expansion import Expanded, expanded, fold
from kernelweld.ir.origin import ORIGIN, restore_origin
from kernelweld.passes.effects import sort
from kernelweld.passes.values import refresh


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The operands of a word node that are present."""
    return [arg for arg in node.args if isinstance(arg, fx.Node)]


def restore(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces a word by exactly the nodes it came from."""
    _replace(graph, node, restore_origin(graph, node, tensor_operands(node)))


def inline_reference(graph: fx.Graph, node: fx.Node, word: Word) -> None:
    """Replaces a word by its reference, traced on the node's own fake operands."""
    present = [arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in node.args]
    traced = trace(word.reference, present)
    placeholders = traced.find_nodes(op="placeholder")
    env = dict(zip(placeholders, tensor_operands(node), strict=True))
    with graph.inserting_before(node):
        outputs = graph.graph_copy(traced, env)
    results = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    for result in results:
        if isinstance(result, fx.Node) and "stack_trace" in node.meta:
            result.meta["stack_trace"] = node.meta["stack_trace"]
    _replace(graph, node, results)


def trace(function: Callable[..., object], values: Sequence[torch.Tensor | None]) -> fx.Graph:
    """``function`` of fake ``values`` in plain torch; its placeholders are the values that are not None."""
    fakes = [value for value in values if value is not None]

    def given(*tensors: torch.Tensor) -> object:
        rest = iter(tensors)
        return function(*(None if value is None else next(rest) for value in values))

    with fakes[0].fake_mode:  # type: ignore[attr-defined]
        graph: fx.Graph = make_fx(given, decomposition_table=select_decomp_table())(*fakes).graph
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
    """Restores every word of the graph, operators whole; returns how many there were."""
    words = [node for node in gm.graph.nodes if word_of(node) is not None and ORIGIN in node.meta]
    restore_operators(gm.graph, [one for one in expanded(gm.graph.nodes) if one.is_whole])
    left = set(gm.graph.nodes)
    for node in words:
        if node in left:
            restore(gm.graph, node)
    return len(words)


def restore_operators(graph: fx.Graph, found: Sequence[Expanded]) -> None:
    """Puts operators back in place of their words."""
    for one in found:
        refresh(fold(one))  # an operator may leave strides that its words do not
    if found:
        sort(graph)
