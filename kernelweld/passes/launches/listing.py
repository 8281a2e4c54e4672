"""The predicted launches one by one: what each computes, in the order of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from kernelweld.passes.launches import without_words
from kernelweld.passes.launches.buffers import realize
from kernelweld.passes.launches.fusion import Kernel, fused
from kernelweld.passes.launches.sizes import is_tensor
from kernelweld.passes.launches.traits import Trait, trait_of

_NO_WORK = frozenset({Trait.SAME, Trait.PART, Trait.UNSET})


@dataclass(frozen=True)
class Launch:
    """One predicted launch: ``nodes`` are what it computes, views left out, ``writes`` those of them that it
    writes to memory, both in the order of the graph. A call of a library is one node, whatever it takes.
    """

    nodes: tuple[fx.Node, ...]
    writes: tuple[fx.Node, ...]
    is_library: bool


def listed(graph: fx.Graph) -> tuple[Launch, ...]:
    """The launches that ``predict`` counts, in an order in which they can run."""
    plain = without_words(graph)
    place = {node: i for i, node in enumerate(plain.nodes)}
    kernels = fused(realize(plain))
    written = {node for kernel in kernels for node in _written(kernel)}
    kernels.sort(key=lambda kernel: min(place[node] for node in _written(kernel)))
    found = []
    for kernel in _runnable(kernels):
        times = sum(buffer.launches for buffer in kernel.buffers) or 1
        found += [_launch(kernel, written, place.__getitem__)] * times
    return tuple(found)


def one_by_one(graph: fx.Graph) -> tuple[Launch, ...]:
    """The launches of ``graph`` with nothing fused: each operator that works is one; views are none."""
    working = (node for node in graph.nodes if node.op == "call_function" and is_tensor(node))
    return tuple(
        Launch((node,), (node,), True)
        for node in working
        if trait_of(node) not in _NO_WORK and any(map(is_tensor, node.all_input_nodes))
    )


def _runnable(kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    """``kernels`` as they stand, but each after those that it reads from."""
    home = {buffer: kernel for kernel in kernels for buffer in kernel.buffers}
    done = set[Kernel]()
    for kernel in kernels:
        todo = [kernel]
        while todo:
            reads = (home.get(read.buffer) for buffer in todo[-1].buffers for read in buffer.reads)
            first = next((one for one in reads if one not in (None, todo[-1]) and one not in done), None)
            if first is not None:
                todo.append(first)
            elif (last := todo.pop()) not in done:
                done.add(last)
                yield last


def _launch(kernel: Kernel, written: Collection[fx.Node], place: Callable[[fx.Node], int]) -> Launch:
    own = tuple(sorted(_written(kernel), key=place))
    if kernel.is_library:
        return Launch(own, own, True)
    nodes = sorted({*own, *_inlined(own, written)}, key=place)
    working = tuple(node for node in nodes if trait_of(node) not in _NO_WORK)
    return Launch(working or own, own, False)


def _written(kernel: Kernel) -> list[fx.Node]:
    return [buffer.node for buffer in kernel.buffers if buffer.node is not None]


def _inlined(roots: Sequence[fx.Node], written: Collection[fx.Node]) -> Iterator[fx.Node]:
    """The calls that are computed again in a kernel that writes ``roots``: back to what is in memory."""
    seen, todo = set(roots), [source for root in roots for source in root.all_input_nodes]
    while todo:
        node = todo.pop()
        if node.op == "call_function" and node not in written and node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
            yield node
