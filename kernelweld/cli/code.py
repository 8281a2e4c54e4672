"""Lines of a model with their text, under names that tell nothing about the machine."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Code:
    """A line of the model with its text, which is None where its file is not here."""

    file: str
    line: int
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def codes(sources: Iterable[str]) -> tuple[Code, ...]:
    """The lines at ``sources``, file by file in order, each once."""
    files: dict[str, set[int]] = {}
    for source in sources:
        path, _, line = source.rpartition(":")
        if line.isdecimal():
            files.setdefault(path, set()).add(int(line))
    return tuple(_code(path, line) for path, lines in files.items() for line in sorted(lines))


def shown_file(path: str) -> str:
    """``path`` from where its package is installed, from the current folder, or its last part."""
    path = path.replace("\\", "/")
    for folder in _PACKAGES:
        if folder in path:
            return path.rpartition(folder)[2]
    here = f"{Path.cwd().as_posix()}/"
    return path.removeprefix(here) if path.startswith(here) else path.rpartition("/")[2]


def _code(path: str, line: int) -> Code:
    text = linecache.getline(path, line).rstrip("\n") if Path(path).is_file() else ""
    return Code(shown_file(path), line, text or None)
