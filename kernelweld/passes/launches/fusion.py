"""Which writes share a kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernelweld.passes.launches.buffers import Buffer, Kind, Read
from kernelweld.passes.launches.sizes import Size

#: How many earlier kernels that read the same memory are tried: this keeps the time linear.
_TRIED = 8


@dataclass(eq=False)
class Kernel:
    """Writes in one launch, a loop over ``points`` around one over ``row``; ``rank``: above what it reads."""

    points: Size
    row: Size
    rank: int
    buffers: set[Buffer] = field(default_factory=set)


def count_kernels(buffers: Sequence[Buffer]) -> int:
    """The launches of ``buffers``, which stand in the order in which they are written."""
    fuser = _Fuser()
    for buffer in buffers:
        fuser.add(buffer)
    library = sum(buffer.launches for buffer in buffers)
    return library + sum(not isinstance(kernel, _Library) for kernel in fuser.kernels)


class _Library(Kernel):
    """A library call; nothing joins it."""


@dataclass
class _Fuser:
    kernels: list[Kernel] = field(default_factory=list)
    home: dict[Buffer, Kernel] = field(default_factory=dict)
    readers: defaultdict[Read, list[Kernel]] = field(default_factory=lambda: defaultdict(list))

    def add(self, buffer: Buffer) -> None:
        sources = {read.buffer: self.home[read.buffer] for read in buffer.reads if read.buffer in self.home}
        candidates = () if buffer.kind is Kind.LIBRARY else self._candidates(buffer, sources.values())
        kernel = next((k for k in candidates if self._joins(buffer, k, sources.values())), None)
        if kernel is None:
            kernel = self._new(buffer, sources.values())
        _grow(kernel, buffer)
        self.home[buffer] = kernel
        for read in buffer.reads:
            if kernel not in self.readers[read][-_TRIED:]:
                self.readers[read].append(kernel)

    def _candidates(self, buffer: Buffer, sources: Iterable[Kernel]) -> list[Kernel]:
        """Kernels read from, the latest first, then those that read the same, the latest first."""
        vertical = sorted(sources, key=lambda kernel: -kernel.rank)
        horizontal = [k for read in buffer.reads for k in reversed(self.readers[read][-_TRIED:])]
        found = (k for k in (*vertical, *horizontal) if not isinstance(k, _Library))
        return list(dict.fromkeys(found))

    def _joins(self, buffer: Buffer, kernel: Kernel, sources: Iterable[Kernel]) -> bool:
        """Whether ``buffer`` fits the loops of ``kernel``, reads from it in place, and closes no cycle."""
        if any(source is not kernel and source.rank >= kernel.rank for source in sources):
            return False
        if any(read.buffer in kernel.buffers and read.way for read in buffer.reads):
            return False
        return fits(buffer, kernel)

    def _new(self, buffer: Buffer, sources: Iterable[Kernel]) -> Kernel:
        rank = 1 + max((source.rank for source in sources), default=0)
        kind = _Library if buffer.kind is Kind.LIBRARY else Kernel
        self.kernels.append(kind(buffer.points, buffer.row, rank))
        return self.kernels[-1]


def fits(buffer: Buffer, kernel: Kernel) -> bool:
    """Whether the loops of ``buffer`` are those of ``kernel``, or the elements or rows of its reduction."""
    if buffer.row == 1 and kernel.row == 1:
        return buffer.points == kernel.points
    if buffer.row == 1:
        return buffer.points in (kernel.points, kernel.points * kernel.row)
    if kernel.row == 1:
        return kernel.points in (buffer.points, buffer.points * buffer.row)
    return bool((buffer.points, buffer.row) == (kernel.points, kernel.row))


def _grow(kernel: Kernel, buffer: Buffer) -> None:
    if buffer.row != 1:
        kernel.points, kernel.row = buffer.points, buffer.row
    kernel.buffers.add(buffer)
