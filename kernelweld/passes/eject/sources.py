"""Lines of the model: how they are named in an ejected file, what they say, and what they assign to."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from pathlib import Path

_PACKAGES = ("site-packages/", "dist-packages/")


def shown(source: str) -> str:
    """``file:line`` from the package on, or from the current folder on: no folders of this machine."""
    path, _, number = source.rpartition(":")
    return f"{_shown_path(path)}:{number}"


def _shown_path(path: str) -> str:
    for folder in _PACKAGES:
        if folder in path:
            return path.rpartition(folder)[2]
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name


def text_of(source: str) -> str:
    """What stands in that line; nothing if the file is not there."""
    path, _, number = source.rpartition(":")
    return linecache.getline(path, int(number)).strip() if number.isdigit() else ""


def assigned(source: str | None) -> str | None:
    """The name that the line assigns to, if it is a statement that assigns to one."""
    try:
        (statement,) = ast.parse(text_of(source or "")).body
    except (SyntaxError, ValueError):  # it is no statement, or there is none
        return None
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def by_file(sources: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """The lines of each file, in order, with what they say."""
    found: dict[str, set[tuple[int, str]]] = {}
    for source in sources:
        path, _, number = shown(source).rpartition(":")
        found.setdefault(path, set()).add((int(number), text_of(source)))
    return {path: sorted(lines) for path, lines in found.items()}
