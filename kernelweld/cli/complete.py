"""What the shell offers for an argument that is half typed. For targets torch is not imported: it answers at
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from kernelweld.cli.zoo import ZOO


def targets(incomplete: str) -> list[str]:
    """The models that have a name, folders and ``.pt2`` files."""
    return [*_starting(incomplete, (f"hf:{name}" for name in ZOO)), *_paths(incomplete, (".pt2",))]


def traces(incomplete: str) -> list[str]:
    """Folders and files of a profiler."""
    return _paths(incomplete, (".json", ".json.gz"))


def passes(incomplete: str) -> list[str]:
    """Kernelweld's passes, and those of other distributions."""
    from kernelweld.passes.table import BUILT_IN, GROUP

    return _starting(incomplete, [*BUILT_IN, *(point.name for point in entry_points(group=GROUP))])


def patterns(incomplete: str) -> list[str]:
    """Kernelweld's patterns, and those of other distributions."""
    from kernelweld.patterns.table import patterns as found

    return _starting(incomplete, found())


def kinds(incomplete: str) -> list[str]:
    """The kinds of words, those of other distributions among them."""
    from kernelweld.ir import words

    return _starting(incomplete, words())


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    root = Path(f"{folder}/" if "/" in incomplete else ".")
    if not root.is_dir():
        return []
    found = (path for path in sorted(root.iterdir()) if _fits(path.name, start))
    prefix = f"{folder}/" if "/" in incomplete else ""
    return [
        f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.is_dir() or path.name.endswith(endings)
    ]


def _fits(name: str, start: str) -> bool:
    """Whether ``name`` begins with ``start``; hidden ones have to be asked for."""
    return name.startswith(start) and (start.startswith(".") or not name.startswith("."))
