"""What the pass did in this process, and how it is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelweld.ir.report import GraphReport

Dropped = tuple[str, str]  # the name and the id of a weld that was left out on request


@dataclass(frozen=True)
class Piece:
    """One graph that vLLM compiled: the ``number``-th for its range of ``tokens``.

    ``kernels``: whether welds are kernels; on a CPU Inductor compiles their words, and launches mean nothing.
    """

    number: int
    tokens: str
    words: Mapping[str, int]
    welds: tuple[str, ...]
    near_misses: int
    before: int
    after: int
    kernels: bool = True
    left_out: tuple[Dropped, ...] = ()

    @classmethod
    def of(
        cls,
        number: int,
        tokens: str,
        report: GraphReport,
        *,
        kernels: bool = True,
        left_out: tuple[Dropped, ...] = (),
    ) -> Piece:
        """From the report of a run on it."""
        welds = tuple(weld.name for weld in report.welds)
        before, after = report.launches.before, report.launches.after
        misses = len(report.near_misses)
        return cls(number, tokens, dict(report.words), welds, misses, before, after, kernels, left_out)

    def __str__(self) -> str:
        place = f"piece {self.number}" + (f", {self.tokens} tokens" if self.tokens else "")
        if not self.welds:
            return f"{place}: nothing welded ({_misses([self])}{_left_out([self])})"
        welds = _welds([self])
        return f"{place}: {_count(welds.total(), 'weld')} ({_listed(welds)}); {_effect([self])}"


@dataclass
class Statistics:
    """The pieces of one process, in the order in which they were compiled."""

    pieces: list[Piece] = field(default_factory=list)

    def add(
        self, tokens: str, report: GraphReport, *, kernels: bool = True, left_out: tuple[Dropped, ...] = ()
    ) -> Piece:
        """Notes a graph."""
        number = sum(piece.tokens == tokens for piece in self.pieces) + 1
        piece = Piece.of(number, tokens, report, kernels=kernels, left_out=left_out)
        self.pieces.append(piece)
        return piece

    def to_json(self) -> str:
        return json.dumps({"pieces": [asdict(piece) for piece in self.pieces]}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Statistics:
        """The inverse of ``to_json``."""
        return cls([_piece(**piece) for piece in json.loads(text)["pieces"]])


def _piece(welds: Sequence[str], left_out: Sequence[Sequence[str]] = (), **rest: Any) -> Piece:  # noqa: ANN401
    return Piece(welds=tuple(welds), left_out=tuple((name, one) for name, one in left_out), **rest)


def summary(pieces: Sequence[Piece], source: str = "", without: Sequence[str] = ()) -> str:
    """One line for all pieces. Says that kernelweld is active only where something was welded, and which of
    the names to be left out, ``without``, are of no weld.
    """
    known = {name for piece in pieces for dropped in piece.left_out for name in dropped}
    unknown = [name for name in without if name not in known]
    end = f"; no weld is called {', '.join(unknown)} (option without)" if unknown else ""
    graphs = _count(len(pieces), "graph")
    if not any(piece.welds for piece in pieces):
        told = f"{_misses(pieces)}{_left_out(pieces)}"
        return f"inactive: {graphs} compiled{source}, and nothing was welded ({told}){end}"
    ranges = _count(len({piece.tokens for piece in pieces}), "range")
    welds = _welds(pieces)
    count = _count(welds.total(), "weld")
    return (
        f"active{source}: {count} in {graphs} ({ranges} of tokens): {_listed(welds)}; {_effect(pieces)}{end}"
    )


def _welds(pieces: Iterable[Piece]) -> Counter[str]:
    return Counter(weld for piece in pieces for weld in piece.welds)


def _effect(pieces: Sequence[Piece]) -> str:
    before, after = (sum(getattr(piece, name) for piece in pieces) for name in ("before", "after"))
    kernels = any(piece.kernels for piece in pieces)
    cost = f"launches {before} -> {after}" if kernels else "compiled by Inductor, as on a CPU no kernels run"
    words = sum((Counter(piece.words) for piece in pieces), Counter[str]())
    return f"{cost}; words: {_listed(words)}; {_misses(pieces)}{_left_out(pieces)}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _misses(pieces: Iterable[Piece]) -> str:
    return _count(sum(piece.near_misses for piece in pieces), "near miss", "near misses")


def _left_out(pieces: Iterable[Piece]) -> str:
    names = Counter(name for piece in pieces for name, _ in piece.left_out)
    return f"; left out on request: {_listed(names)}" if names else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


#: Of this process: a pass is copied and pickled, and can carry nothing back.
STATISTICS = Statistics()
