"""The welds of a target, each timed by itself beside the nodes it replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.markup import escape
from torch import fx

from kernelweld.cli.render import launches, plain_table
from kernelweld.cli.tuning import Search, Timer
from kernelweld.cli.welded import Welded, on_device
from kernelweld.codegen.rows import most_rows
from kernelweld.codegen.timing import copy_bandwidth, microseconds, rotations
from kernelweld.codegen.traffic import moved_bytes
from kernelweld.codegen.tuning import Entry
from kernelweld.passes.launches import predict
from kernelweld.passes.verification.specimen import Specimen

aten = torch.ops.aten

_GB_PER_S = 1e-3  # of one byte per microsecond


@dataclass(frozen=True)
class Figures:
    """One weld: ``rows`` of its largest task, ``moved`` bytes at least, the launches that are predicted for
    its nodes without it, and where it was timed microseconds, its own and those of its nodes.
    """

    name: str
    count: int
    rows: int
    moved: int
    launches: int
    us: Mapping[str, float] = field(default_factory=dict)
    copy_fraction: float | None = None

    @property
    def gb_per_s(self) -> float | None:
        return self.moved / self.us["kernelweld"] * _GB_PER_S if self.us else None

    def as_dict(self) -> dict[str, object]:
        """The figures as JSON has them; those that were not taken are absent."""
        shown: dict[str, object] = {
            "name": self.name,
            "count": self.count,
            "rows": self.rows,
            "bytes": self.moved,
            "launches": {"before": self.launches, "after": 1},
        }
        taken = {"us": dict(self.us), "gb_per_s": self.gb_per_s, "copy_fraction": self.copy_fraction}
        return shown | (taken if self.us else {})


@dataclass(frozen=True)
class Bench:
    """How welds are timed. ``bandwidth`` is that of a copy, in bytes per microsecond. With ``tune`` other
    launches are tried too, and what is found is kept in ``entries``.
    """

    bandwidth: float
    timer: Timer = microseconds
    device: str = "cuda"
    inductor: bool = False
    tune: bool = False
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def on_gpu(cls, *, inductor: bool = False, tune: bool = False) -> Bench:
        """On the current GPU, whose copy bandwidth is measured first."""
        return cls(copy_bandwidth(), inductor=inductor, tune=tune)

    def figures(self, one: Specimen, count: int) -> Figures:
        """Times the kernel of ``one`` and its original nodes on the same draws."""
        plain = figures(one, count)
        draws = [one.draw(seed, self.device) for seed in range(rotations(plain.moved))]
        original = eager(one.original, self.device)
        us = {"kernelweld": self.timer(one.launch, [(draw,) for draw in draws])}
        if self.tune:  # before cache writes of the original nodes change what was drawn
            self.entries.append(Search(one, draws, self.timer).entry())
            us["tuned"] = self.entries[-1].us
        values = [draw.values for draw in draws]
        with torch.no_grad():
            us["eager"] = self.timer(original, values)
            if self.inductor:
                us["inductor"] = self.timer(torch.compile(original, dynamic=False), values)
        fraction = plain.moved / us["kernelweld"] / self.bandwidth
        return Figures(one.name, count, plain.rows, plain.moved, plain.launches, us, fraction)


def figures(one: Specimen, count: int) -> Figures:
    """What is known of a weld without running it."""
    rows = _at(most_rows(one.program), one)
    moved = _at(moved_bytes(one.program), one)
    return Figures(one.name, count, rows, moved, predict(one.original.graph))


def _at(size: object, one: Specimen) -> int:
    """A size at the sizes that ``one`` was traced with."""
    return int(size.subs({s: one.symbols[s.name] for s in size.free_symbols}))  # type: ignore[attr-defined]


def eager(gm: fx.GraphModule, device: str) -> fx.GraphModule:
    """``gm`` on ``device``, with cache writes in place: functional ones would copy the cache, which no model
    does.
    """
    moved = on_device(gm, device)
    for node in moved.graph.nodes:
        if node.target in (aten.index_put.default, aten._unsafe_index_put.default):
            node.target = aten.index_put_.default
    moved.recompile()
    return moved


def show(console: Console, title: str, found: Welded, rows: Sequence[Figures]) -> None:
    """Launches of the graphs, and one line a weld."""
    console.print(f"[bold]{escape(title)}[/]")
    for graph in found.graphs:
        console.print(f"  launches  {launches(graph, found.layers)}")
    if not rows:
        console.print("  no welds")
        return
    table = plain_table("welds", "kernel", "rows", "bytes", "launches", *_columns(rows))
    for row in rows:
        table.add_row(f"{row.count} ×", escape(row.name), str(row.rows), *_cells(row))
    console.print(table)


def _columns(rows: Sequence[Figures]) -> tuple[str, ...]:
    if not rows[0].us:
        return ()
    return "µs", "GB/s", "of copy", *(f"{name} µs" for name in rows[0].us if name != "kernelweld")


def _cells(row: Figures) -> Iterator[str]:
    yield f"{row.moved:,}"
    yield f"{row.launches} → 1"
    if row.us:
        yield f"{row.us['kernelweld']:.2f}"
        yield f"{row.gb_per_s:.0f}"
        yield f"{row.copy_fraction:.0%}"
        yield from (f"{us:.2f}" for name, us in row.us.items() if name != "kernelweld")
