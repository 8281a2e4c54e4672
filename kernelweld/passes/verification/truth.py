"""Running the original nodes of a weld: in their own dtypes, and in float64 as the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from kernelweld.ir.origin import ORIGIN
from kernelweld.passes.restore import restore


def original_graph(
    steps: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """The nodes behind ``steps`` as a module of their own, from ``inputs`` (bases of views) to
    ``outputs``. After ``inputs`` it takes the symbolic sizes that views on the way are given.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name)
        env[node].meta["val"] = node.meta["val"]
    for node in sorted(_closure([*steps, *outputs], inputs)):
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[o] for o in outputs))
    for node in list(graph.nodes):
        if ORIGIN in node.meta:
            restore(graph, node)
    return fx.GraphModule(torch.nn.Module(), graph)


def _closure(steps: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> set[fx.Node]:
    """The steps and outputs with the views that lie between them and the inputs."""
    stop = set(inputs)
    needed = set(steps) - stop
    stack = [operand for node in needed for operand in node.all_input_nodes]
    while stack:
        node = stack.pop()
        if node not in needed and node not in stop:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed


class Float64(fx.Interpreter):
    """Runs a graph with every floating value in float64: casts between float dtypes do nothing, so
    nothing is ever rounded. Only a value whose bits are read has the dtype that it has in the graph.
    """

    def run_node(self, n: fx.Node) -> object:
        if n.target is not torch.ops.aten.view.dtype:
            return super().run_node(n)
        (value, dtype), _ = self.fetch_args_kwargs_from_env(n)
        bits = value.to(n.args[0].meta["val"].dtype).view(dtype)  # type: ignore[union-attr]
        return bits.double() if bits.is_floating_point() else bits

    def call_function(self, target: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        if target is torch.ops.prims.convert_element_type.default and isinstance(args[1], torch.dtype):
            dtype = torch.float64 if args[1].is_floating_point else args[1]
            args = (args[0], dtype)
        kwargs = {
            k: torch.float64 if isinstance(v, torch.dtype) and v.is_floating_point else v
            for k, v in kwargs.items()
        }
        if target is torch.ops.aten.copy.default:  # into memory of the dtype that it has in the graph
            args = tuple(a.double() if _is_float(a) else a for a in args)  # type: ignore[attr-defined]
        if getattr(target, "namespace", None) == "quantized_decomposed":  # they take float32 alone
            args = tuple(a.float() if _is_wide(a) else a for a in args)  # type: ignore[attr-defined]
        return super().call_function(target, args, kwargs)  # type: ignore[arg-type]


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_wide(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def run_float64(gm: fx.GraphModule, inputs: Sequence[object]) -> tuple[torch.Tensor, ...]:
    """The outputs of ``gm`` in float64, on the given inputs widened."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    result: tuple[torch.Tensor, ...] = Float64(gm).run(*wide)
    return result
