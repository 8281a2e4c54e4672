"""Programs as the functional ATen graphs that a post-grad pass is given, without Dynamo.

``recorded`` runs a program on real tensors and writes down what reaches the dispatcher, under Inductor's
decompositions: several times faster than ``traced``, which has ``make_fx`` do the same on fake tensors. Tests
hold the two, and Inductor's own capture, to be equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import fake_tensor_prop
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.fx_passes.post_grad import remove_noop_ops, reorder_for_locality, view_to_reshape
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., tuple[torch.Tensor, ...]]


def recorded(function: Function, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The graph of ``function`` for inputs like these, with ``meta["val"]`` on every value."""
    with torch.no_grad():
        recorder = Recorder()
        for i, x in enumerate(inputs):
            recorder.name(x, recorder.graph.placeholder(f"arg{i}_1"))
        with recorder:
            outputs = function(*inputs)
    recorder.graph.output(tuple(map(recorder.node, outputs)))
    return fx.GraphModule(torch.nn.Module(), recorder.graph)


def traced(function: Function, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The same graph by torch's own tracer."""
    with torch.no_grad():
        tracer = make_fx(
            dispatch_functionalize(function), decomposition_table=select_decomp_table(), tracing_mode="fake"
        )
        return tracer(*inputs)


def finish(gm: fx.GraphModule, *, joint: bool) -> fx.GraphModule:
    """What Inductor does to a graph before its custom post-grad pass: all of it with ``joint``, else
    the least.
    """
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    if joint:
        with V.set_fake_mode(detect_fake_mode(inputs)):
            gm = joint_graph_passes(gm)
    view_to_reshape(gm)
    gm.graph.eliminate_dead_code()
    if joint:
        with torch.no_grad():
            fake_tensor_prop(gm, inputs)  # rewrites may have left other dtypes than were recorded
        reorder_for_locality(gm.graph)
        remove_noop_ops(gm.graph)
    gm.recompile()
    return gm


class Recorder(TorchDispatchMode):
    """Writes every operator that runs into a graph, decomposed.

    An update in place becomes a new value, unless it is one of an input, as the last thing that a graph does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._table = select_decomp_table()
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[object] = []  # an id is a name only while its tensor lives
        self._mode = FakeTensorMode()
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for decomposition in (self._table.get(func), func.decompose if func._can_decompose() else None):
            if decomposition is not None:
                with self:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:
            self.name(result, self.node(args[0]))
        else:
            self._record(func, args, kwargs, result)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        updates = func._schema.is_mutable and self.node(args[0]).op != "placeholder"
        target = _functional(func) if updates else func
        call = self.graph.call_function(
            target, *pytree.tree_map_only(torch.Tensor, self.node, (args, kwargs))
        )
        if isinstance(result, torch.Tensor):
            self.name(result, call)
            return
        for i, part in enumerate(result):
            self.name(part, self.graph.call_function(operator.getitem, (call, i)))
        call.meta["val"] = tuple(self.node(part).meta["val"] for part in result)

    def name(self, x: torch.Tensor, node: fx.Node) -> None:
        """``node`` stands for ``x`` from now on."""
        self._nodes[id(x)] = node
        self._alive.append(x)
        if "val" not in node.meta:
            node.meta["val"] = self._fake(x)

    def node(self, x: torch.Tensor) -> fx.Node:
        """The node that stands for ``x``."""
        return self._nodes[id(x)]

    def _fake(self, x: torch.Tensor) -> torch.Tensor:
        """A fake tensor like ``x``; what shares memory with ``x`` has a fake that shares memory with
        this one.
        """
        real = x.untyped_storage()
        if real._cdata not in self._storages:
            self._storages[real._cdata] = torch.empty(
                real.nbytes(), dtype=torch.uint8, device="meta"
            ).untyped_storage()
            self._alive.append(real)
        like = torch.empty(0, dtype=x.dtype, device="meta")
        like.set_(self._storages[real._cdata], x.storage_offset(), x.shape, x.stride())
        return FakeTensor(self._mode, like, x.device)


def _functional(func: Any) -> Any:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"))
    return getattr(packet, func._overloadname)
