"""What the pass did in this process, and how it is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from kernelweld.ir.report import GraphReport


@dataclass(frozen=True)
class Piece:
    """One graph that vLLM compiled: the ``number``-th for its range of ``tokens``."""

    number: int
    tokens: str
    words: Mapping[str, int]
    welds: tuple[str, ...]
    near_misses: int
    before: int
    after: int

    @classmethod
    def of(cls, number: int, tokens: str, report: GraphReport) -> Piece:
        """From the report of a run on it."""
        welds = tuple(weld.name for weld in report.welds)
        return cls(
            number,
            tokens,
            dict(report.words),
            welds,
            len(report.near_misses),
            report.launches.before,
            report.launches.after,
        )

    def __str__(self) -> str:
        place = f"piece {self.number}" + (f", {self.tokens} tokens" if self.tokens else "")
        if not self.welds:
            return f"{place}: nothing welded ({_count(self.near_misses, 'near miss', 'near misses')})"
        words = ", ".join(f"{count} {kind}" for kind, count in self.words.items())
        return (
            f"{place}: {_count(len(self.welds), 'weld')} of {words}; launches {self.before} -> {self.after}; "
            f"{_count(self.near_misses, 'near miss', 'near misses')}"
        )


@dataclass
class Statistics:
    """The pieces of one process, in the order in which they were compiled."""

    pieces: list[Piece] = field(default_factory=list)

    def add(self, tokens: str, report: GraphReport) -> Piece:
        """Notes a graph."""
        number = sum(piece.tokens == tokens for piece in self.pieces) + 1
        piece = Piece.of(number, tokens, report)
        self.pieces.append(piece)
        return piece

    def to_json(self) -> str:
        return json.dumps({"pieces": [asdict(piece) for piece in self.pieces]}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Statistics:
        """The inverse of ``to_json``."""
        pieces = json.loads(text)["pieces"]
        return cls([Piece(**{**piece, "welds": tuple(piece["welds"])}) for piece in pieces])


def summary(pieces: Sequence[Piece], source: str = "") -> str:
    """One line for all pieces. Says that kernelweld is active only where something was welded."""
    welds = sum(len(piece.welds) for piece in pieces)
    misses = _count(sum(piece.near_misses for piece in pieces), "near miss", "near misses")
    graphs = _count(len(pieces), "graph")
    if not welds:
        return f"inactive: {graphs} compiled{source}, and nothing was welded ({misses})"
    ranges = _count(len({piece.tokens for piece in pieces}), "range")
    before, after = (sum(getattr(piece, name) for piece in pieces) for name in ("before", "after"))
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(_words(pieces).items()))
    return (
        f"active{source}: {_count(welds, 'weld')} in {graphs} ({ranges} of tokens), of {words}; "
        f"launches {before} -> {after}; {misses}"
    )


def _words(pieces: Iterable[Piece]) -> Counter[str]:
    total: Counter[str] = Counter()
    for piece in pieces:
        total.update(piece.words)
    return total


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


#: Of this process: a pass is copied and pickled, and can carry nothing back.
STATISTICS = Statistics()
