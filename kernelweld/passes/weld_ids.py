"""Names for single welds that another process gives as well: names of kernels say what a weld computes, and
many compute the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from torch import fx

from kernelweld.ir.printer import Printer
from kernelweld.passes.weld import Weld

_DIGITS = 8


def weld_ids(graph: fx.Graph, welds: Iterable[Weld]) -> Mapping[Weld, str]:
    """The id of each weld, in the order of the graph, for example ``5d1f0c2a.3``.

    It is a digest of the weld's own steps with their dtypes and shapes, and how many welds of the same digest
    stand before it. Nothing outside of the weld changes it but a weld that is equal; equal graphs share ids.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    seen: Counter[str] = Counter()
    ids: dict[Weld, str] = {}
    for weld in sorted(welds, key=lambda weld: min(place[step] for step in weld.steps)):
        digest = hashlib.sha256("\n".join(_lines(weld)).encode()).hexdigest()[:_DIGITS]
        ids[weld] = f"{digest}.{seen[digest]}"
        seen[digest] += 1
    return ids


def _lines(weld: Weld) -> Iterator[str]:
    """The operands and steps of a weld, with names that count from its own first operand."""
    steps = weld.steps
    values = dict.fromkeys(value for step in steps for value in (*step.all_input_nodes, step))
    printer = Printer((), {value: f"%{i}" for i, value in enumerate(values)})
    yield from (printer.typed(value) for value in values if value not in steps)
    for chain in weld.chains:
        yield "task"
        yield from map(printer.line, chain.steps)
