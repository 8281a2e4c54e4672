"""Running one weld's kernel directly, beside its original nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelweld.codegen.emit import emit
from kernelweld.codegen.run import launch_direct
from kernelweld.passes.example_inputs import concrete, example_inputs
from kernelweld.passes.launcher import program_of
from kernelweld.passes.tasks.held import physical_order
from kernelweld.passes.verification.contract import ErrorReport, compare
from kernelweld.passes.verification.truth import original_graph, run_float64
from kernelweld.passes.weld import Weld


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
    outputs = list(arguments.outputs)
    inputs = list(arguments.inputs)
    gm = original_graph(weld.steps, inputs, outputs)
    drawn = dict(zip(inputs, example_inputs(gm.graph, seed), strict=True))
    values = list(drawn.values())
    original, truth = gm(*values), run_float64(gm, values)
    buffers = [_buffer(node) for node in outputs]
    tensors = {name: drawn[node] for node, name in arguments.inputs.items()}
    tensors.update({arguments.outputs[node]: buffer for node, buffer in zip(outputs, buffers, strict=True)})
    launch_direct(emit(program), tensors, _sizes(weld))  # type: ignore[arg-type]
    logical = [_logical(node, buffer) for node, buffer in zip(outputs, buffers, strict=True)]
    names = [arguments.outputs[node].removesuffix("_ptr") for node in outputs]
    return WeldCheck(weld.name, tuple(map(compare, names, logical, original, truth)))


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
