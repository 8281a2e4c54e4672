"""What a report shows, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernelweld.cli.code import Code
from kernelweld.cli.compiling import Built
from kernelweld.cli.layers import Block, Layer, kinds
from kernelweld.cli.times import Measured
from kernelweld.ir.report import Launches, NearMiss


@dataclass(frozen=True)
class WeldShown:
    """One distinct weld, ``count`` times in the model, in ``layers``; ``tasks`` are the words by row task.

    ``before`` is predicted for its nodes without it; ``moved`` bytes at least are read and written for
    ``rows``. ``built`` has it compiled, for each GPU asked for.
    """

    name: str
    count: int
    layers: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]
    code: tuple[Code, ...]
    before: int
    rows: int
    moved: int
    source: str
    built: tuple[Built, ...] = ()
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class MissShown:
    """Near misses that are alike but for the names of nodes: the first, and how many there are."""

    miss: NearMiss
    count: int
    code: tuple[Code, ...]


@dataclass(frozen=True)
class Shown:
    """The whole report. ``facts`` say how the target was built, ``words`` how many of a kind there are and
    how many of them are in welds, ``failures`` of passes and graph ``breaks``.
    """

    target: str
    date: str
    facts: Mapping[str, str]
    versions: Mapping[str, str]
    calls: int
    launches: Launches
    words: Mapping[str, tuple[int, int]]
    layers: tuple[Layer, ...]
    welds: tuple[WeldShown, ...]
    misses: tuple[MissShown, ...]
    seconds: Mapping[str, float]
    failures: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it. A layer's ``kind`` is equal for layers of equal launches."""
        kind = kinds(self.layers)
        return {
            "target": self.target,
            "date": self.date,
            "facts": dict(self.facts),
            "versions": dict(self.versions),
            "calls": self.calls,
            "launches": asdict(self.launches),
            "words": {k: {"found": found, "welded": welded} for k, (found, welded) in self.words.items()},
            "layers": [{**_layer(one), "kind": kind.get(one.name)} for one in self.layers],
            "welds": [_weld(weld) for weld in self.welds],
            "near_misses": [{"count": one.count, **asdict(one.miss)} for one in self.misses],
            "seconds": dict(self.seconds),
            "failures": list(self.failures),
            "breaks": list(self.breaks),
        }


def _layer(layer: Layer) -> dict[str, Any]:
    rows = {"before": layer.before, "after": layer.after}
    shown = {name: [_block(block) for block in row] for name, row in rows.items()}
    return {"name": layer.name, "number": layer.number, **shown}


def _block(block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in ("kind", "name", "module", "source", "weld")}


def _weld(weld: WeldShown) -> dict[str, Any]:
    sizes = ("rows", "layers", "tasks", "source")
    return {
        "name": weld.name,
        "count": weld.count,
        "launches": {"before": weld.before, "after": 1},
        "bytes": weld.moved,
        **{name: getattr(weld, name) for name in sizes},
        "code": [asdict(line) for line in weld.code],
        "compiled": [one.as_dict() for one in weld.built],
        "measured": [asdict(one) for one in weld.measured],
    }
