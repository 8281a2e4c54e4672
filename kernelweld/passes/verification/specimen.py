"""A weld taken out of its graph: its kernel and its original nodes, to be run on drawn inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import sympy
import torch
from torch import fx
from torch._prims_common import clone_preserve_strides

from kernelweld.codegen.device import launch_on
from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.task import WeldProgram
from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.example_inputs import Input, concrete, example_inputs
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.builder import Arguments
from kernelweld.passes.tasks.caches import part_of, returns_whole, target_of
from kernelweld.passes.tasks.held import memory_size, memory_strides
from kernelweld.passes.tasks.steps import is_write
from kernelweld.passes.tasks.views import is_view
from kernelweld.passes.verification.truth import original_graph, run_float64
from kernelweld.passes.weld import Weld

#: Besides views, what an index may go through.
_CARRIED = frozenset(
    {torch.ops.aten.slice.Tensor, torch.ops.aten.select.int, torch.ops.prims.convert_element_type.default}
)


@dataclass(frozen=True)
class Buffer:
    """An output: how it lies in memory of ``size`` elements."""

    argument: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    dtype: torch.dtype
    device: torch.device

    def unwritten(self, device: torch.device | str | None) -> torch.Tensor:
        """Memory of NaN, or of the smallest integer, so that an element not written shows."""
        value = float("nan") if self.dtype.is_floating_point else torch.iinfo(self.dtype).min
        return torch.full((self.size,), value, dtype=self.dtype, device=device or self.device)

    def logical(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.as_strided(self.shape, self.strides)


@dataclass(frozen=True)
class CachePart:
    """One write: the tensor that it changes, by its place among the inputs, and the part that the write sees,
    in elements of the dtype that it stores. ``whole``: it returns all of the tensor and not only the part.
    """

    argument: str
    cache: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    word: CacheWrite
    operands: int
    whole: bool

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of the tensor."""
        memory = whole.as_strided((_extent(whole),), (1,)).view(self.dtype)
        return memory.as_strided(self.shape, self.strides, memory.storage_offset() + self.start)

    def returned(self, result: torch.Tensor) -> torch.Tensor:
        """The part, of what the original write returns."""
        if self.whole:
            return self.of(result)
        return result if result.dtype == self.dtype else result.view(self.dtype)

    def truth(self, before: torch.Tensor, value: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
        """The part with rows of float64 written to what it held: bytes have no value in float64."""
        absent = [None] * (2 - len(places))
        return self.word.reference(self.of(before).double(), value.double(), *places, *absent)


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

    ``original`` computes the outputs and then the written caches from the inputs, ``computed`` the outputs
    and then the operands of each write; both take the sizes that their views need behind the inputs.
    ``arguments`` are the names under which the kernel reads the inputs, None for what is only written.
    ``symbols`` are sizes as traced.
    """

    name: str
    program: WeldProgram
    original: fx.GraphModule
    computed: fx.GraphModule
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
        written = {part.argument: part.cache for part in self.caches}
        tensors |= {name: clone_preserve_strides(values[cache]) for name, cache in written.items()}
        return Draw(tuple(values), tensors)  # type: ignore[arg-type]

    def launch(self, draw: Draw, launch: Launch | None = None) -> None:
        """Runs the kernel on ``draw``, launched as ``launch`` says or as it would be on that device."""
        device = next(iter(draw.tensors.values())).device
        chosen = launch or launch_on(device, self.program)
        launch_direct(emit(self.program, chosen), draw.tensors, self.symbols)

    def originals(self, draw: Draw) -> list[torch.Tensor]:
        """What the original nodes compute: as ``outputs``."""
        cut, results = len(self.buffers), self.original(*draw.values)
        parts = (part.returned(x) for part, x in zip(self.caches, results[cut:], strict=True))
        return [*results[:cut], *parts]

    def truth(self, draw: Draw) -> list[torch.Tensor]:
        """The same in float64."""
        inputs = draw.values[: len(self.arguments)]
        found = iter(run_float64(self.computed, (*inputs, *_extra_sizes(self.computed, len(inputs)))))
        results = list(islice(found, len(self.buffers)))
        for part in self.caches:
            before = cast(torch.Tensor, inputs[part.cache])
            results.append(part.truth(before, *islice(found, part.operands)))
        return results

    def outputs(self, draw: Draw) -> list[torch.Tensor]:
        """What the kernel wrote to ``draw``, in the shape of the original results."""
        written = [buffer.logical(draw.tensors[buffer.argument]) for buffer in self.buffers]
        return written + [part.of(draw.tensors[part.argument]) for part in self.caches]


def specimen(weld: Weld) -> Specimen:
    """``weld``, whose steps must still stand in their graph, taken out of it."""
    program, arguments = program_of(weld)
    writes = [node for node in weld.steps if is_write(node)]
    inputs = list(dict.fromkeys([*arguments.inputs, *arguments.caches]))
    position, symbols = {node: i for i, node in enumerate(inputs)}, _sizes(weld)
    targets = {write: target_of(write, weld.steps) for write in writes}
    return Specimen(
        weld.name,
        program,
        original_graph(weld.steps, inputs, [*arguments.outputs, *writes]),
        _computed(weld, inputs, arguments, writes),
        tuple(map(arguments.inputs.get, inputs)),
        tuple(_buffer(node, name, symbols) for node, name in arguments.outputs.items()),
        tuple(_part(w, arguments.update(w), position[targets[w]], symbols) for w in writes),
        tuple(_places(write, position) for write in writes),
        symbols,
    )


def _computed(
    weld: Weld, inputs: Sequence[fx.Node], arguments: Arguments, writes: Sequence[fx.Node]
) -> fx.GraphModule:
    """The outputs and the operands of each write, as the original nodes compute them."""
    steps = [node for node in weld.steps if not is_write(node)]
    rows = [node for write in writes for node in _operands(write)]
    return original_graph(steps, inputs, [*arguments.outputs, *rows])


def _operands(write: fx.Node) -> list[fx.Node]:
    """The rows and the places of a write."""
    return [node for node in write.args[1:4] if isinstance(node, fx.Node)]


def _extra_sizes(gm: fx.GraphModule, inputs: int) -> list[int]:
    """The sizes that ``gm`` takes behind its inputs."""
    return [concrete(node.meta["val"]) for node in gm.graph.find_nodes(op="placeholder")[inputs:]]


def _buffer(node: fx.Node, argument: str, symbols: Mapping[str, int]) -> Buffer:
    value = node.meta["val"]
    strides, (size,) = _numbers(symbols, *memory_strides(node)), _numbers(symbols, memory_size(node))
    return Buffer(argument, _concrete(value.shape), strides, size, value.dtype, value.device)


def _numbers(symbols: Mapping[str, int], *extents: sympy.Expr) -> tuple[int, ...]:
    """``extents`` as they were traced."""
    return tuple(int(e.subs({symbol: symbols[symbol.name] for symbol in e.free_symbols})) for e in extents)


def _part(write: fx.Node, argument: str, cache: int, symbols: Mapping[str, int]) -> CachePart:
    part, word = part_of(write), cast(CacheWrite, word_of(write))
    (start,) = _numbers(symbols, part.offset)
    shape, strides = (_numbers(symbols, *extents) for extents in (part.sizes, part.strides))
    operands = len(_operands(write))
    whole = returns_whole(write)
    return CachePart(argument, cache, part.dtype, shape, strides, start, word, operands, whole)


def _extent(x: torch.Tensor) -> int:
    """The elements of memory from the first element of ``x`` to its last."""
    steps = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if x.numel() else 0


def _places(write: fx.Node, position: Mapping[fx.Node, int]) -> Places:
    word, (cache, _, *indices) = cast(CacheWrite, word_of(write)), (*write.args, None)[:4]
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
    known = (key for key in values if key.is_Symbol)  # of a saved graph, terms too
    return {symbol.name: int(values[symbol]) for symbol in known}
