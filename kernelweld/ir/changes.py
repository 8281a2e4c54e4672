"""Two texts line by line: what is the same, what differs, and the lines around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

#: A line on the left and one on the right: equal, changed, or only on one side.
Row = tuple[str | None, str | None]


@dataclass(frozen=True)
class Hunk:
    """Rows that differ with the same ones around them; ``left`` and ``right`` count lines from 1."""

    left: int
    right: int
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """As in a patch, for example ``@@ -3,7 +3,5 @@``."""
        lefts, rights = (sum(row[i] is not None for row in self.rows) for i in (0, 1))
        return f"@@ -{self.left},{lefts} +{self.right},{rights} @@"

    def unified(self) -> Iterator[str]:
        """The lines of a patch: those that go before those that come."""
        come: list[str] = []
        for left, right in self.rows:
            if left == right:
                yield from come
                come.clear()
                yield f" {left}"
                continue
            if left is not None:
                yield f"-{left}"
            if right is not None:
                come.append(f"+{right}")
        yield from come


def hunks(left: Sequence[str], right: Sequence[str], around: int = 3) -> list[Hunk]:
    """Where two texts differ, with ``around`` lines that are the same; those that nearly touch are one."""
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    return [_hunk(left, right, group) for group in matcher.get_grouped_opcodes(around) if _differs(group)]


def _differs(group: Sequence[tuple[str, int, int, int, int]]) -> bool:
    return any(tag != "equal" for tag, *_ in group)


def _hunk(left: Sequence[str], right: Sequence[str], group: Sequence[tuple[str, int, int, int, int]]) -> Hunk:
    rows = [row for _, a, b, c, d in group for row in _rows(left[a:b], right[c:d])]
    return Hunk(group[0][1] + 1, group[0][3] + 1, tuple(rows))


def _rows(left: Sequence[str], right: Sequence[str]) -> Iterator[Row]:
    """Lines that define one value stand beside each other."""
    goes, comes = ([line.partition(" ")[0] for line in lines] for lines in (left, right))
    for _, a, b, c, d in SequenceMatcher(None, goes, comes, autojunk=False).get_opcodes():
        if goes[a:b] == comes[c:d]:
            yield from zip(left[a:b], right[c:d], strict=True)
        else:
            yield from ((line, None) for line in left[a:b])
            yield from ((None, line) for line in right[c:d])
