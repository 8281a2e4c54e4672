"""The page of a dump: passes graph by graph, with what each changed. It loads nothing, and has no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kernelweld.ir.changes import Hunk

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --dim: #59636e; --line: #d1d9e0;
  --link: #0550ae; --go: #82071e; --go-back: #ffebe9; --come: #0a5c22; --come-back: #dafbe1; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --dim: #9198a1;
  --line: #3d444d; --link: #79c0ff; --go: #ffb4ab; --go-back: #3c1618; --come: #9be9a8;
  --come-back: #12361f; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 90rem;
  background: var(--back); color: var(--text); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 40rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--dim); font-weight: normal; }
td.number, th.number { text-align: right; }
details { margin: .6rem 0; } summary { cursor: pointer; }
pre { overflow-x: auto; margin: .4rem 0 1rem; padding: .5rem; border: 1px solid var(--line); }
.go { color: var(--go); background: var(--go-back); }
.come { color: var(--come); background: var(--come-back); }
.at, .dim { color: var(--dim); }
.failed { color: var(--go); font-weight: bold; }
"""

_CLASSES: Mapping[str, str] = {"-": "go", "+": "come", "@": "at"}


@dataclass(frozen=True)
class Entry:
    """One graph of a dump: what is in its ``.json``, and how it differs from the one before."""

    facts: Mapping[str, object]
    changes: tuple[Hunk, ...] = ()

    @property
    def is_input(self) -> bool:
        """Whether it is the graph before the passes."""
        return "pipeline" in self.facts

    @property
    def title(self) -> str:
        """The pass that made it."""
        return "input" if self.is_input else str(self.facts["pass"])


def page(entries: Sequence[Entry]) -> str:
    """The page as HTML."""
    starts = [i for i, entry in enumerate(entries) if entry.is_input]
    graphs = [entries[a:b] for a, b in zip(starts, [*starts[1:], len(entries)], strict=True)]
    sections = "\n".join(_section(number, graph) for number, graph in enumerate(graphs, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kernelweld passes</title>\n<style>{_STYLE}</style>\n"
        f"<h1>kernelweld passes</h1>\n{sections}\n</html>\n"
    )


def _section(number: int, entries: Sequence[Entry]) -> str:
    heads = ("pass", "graph", "calls", "words", "count", "ms", "lines")
    head = "".join(f"<th{_aligned(name)}>{name}</th>" for name in heads)
    rows = "\n".join(map(_row, entries))
    changes = "\n".join(_changes(entry) for entry in entries if entry.changes)
    return (
        f"<h2>graph {number}</h2>\n<p><code>{escape(str(entries[0].facts['pipeline']))}</code></p>\n"
        f'<div class="wide"><table>\n<tr>{head}</tr>\n{rows}\n</table></div>\n{changes}'
    )


def _row(entry: Entry) -> str:
    facts, seconds = entry.facts, entry.facts.get("seconds")
    words = facts["words"] if isinstance(facts["words"], Mapping) else {}
    file, failed = escape(str(facts["file"])), "error" in facts
    mark = f' <span class="failed">— failed</span>: {escape(str(facts["error"]))}' if failed else ""
    cells = {
        "pass": f"{escape(entry.title)}{mark}",
        "graph": f'<a href="{file}">{file}</a>',
        "calls": str(facts["calls"]),
        "words": escape(", ".join(f"{count} {kind}" for kind, count in words.items())),
        "count": str(facts.get("count", "")),
        "ms": f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else "",
        "lines": "" if entry.is_input else _moved(entry.changes),
    }
    return f"<tr>{''.join(f'<td{_aligned(name)}>{cell}</td>' for name, cell in cells.items())}</tr>"


def _aligned(column: str) -> str:
    return ' class="number"' if column in ("calls", "count", "ms") else ""


def _moved(changes: Sequence[Hunk]) -> str:
    rows = [row for hunk in changes for row in hunk.rows if row[0] != row[1]]
    goes, comes = (sum(row[i] is not None for row in rows) for i in (0, 1))
    return f'<span class="go">−{goes}</span> <span class="come">+{comes}</span>' if rows else "the same"


def _changes(entry: Entry) -> str:
    lines = "\n".join(map(_line, _patch(entry.changes)))
    return (
        f"<details><summary>{escape(entry.title)}: {_moved(entry.changes)}</summary>\n"
        f"<pre>{lines}</pre></details>"
    )


def _patch(changes: Sequence[Hunk]) -> Iterator[str]:
    for hunk in changes:
        yield hunk.title
        yield from hunk.unified()


def _line(text: str) -> str:
    kind = _CLASSES.get(text[:1])
    return f'<span class="{kind}">{escape(text)}</span>' if kind else escape(text)
