"""The GPU kernels of a torch profiler trace, told apart by where they come from: welds with their words and
the model's lines, Inductor's kernels, products, attention and the rest.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import error as ZlibError

from rich.console import Console
from rich.markup import escape

from kernelweld.cli.render import places, plain_table
from kernelweld.cli.trace_stacks import Launchers, TraceEvent
from kernelweld.codegen.names import identifier
from kernelweld.errors import BadTrace
from kernelweld.ir.report import Report, WeldReport

WELD = "weld"

#: How each kind of kernel is known, tried in order. A name that fits none is "other".
_KINDS: Mapping[str, re.Pattern[str]] = {
    "Inductor": re.compile(r"triton_(poi|red|per|tem|for|split_scan|unk)_|^triton_.*_fused"),
    "collective": re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|multimem", re.I),
    "attention": re.compile(r"flash|fmha|attention|sdpa|cudnn.*fusion|mla_", re.I),
    "product": re.compile(r"nvjet|gemm|gemv|cutlass|cublas|splitk|matmul|_mm_|wgmma", re.I),
    "copy": re.compile(r"^mem(cpy|set)\b", re.I),
    "torch": re.compile(r"at::native|at_cuda_detail|cub::"),
}
_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_SHOWN_NAME = 60
_ADVICE = "Give the file that torch.profiler's export_chrome_trace wrote, .json or .json.gz."


@dataclass(frozen=True)
class Event:
    """One kernel that ran: when it began and how long it took, in microseconds, and the innermost line of
    Python that launched it, where the trace has stacks.
    """

    name: str
    kind: str
    start: float
    us: float
    line: str | None = None


@dataclass(frozen=True)
class Row:
    """All runs of one kernel from one place. ``words`` and ``lines`` are those of its weld."""

    name: str
    kind: str
    count: int
    us: float
    words: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        shown = {"kernel": self.name, "kind": self.kind, "count": self.count, "us": round(self.us, 3)}
        return {**shown, "words": self.words, "lines": self.lines}


@dataclass(frozen=True)
class Traced:
    """The kernels of a trace by time, and the names of TARGET's welds that did not run in it."""

    rows: tuple[Row, ...]
    missing: tuple[str, ...]

    @property
    def us(self) -> float:
        return sum(row.us for row in self.rows)

    def by_kind(self) -> dict[str, tuple[int, float]]:
        """Launches and microseconds of each kind, the longest first."""
        found: dict[str, tuple[int, float]] = {}
        for row in self.rows:
            count, us = found.get(row.kind, (0, 0.0))
            found[row.kind] = count + row.count, us + row.us
        return dict(sorted(found.items(), key=lambda entry: -entry[1][1]))


def read(path: Path) -> tuple[Event, ...]:
    """The GPU kernels in a trace of ``torch.profiler`` in the order in which they began, or ``BadTrace``."""
    events = _events(path)
    try:
        launchers = Launchers(events)
        kernels = [
            _kernel(e, launchers.line_of(e)) for e in events if e.get("ph") == "X" and e.get("cat") in _ON_GPU
        ]
    except (KeyError, ValueError) as error:
        reason = f"an event of it lacks a name or a time: {error}"
        raise BadTrace(str(path), reason, _ADVICE) from error
    if not kernels:
        raise BadTrace(str(path), "no GPU kernel ran in it", "Profile with ProfilerActivity.CUDA on a GPU.")
    return tuple(sorted(kernels, key=lambda kernel: kernel.start))


def attribute(kernels: Sequence[Event], report: Report) -> Traced:
    """Gives each kernel its weld. Welds that share a kernel run in the order of the graph."""
    welds: dict[str, list[WeldReport]] = defaultdict(list)
    for weld in (weld for graph in report.graphs for weld in graph.welds):
        welds[identifier(weld.name)].append(weld)
    total = Counter(kernel.name for kernel in kernels)
    seen: Counter[str] = Counter()
    found: dict[Row, list[float]] = {}
    for kernel in kernels:
        row = _row(kernel, welds.get(kernel.name, ()), seen[kernel.name], total[kernel.name])
        found.setdefault(row, []).append(kernel.us)
        seen[kernel.name] += 1
    rows = (Row(r.name, r.kind, len(us), sum(us), r.words, r.lines) for r, us in found.items())
    missing = tuple(name for name in welds if name not in total)
    return Traced(tuple(sorted(rows, key=lambda row: -row.us)), missing)


def _row(kernel: Event, welds: Sequence[WeldReport], number: int, total: int) -> Row:
    """Where one run of a kernel belongs: to one of its welds if each ran equally often, else to all."""
    if not welds:
        return Row(kernel.name, kernel.kind, 0, 0.0, (), () if kernel.line is None else (kernel.line,))
    mine = [welds[number % len(welds)]] if total % len(welds) == 0 else welds
    words = dict.fromkeys(word for weld in mine for word in weld.words)
    lines = dict.fromkeys(line for weld in mine for line in weld.sources)
    return Row(kernel.name, WELD, 0, 0.0, tuple(words), tuple(lines))


def _kernel(event: TraceEvent, line: str | None) -> Event:
    name = str(event["name"])
    return Event(name, _kind(name), float(str(event["ts"])), float(str(event["dur"])), line)


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "other")


def _events(path: Path) -> list[TraceEvent]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            read = json.load(file)
    except (ValueError, EOFError, ZlibError, gzip.BadGzipFile) as error:
        raise BadTrace(str(path), f"it is not JSON: {error}", _ADVICE) from error
    except OSError as error:
        raise BadTrace(str(path), str(error.strerror), _ADVICE) from error
    events = read.get("traceEvents") if isinstance(read, dict) else None
    if not isinstance(events, list):
        raise BadTrace(str(path), "it is no trace: it has no traceEvents", _ADVICE)
    return [event for event in events if isinstance(event, dict)]


def show(console: Console, title: str, traced: Traced, top: int) -> None:
    """Time by kind, then the ``top`` kernels that took longest."""
    count = sum(row.count for row in traced.rows)
    console.print(f"[bold]{escape(title)}[/]: {count} kernels, {traced.us:.1f} µs on the GPU")
    kinds = plain_table("kind", "kernels", "µs", "of all")
    for kind, (launched, us) in traced.by_kind().items():
        kinds.add_row(kind, str(launched), f"{us:.1f}", _share(us, traced.us))
    console.print(kinds)
    table = plain_table("µs", "of all", "runs", "µs each", "kind", "kernel", "lines")
    for row in traced.rows[:top]:
        table.add_row(*_cells(row, traced.us))
    console.print(table)
    if len(traced.rows) > top:
        rest = sum(row.us for row in traced.rows[top:])
        console.print(f"  and {len(traced.rows) - top} more, {rest:.1f} µs; --top N shows more")
    if traced.missing:
        console.print(f"  [yellow]not in the trace[/]: {escape(', '.join(traced.missing))}")


def _cells(row: Row, total: float) -> tuple[str, ...]:
    name = row.name if len(row.name) <= _SHOWN_NAME else f"{row.name[: _SHOWN_NAME - 1]}…"
    times = (f"{row.us:.1f}", _share(row.us, total), str(row.count), f"{row.us / row.count:.2f}")
    return (*times, row.kind, escape(name), escape(places(row.lines)))


def _share(us: float, total: float) -> str:
    """A part of all time; of none at all nothing can be said."""
    return f"{us / total:.1%}" if total else "–"
