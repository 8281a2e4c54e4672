"""Times that were measured before: by ``bench --json``, and by ``bench --tune`` as it is kept here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelweld.cli.benching import Figures
from kernelweld.codegen.cache import cache_dir
from kernelweld.codegen.task import WeldProgram
from kernelweld.codegen.tuning import Tuning, kernel_key, range_of
from kernelweld.codegen.tuning_file import read_tuning


@dataclass(frozen=True)
class Measured:
    """Times of a weld's kernel in microseconds by how it ran, on one GPU, from one place.

    ``copy_fraction`` is its speed over that of a copy of as many bytes; None where that is not known.
    """

    gpu: str
    origin: str
    us: Mapping[str, float]
    copy_fraction: float | None = None


@dataclass(frozen=True)
class Timed:
    """One weld of a file of ``bench``, with what tells it from others."""

    name: str
    rows: int
    moved: int
    before: int
    measured: Measured

    def is_of(self, figure: Figures) -> bool:
        own = (self.name, self.rows, self.moved, self.before)
        return own == (figure.name, figure.rows, figure.moved, figure.launches)


@dataclass
class Times:
    """All times that are known. Each of a file is given once: the next of equal ones is another weld's."""

    timed: list[Timed] = field(default_factory=list)
    tunings: Sequence[Tuning] = ()

    @classmethod
    def known(cls, bench: Path | None) -> Times:
        """From the file ``bench``, if there is one, and from what ``bench --tune`` kept.

        Raises OSError, and ValueError for a file of another kind, with the reason.
        """
        return cls([] if bench is None else list(_read(bench)), tuple(_tunings()))

    def of(self, program: WeldProgram, figure: Figures) -> tuple[Measured, ...]:
        """The times of one weld, the file's first."""
        found = next((one for one in self.timed if one.is_of(figure)), None)
        if found is None:
            return tuple(self._tuned(program, figure.rows))
        self.timed.remove(found)
        return found.measured, *self._tuned(program, figure.rows)

    def _tuned(self, program: WeldProgram, rows: int) -> Iterator[Measured]:
        key = kernel_key(program) if self.tunings else ""
        for tuning in self.tunings:
            for entry in tuning.entries:
                if (entry.kernel, entry.lowest) == (key, range_of(rows)):
                    us = {"kernelweld": entry.default_us, "tuned": entry.us}
                    yield Measured(tuning.gpu, "bench --tune", us)


def _read(path: Path) -> Iterator[Timed]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        gpu = str(record.get("gpu", "GPU unknown"))
        yield from [_timed(weld, gpu) for run in record["runs"] for weld in run["welds"] if "us" in weld]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not what kernelweld bench --json printed") from error


def _timed(weld: Mapping[str, Any], gpu: str) -> Timed:
    us = {str(name): float(time) for name, time in weld["us"].items()}
    fraction = weld.get("copy_fraction")
    measured = Measured(gpu, "bench", us, None if fraction is None else float(fraction))
    return Timed(weld["name"], weld["rows"], weld["bytes"], weld["launches"]["before"], measured)


def _tunings() -> Iterator[Tuning]:
    """Those of every GPU that was measured on this machine."""
    for path in sorted((cache_dir() / "tuning").glob("*.json")):
        try:
            gpu = str(json.loads(path.read_text(encoding="utf-8"))["gpu"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # ``read_tuning`` warns of a damaged file when it is used
        if (tuning := read_tuning(gpu)).entries:
            yield tuning
