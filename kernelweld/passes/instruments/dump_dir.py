"""``DumpDir``: a folder with the graph after every pass, to read, to compare and to open in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path

from torch import fx

from kernelweld.ir.printer import format_graph
from kernelweld.passes.base import PassContext, PassResult
from kernelweld.passes.instruments.base import Instrument, Step
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
        self._entries: list[Mapping[str, object]] = []
        _prepare(folder, overwrite)

    def before_pipeline(self, gm: fx.GraphModule, text: str) -> None:
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
        (self._folder / "summary.json").write_text(json.dumps({"steps": self._entries}, indent=2))
        (self._folder / "trace.json").write_text(self._timing.chrome_trace())
        (self._folder / "index.html").write_text(_index(self._entries))

    def _seconds(self) -> Mapping[str, float]:
        return {"seconds": self._timing.spans[-1].seconds}

    def _write(self, name: str, gm: fx.GraphModule, facts: Mapping[str, object]) -> None:
        stem = f"{len(self._entries):03d}_{name}"
        counts = {"calls": count_calls(gm.graph), "words": count_words(gm.graph)}
        entry = {"file": f"{stem}.txt", **counts, **facts}
        (self._folder / f"{stem}.txt").write_text(format_graph(gm.graph, sources=True))
        (self._folder / f"{stem}.json").write_text(json.dumps(entry, indent=2))
        self._entries.append(entry)


def _prepare(folder: Path, overwrite: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.iterdir())
    if found and not overwrite:
        raise FileExistsError(f"{folder} is not empty; give overwrite or another folder")
    if strange := [path.name for path in found if not _OURS.fullmatch(path.name)]:
        raise FileExistsError(f"{folder} holds {strange[0]}, which is not of a dump; nothing was deleted")
    for path in found:
        path.unlink()


def _index(entries: list[Mapping[str, object]]) -> str:
    rows = "\n".join(_row(entry) for entry in entries)
    return (
        "<!doctype html><meta charset=utf-8><title>kernelweld passes</title>\n"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}</style>\n"
        "<h1>kernelweld passes</h1>\n"
        "<table><tr><th>graph<th>pass<th>calls<th>words<th>count<th>ms</tr>\n"
        f"{rows}\n</table>\n"
    )


def _row(entry: Mapping[str, object]) -> str:
    words = entry["words"] if isinstance(entry["words"], Mapping) else {}
    seconds = entry.get("seconds")
    cells = (
        f'<a href="{escape(str(entry["file"]))}">{escape(str(entry["file"]))}</a>',
        escape(str(entry.get("pass", entry.get("pipeline", "")))) + (" — failed" if "error" in entry else ""),
        str(entry["calls"]),
        escape(", ".join(f"{kind} {count}" for kind, count in words.items())),
        str(entry.get("count", "")),
        f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else "",
    )
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"
