"""The typed report: what was recognised, what was welded, what was not and why, and the launches
before and after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


#: What decided against a word or a weld: ``pattern`` (the nodes are not the word), ``operator`` (a call that
#: is not read), ``legality`` (no kernel can hold the word), ``cost`` (a kernel of its own would be more
#: launches), ``numerics`` (the kernel broke its contract), ``layout`` (welded, and then copied or padded).
Rule: TypeAlias = Literal["pattern", "operator", "legality", "cost", "numerics", "layout"]


@dataclass(frozen=True)
class NearMiss:
    """An anchor that was found and not raised, or a word that was not welded: where, the reason in words, and
    what to change.

    ``source`` is the model's line of the anchor. ``node`` is the node at fault, ``node_source`` its line;
    both are the anchor's where nothing else is to blame.
    """

    anchor: str
    kind: str
    source: str | None
    reason: str
    rule: Rule = "pattern"
    node: str = ""
    node_source: str | None = None
    remedy: str = ""


@dataclass(frozen=True)
class WeldReport:
    """One weld: its kernel's name, its words in order, the model's source lines it replaces, its row
    tasks.
    """

    name: str
    words: tuple[str, ...]
    sources: tuple[str, ...]
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Launches:
    """Predicted kernel launches of one run of the graph."""

    before: int
    after: int


@dataclass(frozen=True)
class GraphReport:
    """One graph. ``nodes`` counts calls before the passes; ``seconds`` is the time of each pass."""

    nodes: int
    words: Mapping[str, int]
    near_misses: tuple[NearMiss, ...]
    welds: tuple[WeldReport, ...]
    launches: Launches
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All graphs of one compiled model, in the order in which they were compiled."""

    graphs: tuple[GraphReport, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[str]:
        """The report on a rich console: ``rich.print(report)``."""
        from kernelweld.tables import show_graph

        for number, graph in enumerate(self.graphs, 1):
            show_graph(console, f"graph {number}", graph, None)
        yield from () if self.graphs else ("no graph was compiled yet",)

    def __str__(self) -> str:
        """The same tables as plain text: ``print(report)``."""
        from rich.console import Console

        console = Console(width=160, no_color=True, force_terminal=False, highlight=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get()

    def to_json(self) -> str:
        """The report as JSON: ``{"graphs": [{"nodes", "words", "near_misses", "welds", "launches",
        "seconds"}]}``.
        """
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of :meth:`to_json`."""
        return cls(tuple(_graph(g) for g in json.loads(text)["graphs"]))


def _graph(g: dict) -> GraphReport:  # type: ignore[type-arg]
    misses = tuple(NearMiss(**m) for m in g["near_misses"])
    welds = tuple(
        WeldReport(w["name"], tuple(w["words"]), tuple(w["sources"]), tuple(w["tasks"])) for w in g["welds"]
    )
    return GraphReport(g["nodes"], g["words"], misses, welds, Launches(**g["launches"]), g["seconds"])
