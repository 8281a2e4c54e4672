"""``DumpDir``: a folder with the graph after every pass, to read, to compare and to open in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import fx

from kernelweld.ir.alignment import Point
from kernelweld.ir.changes import Hunk, hunks
from kernelweld.ir.printer import format_graph
from kernelweld.passes.base import PassContext, PassResult
from kernelweld.passes.instruments.base import Instrument, Step
from kernelweld.passes.instruments.dump_page import Entry, page
from kernelweld.passes.instruments.stats import count_calls, count_words
from kernelweld.passes.instruments.timing import Timing

_OURS = re.compile(r"\d{3}_[\w-]+\.(txt|json)|index\.html|summary\.json|trace\.json")


class DumpDir(Instrument):
    """Writes ``NNN_<pass>.txt`` and ``.json`` a pass, ``index.html``, ``summary.json`` and ``trace.json``.

    Step 000 is the graph before the passes; several graphs number on. A folder that is not empty is refused
    with ``FileExistsError`` unless ``overwrite`` is set, and then only files that a dump wrote are deleted.
    """

    def __init__(self, folder: Path, *, overwrite: bool = False) -> None:
        self._folder = folder
        self._timing = Timing()
        self._entries: list[Entry] = []
        self._last: Point | None = None
        _prepare(folder, overwrite)

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
        self._last = None
        self._write("input", gm, {"pipeline": text})

    def before_pass(self, step: Step, gm: fx.GraphModule) -> None:
        self._timing.before_pass(step, gm)

    def after_pass(self, step: Step, gm: fx.GraphModule, result: PassResult) -> None:
        self._timing.after_pass(step, gm, result)
        self._write(step.name, gm, {"pass": step.text, **asdict(result), **self._seconds()})

    def on_error(self, step: Step, gm: fx.GraphModule, error: Exception) -> None:
        self._timing.on_error(step, gm, error)
        self._write(f"{step.name}-failed", gm, {"pass": step.text, "error": str(error), **self._seconds()})

    def after_pipeline(self, gm: fx.GraphModule, context: PassContext) -> None:
        steps = [entry.facts for entry in self._entries]
        self._file("summary.json", json.dumps({"steps": steps}, indent=2))
        self._file("trace.json", self._timing.chrome_trace())
        self._file("index.html", page(self._entries))

    def _seconds(self) -> Mapping[str, float]:
        return {"seconds": self._timing.spans[-1].seconds}

    def _write(self, name: str, gm: fx.GraphModule, facts: Mapping[str, object]) -> None:
        stem = f"{len(self._entries):03d}_{name}"
        counts = {"calls": count_calls(gm.graph), "words": count_words(gm.graph)}
        entry = Entry({"file": f"{stem}.txt", **counts, **facts}, self._changes(gm.graph))
        self._file(f"{stem}.txt", format_graph(gm.graph, sources=True))
        self._file(f"{stem}.json", json.dumps(entry.facts, indent=2))
        self._entries.append(entry)

    def _changes(self, graph: fx.Graph) -> tuple[Hunk, ...]:
        """What differs from the graph before, under the names of that."""
        before, self._last = self._last, Point(graph)
        return () if before is None else tuple(hunks(before.lines, before.lines_of(graph)))

    def _file(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")


def _prepare(folder: Path, overwrite: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.iterdir())
    if found and not overwrite:
        raise FileExistsError(f"{folder} is not empty; give --overwrite or another folder")
    if strange := [path.name for path in found if not _OURS.fullmatch(path.name)]:
        raise FileExistsError(f"{folder} holds {strange[0]}, which is not of a dump; nothing was deleted")
    for path in found:
        path.unlink()
