"""Points of a pipeline by name: before all passes, or after one of them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelweld.errors import UnknownName

#: The point before all passes.
INPUT = "input"


def point(names: Sequence[str], index: int) -> str:
    """The point after the pass at ``index``, as the command line has it; before all passes for -1."""
    if index < 0:
        return INPUT
    times = names[: index + 1].count(names[index])
    return names[index] if times == 1 else f"{names[index]}#{times}"


def index_of(names: Sequence[str], text: str) -> int:
    """How many of the passes called ``names`` stand before the point ``text``.

    Raises ``UnknownName`` with close names; ``NAME#2`` is after the second pass called NAME.
    """
    known = [point(names, i) for i in range(-1, len(names))]
    if text not in known:
        raise UnknownName("point of the pipeline", text, known)
    return known.index(text)
