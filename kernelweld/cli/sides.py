"""Two graphs and their launches beside each other, or as a patch where the terminal is narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelweld.cli.diffing import Difference, Span
from kernelweld.ir.changes import Hunk, Row, hunks

#: Two columns need at least this width.
_WIDE = 100
_GOES, _COMES = "red", "green"


def show(console: Console, title: str, span: Span, found: Difference, *, around: int, unified: bool) -> None:
    """The changed lines of the graph with ``around`` same ones, then those of the launches."""
    names = (f"graph, {span.start}", f"graph, {span.end}")
    beside = not unified and console.width >= _WIDE
    changed = hunks(found.before.lines, found.after.lines, around)
    console.print(f"[bold]{escape(title)}[/]: {escape(_summary(span, changed))}", soft_wrap=True)
    _show(console, names, changed, beside=beside)
    before, after = found.before, found.after
    console.print(f"[bold]launches[/]: {len(before.launches)} → {len(after.launches)} predicted")
    names = (f"launches, {span.start}", f"launches, {span.end}")
    _show(console, names, hunks(before.launches, after.launches, around), beside=beside)


def _summary(span: Span, changed: Sequence[Hunk]) -> str:
    rows = [row for hunk in changed for row in hunk.rows if row[0] != row[1]]
    goes, comes = (sum(row[i] is not None for row in rows) for i in (0, 1))
    return f"{span.start} → {span.end}, " + (f"{goes} lines go, {comes} come" if rows else "no difference")


def _show(console: Console, names: tuple[str, str], changed: Sequence[Hunk], *, beside: bool) -> None:
    if not changed:
        return
    if beside:
        console.print(_table(console.width, names, changed))
        return
    console.print(Text(f"--- {names[0]}"), Text(f"+++ {names[1]}"), sep="\n", soft_wrap=True)
    for hunk in changed:
        console.print(Text(hunk.title, "cyan"), soft_wrap=True)
        for line in hunk.unified():
            console.print(Text(line, {"-": _GOES, "+": _COMES}.get(line[0], "")), soft_wrap=True)


def _table(width: int, names: tuple[str, str], changed: Sequence[Hunk]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", width=width)
    for name in names:
        table.add_column(escape(name), ratio=1, overflow="fold")
    for number, hunk in enumerate(changed):
        if number:
            table.add_row(Text("…", "dim"), Text("…", "dim"))
        for row in hunk.rows:
            table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[Text, Text]:
    left, right = row
    if left == right:
        return Text(f"  {left}"), Text(f"  {right}")
    return (
        Text("") if left is None else Text(f"- {left}", _GOES),
        Text("") if right is None else Text(f"+ {right}", _COMES),
    )


def as_dict(found: Difference, around: int) -> Mapping[str, object]:
    """The difference as JSON has it; a row of a hunk is a line on the left and one on the right."""
    before, after = found.before, found.after
    lists = {"before": before, "after": after}
    launches = {name: side.launches for name, side in lists.items()}
    changed = [
        {"left": hunk.left, "right": hunk.right, "rows": hunk.rows}
        for hunk in hunks(before.lines, after.lines, around)
    ]
    lines = {name: side.lines for name, side in lists.items()}
    return {"graph": found.graph, "lines": lines, "hunks": changed, "launches": launches}
