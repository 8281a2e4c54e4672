"""Which nodes a match covers, and the rule that no value inside it is used outside."""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt, fx

from kernelweld.ir.word import Word
from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import shape_of
from kernelweld.patterns.pattern import Match, NoMatch, in_graph_order
from kernelweld.patterns.reading import NEARLY, Miss
from kernelweld.patterns.scalars import scalar


class Cover:
    """The nodes of a match in the making.

    ``take`` adds values that must not be used outside. ``share`` adds upcasts and views of operands: they are
    recomputed by the word, so others may go on using them.
    """

    def __init__(self) -> None:
        self._inner: dict[fx.Node, None] = {}
        self._shared: dict[fx.Node, None] = {}

    def take(self, *nodes: fx.Node) -> None:
        """Covers values that are the word's own."""
        self._inner.update(dict.fromkeys(nodes))

    def share(self, *nodes: fx.Node) -> None:
        """Covers upcasts and views of operands."""
        self._shared.update(dict.fromkeys(nodes))

    @property
    def inner(self) -> tuple[fx.Node, ...]:
        """The values that are the word's own, so far."""
        return tuple(self._inner)

    @property
    def shared(self) -> tuple[fx.Node, ...]:
        """The upcasts and views of operands, so far."""
        return tuple(self._shared)

    def merge(self, other: Cover) -> None:
        """Covers what ``other`` covers."""
        self._inner.update(other._inner)
        self._shared.update(other._shared)

    def check(self, *outputs: fx.Node) -> None:
        """Checks that no value inside the word, other than ``outputs``, is used outside it.

        Raises:
            Miss: one is.
        """
        for node in self._inner:
            outside = next((user for user in node.users if not self._holds(user)), None)
            if outside is not None and node not in outputs:
                raise Miss(
                    "the inner value %{} is also used by %{}",
                    node,
                    node,
                    outside,
                    stage=NEARLY,
                    remedy="Compute that value a second time for its other use.",
                )

    def match(
        self,
        word: Word,
        operands: tuple[fx.Node | None, ...],
        *outputs: fx.Node,
        stopped: NoMatch | None = None,
    ) -> Match:
        """The finished match: what lies between ``operands`` and ``outputs``.

        Raises:
            Miss: an inner value is used outside, or the outputs depend on something that is no operand.
        """
        self.check(*outputs)
        reached: dict[fx.Node, None] = {}
        sizes: dict[fx.Node, tuple[fx.Node, int]] = {}
        pending = list(outputs)
        while pending:
            node = pending.pop()
            if node in operands or node in reached or node in sizes:
                continue
            if (found := dimension_of(node, operands)) is not None:
                sizes[node] = found
                continue
            if not self._holds(node) and scalar(node) is None and not _is_size_arithmetic(node):
                raise Miss("it also depends on %{}", node, node, stage=NEARLY)
            reached[node] = None
            pending += node.all_input_nodes
        at = tuple((size, *where) for size, where in sizes.items())
        return Match(word, operands, outputs, in_graph_order(tuple(reached)), stopped, at)

    def _holds(self, node: fx.Node) -> bool:
        return node in self._inner or node in self._shared


def dimension_of(node: fx.Node, operands: Sequence[fx.Node | None]) -> tuple[fx.Node, int] | None:
    """The operand and its dimension that have the symbolic size that ``node`` stands for, if any."""
    size = node.meta.get("val")
    if not isinstance(size, SymInt):
        return None
    for operand in (operand for operand in operands if operand is not None):
        for dim, have in enumerate(shape_of(operand)):
            if same_size(have, size):
                return operand, dim
    return None


def _is_size_arithmetic(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), SymInt)
