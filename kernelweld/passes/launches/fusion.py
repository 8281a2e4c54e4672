"""Which writes share a kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kernelweld.passes.launches.buffers import Buffer, Kind, Read
from kernelweld.passes.launches.sizes import Size

#: How many earlier kernels that read the same memory are tried: this keeps the time linear.
_TRIED = 8


@dataclass(frozen=True)
class Loops:
    """A loop over ``points`` around one over ``row``; ``row`` is 1 if nothing is reduced."""

    points: Size
    row: Size

    def shared(self, other: Loops) -> Loops | None:
        """Loops that do for both: equal ones, or a reduction's whose elements or rows the other runs over."""
        if self == other:
            return self
        reduction, plain = (self, other) if other.row == 1 else (other, self)
        if reduction.row == 1 or plain.row != 1:
            return None
        return reduction if plain.points in (reduction.points, reduction.points * reduction.row) else None


@dataclass(eq=False)
class Kernel:
    """Writes in one launch. No kernel reads, even through others, from one of its own rank or above."""

    loops: Loops
    rank: int
    is_library: bool
    buffers: set[Buffer] = field(default_factory=set)

    @property
    def launches(self) -> int:
        """How many launches it is: one, or those of its library call."""
        return sum(buffer.launches for buffer in self.buffers) if self.is_library else 1


def kernels(buffers: Sequence[Buffer]) -> list[Kernel]:
    """The kernels of ``buffers``, which stand in the order in which they are written."""
    fuser = _Fuser()
    for buffer in buffers:
        fuser.add(buffer)
    return list(dict.fromkeys(fuser.home[buffer] for buffer in buffers))


@dataclass
class _Fuser:
    home: dict[Buffer, Kernel] = field(default_factory=dict)
    readers: defaultdict[Read, list[Buffer]] = field(default_factory=lambda: defaultdict(list))

    def add(self, buffer: Buffer) -> None:
        """Puts ``buffer`` into the first kernel that it can join, or into one of its own."""
        written = {read.buffer for read in buffer.reads if read.buffer in self.home}
        sources = list(dict.fromkeys(self.home[source] for source in written))
        if not any(self._join(buffer, kernel, sources) for kernel in self._candidates(buffer, sources)):
            self._open(buffer, sources)
        for read in buffer.reads:
            self.readers[read].append(buffer)

    def _candidates(self, buffer: Buffer, sources: Iterable[Kernel]) -> list[Kernel]:
        """Kernels read from, the highest rank first, then those that read the same, the latest first."""
        if buffer.kind is Kind.LIBRARY:
            return []
        vertical = sorted(sources, key=lambda kernel: -kernel.rank)
        horizontal = (self.home[b] for read in buffer.reads for b in self.readers[read][: -_TRIED - 1 : -1])
        return list(dict.fromkeys(kernel for kernel in (*vertical, *horizontal) if not kernel.is_library))

    def _join(self, buffer: Buffer, kernel: Kernel, sources: Collection[Kernel]) -> bool:
        """Joins ``kernel`` if loops allow and no cycle arises; kernels of its rank that are read merge."""
        beside = [source for source in sources if source is not kernel and source.rank >= kernel.rank]
        if any(source.rank > kernel.rank or source.is_library for source in beside):
            return False
        members = {b for k in (kernel, *beside) for b in k.buffers}
        if any(read.way for read in buffer.reads if read.buffer in members):
            return False  # it reads what other iterations write
        loops = _shared(
            [kernel.loops, *(source.loops for source in beside), Loops(buffer.points, buffer.row)]
        )
        if loops is None:
            return False
        kernel.loops, kernel.buffers = loops, members | {buffer}
        self.home.update(dict.fromkeys(kernel.buffers, kernel) if beside else {buffer: kernel})
        return True

    def _open(self, buffer: Buffer, sources: Iterable[Kernel]) -> None:
        rank = 1 + max((source.rank for source in sources), default=0)
        loops = Loops(buffer.points, buffer.row)
        self.home[buffer] = Kernel(loops, rank, buffer.kind is Kind.LIBRARY, {buffer})


def _shared(all_loops: Sequence[Loops]) -> Loops | None:
    result: Loops | None = all_loops[0]
    for loops in all_loops[1:]:
        result = None if result is None else result.shared(loops)
    return result
