"""``explain=True``: each graph's report in words, on standard error, as it is compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from kernelweld.ir.report import GraphReport


def explain(reports: Iterable[GraphReport]) -> None:
    """Prints what became of each graph."""
    for report in reports:
        print("\n".join(_lines(report)), file=sys.stderr)


def _lines(report: GraphReport) -> Iterator[str]:
    words = ", ".join(f"{count} {kind}" for kind, count in report.words.items()) or "no words"
    launches = report.launches
    yield f"kernelweld: {words}; predicted launches {launches.before} -> {launches.after}"
    for weld in report.welds:
        yield f"  weld {weld.name}: {' | '.join(weld.tasks)}{_at(weld.sources)}"
    for miss in report.near_misses:
        yield f"  left {miss.kind} ({miss.anchor}): {miss.reason}{_at((miss.source,) if miss.source else ())}"


def _at(sources: tuple[str, ...]) -> str:
    return f"  [{sources[0]}{' …' if len(sources) > 1 else ''}]" if sources else ""
