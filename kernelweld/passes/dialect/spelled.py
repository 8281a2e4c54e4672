"""Functional operators as the plain operations that an engine makes of them behind all passes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from torch import fx

from kernelweld.ir import word_of
from kernelweld.ir.origin import ORIGIN
from kernelweld.passes.dialect.dialect_pass import Work
from kernelweld.passes.dialect.ir_operators import read_functional
from kernelweld.passes.restore import restore
from kernelweld.patterns.reading import Miss


def has_functional(nodes: Iterable[fx.Node]) -> bool:
    """Whether one of ``nodes`` calls a functional operator."""
    return any(read_functional(node) is not None for node in nodes)


def spell_out(graph: fx.Graph) -> None:
    """Replaces functional operators in place by plain operations; one that no words say stays."""
    work, before = Work(graph), set(graph.nodes)
    for call in filter(None, map(read_functional, list(graph.nodes))):
        with suppress(Miss):
            work.replace(call)
    for node in [node for node in graph.nodes if node not in before]:
        if ORIGIN in node.meta and word_of(node) is not None:
            restore(graph, node)
