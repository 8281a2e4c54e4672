"""Reports as tables for people, on any rich console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from kernelweld.ir.report import GraphReport, NearMiss, WeldReport


def show_graph(console: Console, title: str, report: GraphReport, layers: int | None) -> None:
    """One graph's report: nodes, words by kind, launches, welds and near misses."""
    console.print(f"[bold]{escape(title)}[/]: {report.nodes} calls")
    console.print(f"  words     {word_counts(report.words)}")
    console.print(f"  launches  {launches(report, layers)}")
    if report.welds:
        console.print(_welds(report.welds))
    if report.near_misses:
        console.print(_near_misses(report.near_misses))


def show_timing(console: Console, report: GraphReport) -> None:
    """The time of each pass."""
    table = plain_table("pass", "ms")
    for name, seconds in report.seconds.items():
        table.add_row(escape(name), f"{seconds * 1e3:.1f}")
    console.print(table)


def launches(report: GraphReport, layers: int | None) -> str:
    """Predicted launches before and after, in all and on average for a layer."""
    before, after = report.launches.before, report.launches.after
    average = f" ({before / layers:.1f} → {after / layers:.1f} a layer)" if layers else ""
    return f"{before} → {after} predicted{average}"


def short_source(source: str) -> str:
    """``file:line`` without the folders."""
    return source.replace("\\", "/").rpartition("/")[2]


def places(sources: Sequence[str]) -> str:
    """Source lines by file, for example ``model.py:12-14,20``."""
    lines: dict[str, list[int]] = {}
    for source in sources:
        file, _, line = short_source(source).rpartition(":")
        lines.setdefault(file, []).append(int(line))
    return " ".join(f"{file}:{','.join(_runs(sorted(set(found))))}" for file, found in lines.items())


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    start = 0
    for i, number in enumerate(numbers):
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            yield str(number) if i == start else f"{numbers[start]}-{number}"
            start = i + 1


def plain_table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 2), header_style="dim")


def word_counts(words: Mapping[str, int]) -> str:
    """Words by kind, for example ``4 rms_norm, 2 rope``."""
    return ", ".join(f"{count} {kind}" for kind, count in words.items()) or "none"


def _welds(welds: Sequence[WeldReport]) -> Table:
    """Welds of one name and shape of words on one line: layers repeat them."""
    alike = Counter((weld.name, weld.words, weld.tasks) for weld in welds)
    sources = {(weld.name, weld.words, weld.tasks): weld.sources for weld in reversed(welds)}
    table = plain_table("welds", "kernel", "row tasks", "first sources")
    for key, count in alike.items():
        name, _, tasks = key
        table.add_row(f"{count} ×", escape(name), escape("\n".join(tasks)), escape(places(sources[key])))
    return table


def _near_misses(misses: Sequence[NearMiss]) -> Table:
    table = plain_table("near miss", "of", "source", "reason")
    for miss in misses:
        cells = (miss.anchor, miss.kind, short_source(miss.source or "unknown"), miss.reason)
        table.add_row(*map(escape, cells))
    return table
