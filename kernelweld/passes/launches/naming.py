"""What predicted kernels compute, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.ir.printer import operation
from kernelweld.passes.launches.buffers import Buffer, Realized
from kernelweld.passes.launches.fusion import Kernel
from kernelweld.passes.launches.traits import Trait, trait_of

_VIEWS = frozenset({Trait.SAME, Trait.PART, Trait.UNSET})


@dataclass(frozen=True)
class Launch:
    """A kernel by what it computes; ``count`` is more than one for library calls of several kernels."""

    text: str
    count: int = 1

    def __str__(self) -> str:
        return self.text if self.count == 1 else f"{self.text} ({self.count} launches)"


def named(kernels: Sequence[Kernel], found: Realized) -> tuple[Launch, ...]:
    """``kernels`` by the operators that they call, in the order of the graph; views are none of them.

    An operator that several kernels compute for themselves is in all of them.
    """
    return tuple(map(_Namer(found).launch, (kernel for kernel in kernels if kernel.launches)))


class _Namer:
    def __init__(self, found: Realized) -> None:
        self._views = found.views
        self._place = {node: i for i, node in enumerate(found.views)}
        self._writers: dict[Buffer, fx.Node] = {}
        for node, view in found.views.items():
            if view.value.buffer is not None:
                self._writers.setdefault(view.value.buffer, node)

    def launch(self, kernel: Kernel) -> Launch:
        writers = (self._writers[buffer] for buffer in kernel.buffers if buffer in self._writers)
        nodes = {node for writer in writers for node in self._computed(writer)}
        calls = (operation(node) for node in sorted(nodes, key=self._place.__getitem__))
        return Launch(", ".join(dict.fromkeys(calls)), kernel.launches)

    def _computed(self, writer: fx.Node) -> Iterator[fx.Node]:
        """The calls that are computed where ``writer`` is: its own, and those of its operands that are not
        in memory.
        """
        waiting, seen = [writer], {writer}
        while waiting:
            node = waiting.pop()
            if trait_of(node) not in _VIEWS:
                yield node
            inlined = [one for one in node.all_input_nodes if one not in seen and self._is_inlined(one)]
            waiting += inlined
            seen.update(inlined)

    def _is_inlined(self, node: fx.Node) -> bool:
        view = self._views.get(node)
        return view is not None and view.value.buffer is None
