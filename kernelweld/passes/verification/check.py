"""Running one weld's kernel directly, beside its original nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import sympy
import torch
from torch import fx
from torch._prims_common import clone_preserve_strides
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelweld.codegen.emit import emit
from kernelweld.codegen.run import launch_direct
from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.example_inputs import Input, concrete, example_inputs
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.caches import part_of, returns_whole, target_of
from kernelweld.passes.tasks.held import physical_order
from kernelweld.passes.tasks.steps import is_write
from kernelweld.passes.tasks.views import is_view
from kernelweld.passes.verification.contract import ErrorReport, compare
from kernelweld.passes.verification.truth import original_graph, run_float64
from kernelweld.passes.weld import Weld

#: Besides views, what an index may go through.
_CARRIED = frozenset(
    {torch.ops.aten.slice.Tensor, torch.ops.aten.select.int, torch.ops.prims.convert_element_type.default}
)


@dataclass(frozen=True)
class WeldCheck:
    """The errors of one weld on one draw of inputs."""

    name: str
    errors: tuple[ErrorReport, ...]

    @property
    def holds(self) -> bool:
        return all(error.holds for error in self.errors)


def check_weld(weld: Weld, seed: int = 0) -> WeldCheck:
    """Draws inputs for ``weld``, runs its kernel and its original nodes, and judges every output.

    Needs a GPU for CUDA graphs, or Triton's interpreter for CPU graphs. The weld's steps must still stand
    in their graph.
    """
    with unset_fake_temporarily():  # a compiler's hook runs under its fake mode
        return _check(weld, seed)


def _check(weld: Weld, seed: int) -> WeldCheck:
    program, arguments = program_of(weld)
    outputs, caches = list(arguments.outputs), list(arguments.caches)
    writes = [node for node in weld.steps if is_write(node)]
    inputs = list(dict.fromkeys([*arguments.inputs, *caches]))
    gm = original_graph(weld.steps, inputs, [*outputs, *writes])
    drawn = dict(zip(inputs, example_inputs(gm.graph, seed), strict=False))  # sizes come behind them
    found = (pair for write in writes for pair in _places(write, seed))
    drawn |= {source: places for source, places in found if source in drawn}
    buffers = [_buffer(node) for node in outputs]
    tensors = {name: cast(torch.Tensor, drawn[node]) for node, name in arguments.inputs.items()}
    tensors.update({arguments.outputs[node]: buffer for node, buffer in zip(outputs, buffers, strict=True)})
    tensors |= {
        arguments.caches[cache]: clone_preserve_strides(cast(torch.Tensor, drawn[cache])) for cache in caches
    }
    launch_direct(emit(program), tensors, _sizes(weld))
    logical = [_logical(node, buffer) for node, buffer in zip(outputs, buffers, strict=True)]
    logical += [_seen(write, tensors[arguments.update(write)], weld) for write in writes]
    original = gm(*_all_inputs(gm, drawn))
    cut = len(outputs)
    parts = [_written(write, x, weld) for write, x in zip(writes, original[cut:], strict=True)]
    names = [*arguments.outputs.values(), *map(arguments.update, writes)]
    reports = zip(names, logical, (*original[:cut], *parts), _truth(weld, outputs, drawn), strict=True)
    return WeldCheck(weld.name, tuple(compare(n.removesuffix("_ptr"), *rest) for n, *rest in reports))


def _truth(weld: Weld, outputs: Sequence[fx.Node], drawn: Mapping[fx.Node, Input]) -> Iterator[torch.Tensor]:
    """The outputs in float64, and the part that each cache write sees with its rows in float64.

    Bytes of a cache have no value in float64: rows are computed in it, and written to what the part held.
    """
    writes = [node for node in weld.steps if is_write(node)]
    rows = [[node for node in write.args[1:4] if isinstance(node, fx.Node)] for write in writes]
    computed = [node for node in weld.steps if not is_write(node)]
    wanted = [*outputs, *(node for operands in rows for node in operands)]
    gm = original_graph(computed, list(drawn), wanted)
    found = iter(run_float64(gm, _all_inputs(gm, drawn)))
    yield from islice(found, len(outputs))
    for write, operands in zip(writes, rows, strict=True):
        value, *places = islice(found, len(operands))
        before = _seen(write, cast(torch.Tensor, drawn[target_of(write, weld.steps)]), weld)
        word = cast(CacheWrite, word_of(write))
        yield word.reference(before.double(), value.double(), *places, *[None] * (2 - len(places)))


def _all_inputs(gm: fx.GraphModule, drawn: Mapping[fx.Node, Input]) -> list[Input]:
    """What ``gm`` is called with: ``drawn``, and the sizes that its views need."""
    return [*drawn.values(), *example_inputs(gm.graph)[len(drawn) :]]


def _written(write: fx.Node, result: torch.Tensor, weld: Weld) -> torch.Tensor:
    """The part that ``write`` sees, of its result."""
    return _seen(write, result, weld) if returns_whole(write) else _as_stored(write, result)


def _as_stored(write: fx.Node, part: torch.Tensor) -> torch.Tensor:
    """A part in the dtype of the rows that are written to it."""
    dtype = part_of(write).dtype
    return part if part.dtype == dtype else part.view(dtype)


def _seen(write: fx.Node, whole: torch.Tensor, weld: Weld) -> torch.Tensor:
    """The part of ``whole`` that ``write`` sees, in the dtype of the rows that are written to it."""
    part, sizes = part_of(write), _sizes(weld)
    extents = (_number(extent, sizes) for extent in (part.offset, *part.sizes, *part.strides))
    offset, rank = next(extents), len(part.sizes)
    memory = whole.as_strided((_extent(whole),), (1,)).view(part.dtype)
    return memory.as_strided(list(islice(extents, rank)), list(extents), memory.storage_offset() + offset)


def _extent(x: torch.Tensor) -> int:
    steps = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if x.numel() else 0


def _number(extent: sympy.Expr, sizes: Mapping[str, int]) -> int:
    return int(extent.subs({symbol: sizes[symbol.name] for symbol in extent.free_symbols}))


def _places(write: fx.Node, seed: int) -> Iterator[tuple[fx.Node, torch.Tensor]]:
    """Places of a cache write, no two of them the same, for what its indices are views or casts of."""
    word, (cache, _, *indices) = cast(CacheWrite, word_of(write)), (*write.args, None)[:4]
    shape = [concrete(size) for size in cache.meta["val"].shape]  # type: ignore[union-attr]
    sizes = [shape[dim] for dim in word.dims]
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(math.prod(sizes), generator=generator)
    by_slot = indices[-1] is None or len(sizes) == 1
    places = (slots,) if by_slot else (slots // sizes[1], slots % sizes[1])
    for index, place in zip(indices, places, strict=False):
        source = _source(cast(fx.Node, index))
        value = source.meta["val"]
        given = [concrete(size) for size in value.shape]
        if math.prod(given) <= len(place):
            drawn = place[: math.prod(given)].reshape(given)
            yield source, drawn.to(value.dtype).to(value.device)


def _source(index: fx.Node) -> fx.Node:
    """What ``index`` is a view or a cast of."""
    while index.op == "call_function" and (is_view(index) or index.target in _CARRIED):
        index = index.args[0]  # type: ignore[assignment]
    return index


def _buffer(node: fx.Node) -> torch.Tensor:
    """An output buffer filled with NaN, or the smallest integer, so that an element not written shows."""
    value = node.meta["val"]
    shape = [concrete(value.shape[i]) for i in physical_order(node)]
    unwritten = float("nan") if value.dtype.is_floating_point else torch.iinfo(value.dtype).min
    return torch.full(shape, unwritten, dtype=value.dtype, device=value.device)


def _logical(node: fx.Node, buffer: torch.Tensor) -> torch.Tensor:
    order = physical_order(node)
    return buffer.permute([order.index(i) for i in range(len(order))])


def _sizes(weld: Weld) -> dict[str, int]:
    """The value of every symbol in the shapes and strides around a weld, as it was traced."""
    nodes: Sequence[fx.Node] = [n for step in weld.steps for n in (step, *step.all_input_nodes)]
    sizes = [s for n in nodes for s in (*n.meta["val"].shape, *n.meta["val"].stride())]
    symbolic = [s for s in sizes if isinstance(s, torch.SymInt)]
    if not symbolic:
        return {}
    environment = symbolic[0].node.shape_env
    values = (
        getattr(environment, "var_to_hint", None) or environment.var_to_val
    )  # the name changed with torch 2.13
    return {symbol.name: int(value) for symbol, value in values.items()}
