"""What a pattern is: an anchor it starts from, and a typed answer, a match or the reason for none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.word import Word


@dataclass(frozen=True)
class NoMatch:
    """Why an anchor is not the word: a template, its arguments, formatted when read, and the node at fault.

    ``stage`` orders the reasons of one anchor: the further a pattern got, the nearer the miss. Stage 0 says
    that the anchor is something else altogether and is not reported. ``remedy`` says what to change in the
    model, where that is more than to write the word as its pattern spells it.
    """

    template: str
    node: fx.Node
    arguments: tuple[object, ...] = ()
    stage: int = 1
    remedy: str = ""

    @property
    def reason(self) -> str:
        return self.template.format(*self.arguments)

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class Match:
    """``nodes`` (in graph order, without the operands) compute ``word`` of ``operands``.

    ``outputs`` are the values that others use, one for each result of the word.

    ``stopped`` says what kept the match from taking in the next node as well (a factor that is no weight,
    say), where that is worth knowing. ``sizes`` names, for each symbolic size that ``nodes`` use, an operand
    and the dimension that has it. ``keeps_strides``: the word's result has the strides of the value that it
    replaces, so that others may read it by them.
    """

    word: Word
    operands: tuple[fx.Node | None, ...]
    outputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    stopped: NoMatch | None = None
    sizes: tuple[tuple[fx.Node, fx.Node, int], ...] = ()
    keeps_strides: bool = False


@dataclass(frozen=True)
class Pattern(ABC):
    """One word's spellings. A match starts from one of ``anchors``; ``match`` leaves the graph as it is.

    ``spelling`` is one of them, in a line, for people whose model is nearly it.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    anchors: ClassVar[tuple[OpOverload, ...]]
    spelling: ClassVar[str] = ""

    @property
    def remedy(self) -> str:
        """What to change in a model that misses the word, in one sentence."""
        return f"Write it as {self.spelling or f'the reference of the word {self.kind}'}."

    @abstractmethod
    def match(self, anchor: fx.Node) -> Match | NoMatch:
        """The word that ``anchor`` belongs to, or why it is none."""


def in_graph_order(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """``nodes`` without repeats, in the order in which they stand in their graph."""
    return tuple(sorted(dict.fromkeys(nodes)))
