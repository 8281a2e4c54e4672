"""Running one weld's kernel directly, beside its original nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch._prims_common import clone_preserve_strides
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelweld.codegen.emit import emit
from kernelweld.codegen.run import launch_direct
from kernelweld.ir import CacheWrite, word_of
from kernelweld.passes.example_inputs import concrete, example_inputs
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.held import physical_order
from kernelweld.passes.tasks.views import base_of, is_view
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
    inputs = list(dict.fromkeys([*arguments.inputs, *map(_cache_of, caches)]))
    gm = original_graph(weld.steps, inputs, [*outputs, *caches])
    examples = example_inputs(gm.graph, seed)
    drawn, sizes = dict(zip(inputs, examples, strict=False)), examples[len(inputs) :]
    found = (pair for write in caches for pair in _places(write, seed))
    drawn |= {source: places for source, places in found if source in drawn}
    values = [*drawn.values(), *sizes]
    original, truth = gm(*values), run_float64(gm, values)
    buffers = [_buffer(node) for node in outputs]
    tensors = {name: drawn[node] for node, name in arguments.inputs.items()}
    tensors.update({arguments.outputs[node]: buffer for node, buffer in zip(outputs, buffers, strict=True)})
    written = {write: clone_preserve_strides(drawn[_cache_of(write)]) for write in caches}
    tensors.update({arguments.caches[write]: cache for write, cache in written.items()})
    launch_direct(emit(program), tensors, _sizes(weld))  # type: ignore[arg-type]
    logical = [_logical(node, buffer) for node, buffer in zip(outputs, buffers, strict=True)]
    logical += [_part(write, cache) for write, cache in written.items()]
    names = [name.removesuffix("_ptr") for name in (*arguments.outputs.values(), *arguments.caches.values())]
    return WeldCheck(weld.name, tuple(map(compare, names, logical, original, truth)))


def _cache_of(write: fx.Node) -> fx.Node:
    return base_of(write.args[0])  # type: ignore[arg-type]


def _part(write: fx.Node, cache: torch.Tensor) -> torch.Tensor:
    """The part of ``cache`` that ``write`` sees."""
    value = write.args[0].meta["val"]  # type: ignore[union-attr]
    shape, strides = map(concrete, value.shape), map(concrete, value.stride())
    start = concrete(value.storage_offset()) - concrete(_cache_of(write).meta["val"].storage_offset())
    return cache.as_strided(list(shape), list(strides), start)


def _places(write: fx.Node, seed: int) -> Iterator[tuple[fx.Node, torch.Tensor]]:
    """Places of a cache write, no two of them the same, for what its indices are views or casts of."""
    word, (cache, _, *indices) = cast(CacheWrite, word_of(write)), write.args
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
    names = ("var_to_hint", "backed_var_to_val", "var_to_val")  # by the version of torch
    values = next(filter(None, (getattr(environment, name, None) for name in names)))
    return {symbol.name: int(value) for symbol, value in values.items()}
