"""What of a graph a question is about: a line of the model, a kind of word, or everything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernelweld.cli.explaining import CallSeen, GraphSeen, Lines, MissSeen, WeldSeen, WordSeen
from kernelweld.errors import BadOption, UnknownName

_LINE = re.compile(r"(.+\.py):([1-9]\d*)")


@dataclass(frozen=True)
class Line:
    """A line of a file that may be named by the end of its path."""

    file: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Line:
        """The line that ``text`` names. Raises ``BadOption``."""
        match = _LINE.fullmatch(text.replace("\\", "/"))
        if match is None:
            raise BadOption("--line", text, "FILE.py:LINE, such as modeling_llama.py:62")
        return cls(match[1].removeprefix("./"), int(match[2]))

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    def is_in(self, sources: Iterable[str]) -> bool:
        return any(number == self.number for number in self.lines_of_file(sources))

    def lines_of_file(self, sources: Iterable[str]) -> Iterator[int]:
        """The lines among ``sources`` that are in this file."""
        for source in sources:
            path, _, number = source.replace("\\", "/").rpartition(":")
            if f"/{path}".endswith(f"/{self.file}"):
                yield int(number)


@dataclass(frozen=True)
class Selected:
    """The part of one graph that a question is about. ``called``: the line only calls what computes it."""

    words: tuple[WordSeen, ...] = ()
    misses: tuple[MissSeen, ...] = ()
    welds: tuple[WeldSeen, ...] = ()
    calls: tuple[CallSeen, ...] = ()
    called: bool = False


@dataclass(frozen=True)
class Question:
    """``line`` and ``kind`` narrow down; ``near_misses`` leaves out the words that are welded."""

    line: Line | None = None
    kind: str | None = None
    near_misses: bool = False

    def select(self, graph: GraphSeen) -> Selected:
        found = Selected(graph.words, graph.misses, graph.welds, graph.calls)
        if self.line is not None:
            found = _on_line(graph, self.line)
        words = [word for word in found.words if self.kind in (None, word.kind)]
        if self.near_misses:
            words = [word for word in words if word.weld is None and not word.looked_up]
        misses = tuple(one for one in found.misses if self.kind in (None, one.miss.kind))
        return Selected(tuple(words), misses, found.welds, found.calls, found.called)


def checked_kind(kind: str | None) -> str | None:
    """``kind`` if there is such a word or operator. Raises ``UnknownName``."""
    from kernelweld.ir import words
    from kernelweld.passes.dialect.table import OPERATORS

    known = (*words(), *OPERATORS)
    if kind is not None and kind not in known:
        raise UnknownName("kind of word", kind, known)
    return kind


def nearest(line: Line, graphs: Sequence[GraphSeen], count: int = 2) -> tuple[int, ...]:
    """The lines of the same file that are in a graph, up to ``count`` before and after ``line``."""
    calls = (call.lines for graph in graphs for call in graph.calls)
    words = (word.lines for graph in graphs for word in graph.words)
    every = (source for lines in (*calls, *words) for source in (*lines.sources, *lines.calls))
    numbers = sorted(set(line.lines_of_file(every)))
    before = [number for number in numbers if number < line.number]
    after = [number for number in numbers if number > line.number]
    return (*before[-count:], *after[:count])


def files(graphs: Sequence[GraphSeen]) -> tuple[str, ...]:
    """The names of the files whose lines compute something in a graph, the most frequent first."""
    from collections import Counter

    sources = (source for graph in graphs for call in graph.calls for source in call.lines.sources)
    names = Counter(source.replace("\\", "/").rpartition(":")[0].rpartition("/")[2] for source in sources)
    return tuple(name for name, _ in names.most_common())


def _sources(word: WordSeen) -> tuple[str, ...]:
    """The lines of a word, and the line that it ends before."""
    end = word.stopped.source if word.stopped is not None else None
    return word.lines.sources if end is None else (*word.lines.sources, end)


def _on_line(graph: GraphSeen, line: Line) -> Selected:
    """What is computed on ``line``; if nothing is, what it calls."""
    direct = Selected(
        tuple(word for word in graph.words if line.is_in(_sources(word))),
        tuple(one for one in graph.misses if line.is_in(one.lines.sources)),
        tuple(weld for weld in graph.welds if line.is_in(weld.sources)),
        tuple(call for call in graph.calls if line.is_in(call.lines.sources)),
    )
    if direct != Selected():
        return direct

    def is_called(lines: Lines) -> bool:
        return line.is_in(lines.calls)

    return Selected(
        tuple(word for word in graph.words if is_called(word.lines)),
        tuple(one for one in graph.misses if is_called(one.lines)),
        (),
        tuple(call for call in graph.calls if is_called(call.lines)),
        called=True,
    )
