"""Pieces: arithmetic progressions of feature indices, the unit in which a row is held in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, order=True)
class Piece:
    """The indices ``start, start + step, …`` (``count`` of them). A single index always has step 1, so
    equal pieces compare equal.
    """

    start: int
    count: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.count == 1 and self.step != 1:
            object.__setattr__(self, "step", 1)

    @property
    def last(self) -> int:
        return self.start + (self.count - 1) * self.step

    def image(self, start: int, step: int) -> Piece:
        """Where these indices land under ``k -> start + step * k``."""
        return Piece(start + step * self.start, self.count, step * self.step)

    def preimage(self, start: int, step: int) -> Piece:
        """The indices that ``k -> start + step * k`` takes to this piece; every one of its indices
        must be hit.
        """
        return Piece((self.start - start) // step, self.count, max(1, self.step // step))

    def __str__(self) -> str:
        if self.count == 1:
            return f"[{self.start}]"
        stop = self.last + 1
        return f"[{self.start}:{stop}]" if self.step == 1 else f"[{self.start}:{stop}:{self.step}]"


def meet(p: Piece, q: Piece) -> Piece | None:
    """The indices in both pieces: again a progression, or None when there are none."""
    common = gcd(p.step, q.step)
    if (q.start - p.start) % common:
        return None
    stride, turns = p.step // common * q.step, q.step // common
    first = p.start + p.step * ((q.start - p.start) // common * pow(p.step // common, -1, turns) % turns)
    lowest = max(p.start, q.start)
    first += -(-(lowest - first) // stride) * stride if first < lowest else 0
    last = min(p.last, q.last)
    return Piece(first, (last - first) // stride + 1, stride) if first <= last else None


def split(p: Piece, part: Piece) -> tuple[Piece, ...]:
    """``p`` as disjoint pieces, one of which is ``part``, which must lie inside ``p``.

    When ``part`` takes every n-th index, the indices between go to n - 1 interleaved pieces as long as
    ``part``, so that the other elements of its pairs (or groups) stay one piece.
    """
    turns = part.step // p.step if part.count > 1 else 1
    first = (part.start - p.start) // p.step
    low = first if first >= turns else 0
    high = min(p.count, first + turns * part.count)
    offsets = [(first - low + r) % turns for r in range(1, turns)]
    between = [Piece(low + k, (high - low - 1 - k) // turns + 1, turns) for k in offsets if low + k < high]
    rest = [Piece(0, low), *between, Piece(high, p.count - high)]
    return (part, *(r.image(p.start, p.step) for r in rest if r.count > 0))
