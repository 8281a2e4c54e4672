"""A weld taken out of its graph: its kernel and its original nodes, to be run on drawn inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch._prims_common import clone_preserve_strides

from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.task import WeldProgram
from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.example_inputs import Input, concrete, example_inputs
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.held import physical_order
from kernelweld.passes.tasks.views import base_of, is_view
from kernelweld.passes.verification.truth import original_graph
from kernelweld.passes.weld import Weld

#: Besides views, what an index may go through.
_CARRIED = frozenset(
    {torch.ops.aten.slice.Tensor, torch.ops.aten.select.int, torch.ops.prims.convert_element_type.default}
)


@dataclass(frozen=True)
class Buffer:
    """An output: ``shape`` is that of memory, from the largest stride to the smallest, and ``order`` the
    dimension of the value that each of them is.
    """

    argument: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def unwritten(self, device: torch.device | str | None) -> torch.Tensor:
        """Memory of NaN, or of the smallest integer, so that an element not written shows."""
        value = float("nan") if self.dtype.is_floating_point else torch.iinfo(self.dtype).min
        return torch.full(self.shape, value, dtype=self.dtype, device=device or self.device)

    def logical(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.permute([self.order.index(i) for i in range(len(self.order))])


@dataclass(frozen=True)
class CachePart:
    """A cache that is written, by its place among the inputs, and the part of it that the write sees."""

    argument: str
    cache: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def of(self, cache: torch.Tensor) -> torch.Tensor:
        return cache.as_strided(self.shape, self.strides, self.start)


@dataclass(frozen=True)
class Places:
    """Where one write goes: the indexed sizes, and for each index the input it is a view or a cast of, as
    its place among the inputs, its shape and its dtype. A single index of two sizes is a slot.
    """

    sizes: tuple[int, ...]
    indices: tuple[tuple[int, tuple[int, ...], torch.dtype] | None, ...]

    def draw(self, seed: int) -> dict[int, torch.Tensor]:
        """Indices of places of which no two are the same."""
        slots = torch.randperm(math.prod(self.sizes), generator=torch.Generator().manual_seed(seed))
        split = len(self.indices) > 1
        places = (slots // self.sizes[1], slots % self.sizes[1]) if split else (slots,)
        found = {}
        for index, place in zip(self.indices, places, strict=True):
            if index is not None and math.prod(index[1]) <= len(place):
                found[index[0]] = place[: math.prod(index[1])].reshape(index[1]).to(index[2])
        return found


@dataclass(frozen=True)
class Draw:
    """One draw: ``values`` for the original nodes, ``tensors`` by argument for the kernel, which owns what
    it writes.
    """

    values: tuple[Input, ...]
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Specimen:
    """One weld, without a node of its graph.

    ``original`` computes the outputs and then the written caches from the inputs; ``arguments`` are the
    names under which the kernel reads them, None for what is only written. ``symbols`` are sizes as traced.
    """

    name: str
    program: WeldProgram
    original: fx.GraphModule
    arguments: tuple[str | None, ...]
    buffers: tuple[Buffer, ...]
    caches: tuple[CachePart, ...]
    places: tuple[Places, ...]
    symbols: Mapping[str, int]

    @property
    def results(self) -> tuple[str, ...]:
        """The names of what the kernel writes, in the order of ``outputs``."""
        names = [buffer.argument for buffer in self.buffers] + [part.argument for part in self.caches]
        return tuple(name.removesuffix("_ptr") for name in names)

    def draw(self, seed: int = 0, device: torch.device | str | None = None) -> Draw:
        """Random inputs, and fresh memory for the outputs, on ``device`` or where they were traced."""
        values = example_inputs(self.original.graph, seed, device)
        for places in self.places:
            for index, drawn in places.draw(seed).items():
                values[index] = drawn.to(values[index].device)  # type: ignore[union-attr]
        tensors = {n: v for n, v in zip(self.arguments, values, strict=False) if n is not None}  # then sizes
        tensors |= {buffer.argument: buffer.unwritten(device) for buffer in self.buffers}
        tensors |= {part.argument: clone_preserve_strides(values[part.cache]) for part in self.caches}
        return Draw(tuple(values), tensors)  # type: ignore[arg-type]

    def launch(self, draw: Draw, launch: Launch | None = None) -> None:
        """Runs the kernel on ``draw``, launched as ``launch`` says or as ``choose`` does."""
        launch_direct(emit(self.program, launch), draw.tensors, self.symbols)

    def outputs(self, draw: Draw) -> list[torch.Tensor]:
        """What the kernel wrote to ``draw``, in the shape of the original results."""
        written = [buffer.logical(draw.tensors[buffer.argument]) for buffer in self.buffers]
        return written + [part.of(draw.tensors[part.argument]) for part in self.caches]


def specimen(weld: Weld) -> Specimen:
    """``weld``, whose steps must still stand in their graph, taken out of it."""
    program, arguments = program_of(weld)
    writes = list(arguments.caches)
    inputs = list(dict.fromkeys([*arguments.inputs, *map(_cache_of, writes)]))
    position = {node: i for i, node in enumerate(inputs)}
    return Specimen(
        weld.name,
        program,
        original_graph(weld.steps, inputs, [*arguments.outputs, *writes]),
        tuple(map(arguments.inputs.get, inputs)),
        tuple(_buffer(node, name) for node, name in arguments.outputs.items()),
        tuple(_part(write, name, position[_cache_of(write)]) for write, name in arguments.caches.items()),
        tuple(_places(write, position) for write in writes),
        _sizes(weld),
    )


def _cache_of(write: fx.Node) -> fx.Node:
    return base_of(write.args[0])  # type: ignore[arg-type]


def _buffer(node: fx.Node, argument: str) -> Buffer:
    value, order = node.meta["val"], physical_order(node)
    shape = tuple(concrete(value.shape[i]) for i in order)
    return Buffer(argument, shape, order, value.dtype, value.device)


def _part(write: fx.Node, argument: str, cache: int) -> CachePart:
    value = write.args[0].meta["val"]  # type: ignore[union-attr]
    start = concrete(value.storage_offset()) - concrete(_cache_of(write).meta["val"].storage_offset())
    return CachePart(argument, cache, _concrete(value.shape), _concrete(value.stride()), start)


def _places(write: fx.Node, position: Mapping[fx.Node, int]) -> Places:
    word, (cache, _, *indices) = cast(CacheWrite, word_of(write)), write.args
    shape = _concrete(cache.meta["val"].shape)  # type: ignore[union-attr]
    sources = [_source(cast(fx.Node, index)) for index in indices if index is not None]
    described = [
        (position[s], _concrete(s.meta["val"].shape), s.meta["val"].dtype) if s in position else None
        for s in sources
    ]
    sizes = tuple(shape[dim] for dim in word.dims)
    return Places(sizes, tuple(described[: len(sizes)]))


def _source(index: fx.Node) -> fx.Node:
    """What ``index`` is a view or a cast of."""
    while index.op == "call_function" and (is_view(index) or index.target in _CARRIED):
        index = index.args[0]  # type: ignore[assignment]
    return index


def _concrete(sizes: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    return tuple(map(concrete, sizes))


def _sizes(weld: Weld) -> dict[str, int]:
    """The value of every symbol in the shapes and strides around a weld, as it was traced."""
    nodes: Sequence[fx.Node] = [n for step in weld.steps for n in (step, *step.all_input_nodes)]
    sizes = [s for n in nodes for s in (*n.meta["val"].shape, *n.meta["val"].stride())]
    symbolic = [s for s in sizes if isinstance(s, torch.SymInt)]
    if not symbolic:
        return {}
    environment = symbolic[0].node.shape_env
    names = ("var_to_hint", "backed_var_to_val", "var_to_val")  # by the version of torch
    values = next(filter(None, (getattr(environment, name, None) for name in names)))
    return {symbol.name: int(value) for symbol, value in values.items()}
