"""The pass: one walk that rewrites each node and merges it with an equal one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from kernelweld.passes.base import Pass, PassContext, PassResult
from kernelweld.passes.canonicalize.cse import Seen
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.passes.canonicalize.table import REWRITES
from kernelweld.passes.effects import eliminate_dead


@dataclass(frozen=True)
class CanonicalizePass(Pass):
    """Removes spelling variety.

    Before: ``split_with_sizes(x, [16, 8], -1)[1]``, ``reshape(reshape(x, …), [14, -1])``, ``mul(cos, 1.0)``,
    ``pow(x, 2)``
    After: ``slice(x, 3, 16, 24)``, ``reshape(x, [14, 64])``, ``cos``, ``mul(x, x)``; equal pure nodes are one
    node.

    Every result keeps its bits (but for the sign of a zero in an outer product), dtype, strides, and what it
    shares storage with. Not touched: random operators, operators that write, the order of writes and of reads
    of what is written, sizes that are symbols where a rewrite needs numbers.
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, gm: fx.GraphModule, context: PassContext) -> PassResult:
        storage, seen, count = Storage(gm.graph), Seen(), 0
        for node in list(gm.graph.nodes):
            if node.op != "call_function":
                continue
            rewritten, steps = _rewrite(node, storage)
            count += steps
            first = seen.first_equal(rewritten, storage)
            if first is not rewritten:
                count += 1
                _replace(rewritten, first, storage)
        dead = eliminate_dead(gm.graph)
        return PassResult(bool(count or dead), count)


def _rewrite(node: fx.Node, storage: Storage) -> tuple[fx.Node, int]:
    """The canonical form of ``node``, and how many rewrites led to it. A new node is rewritten in turn."""
    steps = 0
    pending = True
    while pending:
        pending = False
        for rewrite in REWRITES.get(node.target, ()):
            replacement = rewrite(node, storage)
            if replacement is None:
                continue
            steps += 1
            if replacement is not node:
                _replace(node, replacement, storage)
                node, pending = replacement, True
                break
    return node, steps


def _replace(node: fx.Node, replacement: fx.Node, storage: Storage) -> None:
    storage.inherit(replacement, node)
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)
