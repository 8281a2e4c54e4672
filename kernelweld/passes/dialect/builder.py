"""The nodes that take the place of a call: words, and views and casts between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, cast

import torch
from torch import SymInt, fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from kernelweld.ir import Word, insert_word
from kernelweld.ir.expansion import EXPANSION, Expansion, Member, Path
from kernelweld.ir.origin import ORIGIN, Origin, output_of, source_lines
from kernelweld.passes.symbols import SymbolNodes, of_some
from kernelweld.passes.values import fake, fresh
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import CAST, CLONE, RESHAPE, SLICE, Size, aten, dtype_of, shape_of
from kernelweld.patterns.reading import Miss

#: Where a new node stands in the user's source.
_PLACE = ("stack_trace", "nn_module_stack")

_NONE: Mapping[str, Argument] = MappingProxyType({})
_CONTIGUOUS: Mapping[str, Argument] = MappingProxyType({"memory_format": torch.contiguous_format})


class Origins(Protocol):
    """What words take the place of: an operator's call, or several nodes that stand or fall together."""

    @property
    def name(self) -> str:
        """What reasons call it."""

    @property
    def node(self) -> fx.Node:
        """The node that the words stand before."""

    def operands(self) -> tuple[fx.Node, ...]:
        """What it reads."""

    def origin(self) -> Origin:
        """Its nodes, from the operands to what others read."""


#: The plain nodes that a word on given operands stands for, as a graph.
Spelling = Callable[[Word, Sequence[torch.Tensor | None]], fx.Graph]


@dataclass
class Builder:
    """Makes nodes just before a call. Those of the call itself are its expansion; shared ones, which
    several calls read, belong to none.
    """

    call: Origins
    symbols: SymbolNodes
    spelling: Spelling
    shared: dict[object, tuple[fx.Node, ...]] = field(default_factory=dict)
    nodes: list[fx.Node] = field(default_factory=list)

    def word(self, word: Word, *operands: fx.Node | None) -> fx.Node:
        """A word of the call."""
        node = self._word(word, operands)
        self.nodes.append(node)
        return node

    def shared_words(self, word: Word, *operands: fx.Node) -> tuple[fx.Node, ...]:
        """The results of a word with several, one for all calls with these operands."""
        key = (word, operands)
        if key not in self.shared:
            node = self._word(word, operands)
            parts = [self._insert(operator.getitem, (node, i)) for i in range(word.results)]
            self.shared[key] = (node, *parts)
        return self.shared[key][1:]

    def reshaped(self, x: fx.Node, sizes: Sequence[Size]) -> fx.Node:
        """``x`` in another shape; ``x`` itself if it has that shape."""
        if same_shape(shape_of(x), sizes):
            return x
        return self._own(RESHAPE[0], (x, self._numbers(sizes)))

    def part(self, x: fx.Node, start: int, end: int) -> fx.Node:
        """``x[..., start:end]``."""
        return self._own(SLICE, (x, len(shape_of(x)) - 1, start, end))

    def bits(self, x: fx.Node, dtype: torch.dtype | None) -> fx.Node:
        """``x`` seen as ``dtype``."""
        return x if dtype_of(x) == dtype else self._own(aten.view.dtype, (x, dtype))

    def viewed(self, view: fx.Node, x: fx.Node) -> fx.Node:
        """What ``view`` shows of its source, of ``x``."""
        return self._own(cast(OpOverload, view.target), (x, *view.args[1:]))

    def column_major(self, x: fx.Node) -> fx.Node:
        """``x`` of two dimensions with its columns one after the other in memory."""
        copy = self._own(CLONE, (self._own(aten.permute.default, (x, [1, 0])),), _CONTIGUOUS)
        return self._own(aten.permute.default, (copy, [1, 0]))

    def strided(self, x: fx.Node, strides: Sequence[Size]) -> fx.Node:
        """``x`` copied into memory with gaps, of these strides."""
        value = x.meta["val"]
        how = {"dtype": value.dtype, "device": value.device}
        try:
            memory = (self._numbers(shape_of(x)), self._numbers(strides))
        except ValueError as error:
            raise Miss("the strides of %{} are no sizes of the graph: {}", x, x, str(error)) from error
        return self._own(aten.copy.default, (self._own(aten.empty_strided.default, memory, how), x))

    def unsqueezed(self, x: fx.Node, dim: int) -> fx.Node:
        """``x`` with a dimension of one."""
        return self._own(aten.unsqueeze.default, (x, dim))

    def turned(self, x: fx.Node, order: Sequence[int]) -> fx.Node:
        """``x`` with its dimensions in another order, copied."""
        turned = self._own(aten.permute.default, (x, list(order)))
        return self._own(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})

    def cast(self, x: fx.Node, dtype: torch.dtype) -> fx.Node:
        """``x`` in ``dtype``."""
        return x if dtype_of(x) == dtype else self._own(CAST, (x, dtype))

    def finish(self, replacements: Sequence[fx.Node], *, is_kernel: bool = True) -> Expansion:
        """The expansion of the call, whose read results are the values of ``replacements``; ``is_kernel`` as
        in :class:`Expansion`.

        Raises:
            Miss: an operand could not be found again, were the call to be put back.
        """
        words = frozenset(i for i, node in enumerate(self.nodes) if ORIGIN in node.meta)
        paths = tuple(self._path(operand, words) for operand in self.call.operands())
        results = tuple(self.nodes.index(node) for node in replacements)
        expansion = Expansion(self.call.name, self.call.origin(), paths, results, words, is_kernel)
        for number, node in enumerate(self.nodes):
            node.meta[EXPANSION] = Member(expansion, number)
        return expansion

    def discard(self) -> None:
        """Removes the nodes again, and those shared ones that no other call reads."""
        for node in reversed(self.nodes):
            node.graph.erase_node(node)
        for key, (word, *parts) in list(self.shared.items()):
            if not any(part.users for part in parts):
                for node in (*parts, word):
                    node.graph.erase_node(node)
                del self.shared[key]

    def _path(self, operand: fx.Node, words: frozenset[int]) -> Path:
        made = {*self.nodes, *(node for nodes in self.shared.values() for node in nodes)}
        for number in sorted(words):
            found = _way(self.nodes[number], operand, made)
            if found is not None:
                return (number, *found)
        if operand.op == "placeholder":
            return str(operand.target)
        raise Miss("%{} takes %{}, which no word reads", operand, self.call.node, operand)

    def _word(self, word: Word, operands: Sequence[fx.Node | None]) -> fx.Node:
        with self.call.node.graph.inserting_before(self.call.node):
            node = insert_word(self.call.node.graph, word, operands)
        values = [None if o is None else o.meta["val"] for o in operands]
        graph, sources = self.spelling(word, values), source_lines([self.call.node])
        self._place(node)
        results = fresh([result.meta["val"] for result in output_of(graph)])
        node.meta["val"] = results[0] if word.results == 1 else results
        node.meta[ORIGIN] = Origin(graph, sum(v is not None for v in values), sources, 1)
        return node

    def _numbers(self, sizes: Sequence[Size]) -> list[Argument]:
        with self.call.node.graph.inserting_before(self.call.node):
            return [self.symbols.node(of_some(s.node.expr)) if isinstance(s, SymInt) else s for s in sizes]

    def _own(
        self, target: OpOverload, args: tuple[Argument, ...], kwargs: Mapping[str, Argument] = _NONE
    ) -> fx.Node:
        node = self._insert(target, args, kwargs)
        self.nodes.append(node)
        return node

    def _insert(
        self,
        target: Callable[..., object],
        args: tuple[Argument, ...],
        kwargs: Mapping[str, Argument] = _NONE,
    ) -> fx.Node:
        with self.call.node.graph.inserting_before(self.call.node):
            node = self.call.node.graph.call_function(target, args, dict(kwargs))
        self._place(node)
        node.meta["val"] = fake(node, self.call.node.meta.get("val"))
        return node

    def _place(self, node: fx.Node) -> None:
        node.meta.update({key: self.call.node.meta[key] for key in _PLACE if key in self.call.node.meta})


def _way(node: fx.Node, operand: fx.Node, made: set[fx.Node]) -> tuple[int, ...] | None:
    """The places in arguments that lead from ``node`` to ``operand`` through nodes that were made."""
    for place, argument in enumerate(node.args):
        if argument is operand:
            return (place,)
        if isinstance(argument, fx.Node) and argument in made:
            rest = _way(argument, operand, made)
            if rest is not None:
                return (place, *rest)
    return None
