"""How patterns are written: a reading leaves by ``Miss`` at the first thing that is not the word."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.pattern import Match, NoMatch, Pattern

#: Stages of a near miss. SOMETHING_ELSE is not reported.
SOMETHING_ELSE, LOOKS_LIKE, NEARLY = 0, 1, 2


class Miss(Exception):
    """Leaves a reading: the anchor is not the word. Caught by :meth:`ReadingPattern.match`."""

    def __init__(
        self,
        template: str,
        node: fx.Node,
        *arguments: object,
        stage: int = LOOKS_LIKE,
        remedy: str = "",
    ) -> None:
        super().__init__(template)
        self.no_match = NoMatch(template, node, arguments, stage, remedy)


def something_else(node: fx.Node) -> Miss:
    """The anchor has nothing to do with the word."""
    return Miss("%{} is not part of this word", node, node, stage=SOMETHING_ELSE)


@dataclass(frozen=True)
class ReadingPattern(Pattern):
    """A pattern whose ``read`` returns the match or raises :class:`Miss`."""

    @abstractmethod
    def read(self, anchor: fx.Node) -> Match:
        """The match that ``anchor`` belongs to.

        Raises:
            Miss: ``anchor`` is not the word.
        """

    def match(self, anchor: fx.Node) -> Match | NoMatch:
        try:
            return self.read(anchor)
        except Miss as miss:
            return miss.no_match
