"""What a raised word came from: the exact nodes, kept so that a word that is not welded is restored to
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import fx

#: The key in ``node.meta`` under which a raised word keeps its origin.
ORIGIN = "kernelweld_origin"

#: The key under which a raised word keeps a :class:`Stop`, if there is one.
STOPPED = "kernelweld_stopped"

#: The key under which a kernel call keeps the names of the steps that it stands for.
WELDED = "kernelweld_welded"

#: How the frames begin that stand in for a user's module, or between it and an operator, in a stack trace.
_OWN = tuple(f'File "{Path(__file__).parents[1] / room}' for room in ("passes", "kernels"))


@dataclass(frozen=True)
class Stop:
    """Why a word does not hold the next node as well (its weight is float64, say), and that node's line."""

    reason: str
    source: str | None


@dataclass(frozen=True)
class Origin:
    """The nodes that a word replaced, as a small graph whose placeholders are the word's operands
    (absent operands skipped).
    """

    graph: fx.Graph
    inputs: int
    sources: tuple[str, ...]
    size: int

    def __deepcopy__(self, memo: object) -> Origin:
        return self  # immutable by convention; a copied graph may share it


def record_origin(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    sizes: Sequence[tuple[fx.Node, fx.Node, int]] = (),
) -> Origin:
    """Copies ``nodes`` (in topological order) into an origin with ``inputs`` as its placeholders.

    ``sizes`` names, for each symbolic size that ``nodes`` use, an input and the dimension that has it: the
    origin reads it there, so that it depends on nothing but its inputs.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for i, value in enumerate(inputs):
        env[value] = graph.placeholder(f"operand_{i}")
        env[value].meta = dict(value.meta)
    for size, value, dim in sizes:
        env[size] = graph.call_function(torch.ops.aten.sym_size.int, (env[value], dim))
        env[size].meta = dict(size.meta)
    for node in nodes:
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[o] for o in outputs))
    return Origin(graph, len(inputs), source_lines(nodes), len(nodes))


def restore_origin(graph: fx.Graph, word_node: fx.Node, operands: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """Copies the origin of ``word_node`` back into ``graph`` before it, on the current operands;
    returns the output values.
    """
    with graph.inserting_before(word_node):
        return graft(graph, word_node.meta[ORIGIN], operands)


def graft(graph: fx.Graph, origin: Origin, operands: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """Copies ``origin`` to the insertion point of ``graph``, on ``operands``; returns the output values."""
    placeholders = [n for n in origin.graph.nodes if n.op == "placeholder"]
    env: dict[fx.Node, fx.Node] = dict(zip(placeholders, operands, strict=True))
    outputs = graph.graph_copy(origin.graph, env)
    return cast("tuple[fx.Node, ...]", outputs)


def output_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """What the nodes of an origin give."""
    (output,) = graph.find_nodes(op="output")
    return cast("tuple[fx.Node, ...]", output.args[0])


def source_lines(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    """The distinct model source lines of ``nodes`` as ``file:line``, innermost frame, in order of
    first appearance.
    """
    lines = dict.fromkeys(line for node in nodes if (line := source_line(node.meta)) is not None)
    return tuple(lines)


def sources_of(node: fx.Node) -> tuple[str, ...]:
    """The model's source lines behind a node: those of its origin for a raised word, its own otherwise."""
    origin = node.meta.get(ORIGIN)
    return origin.sources if isinstance(origin, Origin) else source_lines([node])


def source_line(meta: Mapping[str, object]) -> str | None:
    """``file:line`` of the innermost frame of a node's stack trace that is not kernelweld's own, or None."""
    lines = stack_lines(meta)
    return lines[-1] if lines else None


def stack_lines(meta: Mapping[str, object]) -> tuple[str, ...]:
    """``file:line`` of each frame of a node's stack trace that is not kernelweld's own, outermost first."""
    trace = meta.get("stack_trace")
    if not isinstance(trace, str):
        return ()
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    return tuple(_line(frame) for frame in frames if not frame.startswith(_OWN))


def _line(frame: str) -> str:
    path, _, rest = frame.removeprefix('File "').partition('", line ')
    return f"{path}:{rest.split(',')[0]}"


def stacks_of(node: fx.Node) -> tuple[tuple[str, ...], ...]:
    """The stacks behind a node: those of its origin's nodes for a raised word, its own otherwise."""
    origin = node.meta.get(ORIGIN)
    nodes = origin.graph.nodes if isinstance(origin, Origin) else (node,)
    stacks = (stack_lines(one.meta) for one in nodes if one.op != "placeholder")
    return tuple(dict.fromkeys(stack for stack in stacks if stack))
