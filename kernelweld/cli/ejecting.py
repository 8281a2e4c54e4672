"""The welds of a target as files: which are chosen, what they are called, and their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kernelweld import __version__
from kernelweld.cli.compiling import names
from kernelweld.cli.render import plain_table
from kernelweld.cli.welded import Welded
from kernelweld.errors import UnknownName
from kernelweld.passes.eject import Provenance, eject, sources_of, words_of
from kernelweld.passes.verification.specimen import Specimen


@dataclass(frozen=True)
class Ejected:
    """One file: the weld's name, how many welds share the kernel, its words and the model's source lines."""

    name: str
    count: int
    path: Path | None
    text: str
    words: tuple[str, ...]
    sources: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """As JSON has it."""
        file = None if self.path is None else str(self.path)
        listed = {"words": list(self.words), "sources": list(self.sources)}
        return {"file": file, "weld": self.name, "count": self.count, **listed}


def module_name(name: str) -> str:
    """The name of a weld as that of a module and of the function in it: ``rms_norm-2`` is ``rms_norm_2``."""
    return name.replace("-", "_")


def chosen(
    found: Welded, wanted: str | None, target: str, path: Path | None, *, as_folder: bool
) -> list[Ejected]:
    """The weld called ``wanted``, or all, each with its text. ``path`` is a file, or the folder of all.

    Raises ``UnknownName`` where there is none of that name.
    """
    every = dict(zip(_names(found), found.welds, strict=True))
    if wanted is not None and wanted not in every:
        raise UnknownName("weld", wanted, tuple(every))
    kept = every if wanted is None else {wanted: every[wanted]}
    return [
        _ejected(name, one, count, target, path / f"{module_name(name)}.py" if path and as_folder else path)
        for name, (one, count) in kept.items()
    ]


def _ejected(name: str, one: Specimen, count: int, target: str, path: Path | None) -> Ejected:
    module = module_name(name) if path is None else path.stem
    text = eject(one, module_name(name), Provenance(target, count, __version__, module))
    return Ejected(name, count, path, text, words_of(one), sources_of(one))


def _names(found: Welded) -> tuple[str, ...]:
    """A name for each kernel, as ``compile`` numbers them."""
    return names(one.name for one, _ in found.welds)


def namesakes(found: Welded, wanted: str | None) -> Iterator[str]:
    """A line for each other kernel of the name ``wanted``: the name to choose it by, and where it is from."""
    for name, (one, _) in zip(_names(found), found.welds, strict=True):
        if one.name == wanted and name != wanted:
            place = next(iter(sources_of(one)), "")
            yield f"{wanted}: another kernel bears this name; take it with --weld {name} ({place})"


def show(console: Console, title: str, ejected: Sequence[Ejected]) -> None:
    """One line a file."""
    console.print(f"[bold]{escape(title)}[/]")
    if not ejected:
        console.print("  no welds")
        return
    table = plain_table("welds", "kernel", "written to")
    for one in ejected:
        table.add_row(f"{one.count} ×", escape(one.name), escape(str(one.path)))
    console.print(table)
