"""Inserting kernel calls: buffers, the functional Triton wrapper, and the values that take the place
of the welded steps.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch._inductor.fx_passes import post_grad
from torch._prims_common import clone_preserve_strides

from kernelweld.codegen.cache import load
from kernelweld.codegen.device import launch_on
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.task import WeldProgram, free_symbols
from kernelweld.codegen.tuning import Tuning
from kernelweld.ir.origin import WELDED
from kernelweld.passes.contraction import escaping
from kernelweld.passes.effects import sort
from kernelweld.passes.symbols import Size, SymbolNodes
from kernelweld.passes.tasks.builder import Arguments, build_task
from kernelweld.passes.tasks.caches import returned, target_of, whole_of
from kernelweld.passes.tasks.held import has_gaps, memory_size, memory_strides, physical_order
from kernelweld.passes.tasks.steps import is_write
from kernelweld.passes.tasks.views import is_view
from kernelweld.passes.values import fake
from kernelweld.passes.weld import Weld

aten = torch.ops.aten

#: Whether Inductor holds the kernel's arguments to the strides recorded for them (torch 2.13); before,
#: only to their order.
_KEEPS_STRIDES = hasattr(post_grad, "_propagate_triton_eager_input_vals")


def program_of(weld: Weld) -> tuple[WeldProgram, Arguments]:
    """The row tasks of a weld and the tensors behind their arguments."""
    arguments = Arguments(frozenset(weld.steps), frozenset(weld.joined))
    tasks = tuple(build_task(c.steps, escaping(c.steps), arguments) for c in weld.chains)
    named = {**arguments.inputs, **arguments.outputs, **arguments.caches}
    tensors = tuple((name, node.meta["val"].dtype) for node, name in named.items())
    written = (*arguments.outputs.values(), *arguments.caches.values())
    return WeldProgram(weld.name, tasks, tensors, written), arguments


class Launcher:
    """Replaces welds of one graph by kernel calls, launched as ``tuning`` says where it does; ``finish`` puts
    the graph back in order.
    """

    def __init__(self, graph: fx.Graph, tuning: Tuning | None = None) -> None:
        self._graph = graph
        self._tuning = tuning
        self._symbols = SymbolNodes(graph)

    def insert(self, weld: Weld) -> None:
        """One kernel call for ``weld``, after the last of its steps."""
        program, arguments = program_of(weld)
        kernel = emit(program, self._launch_of(weld, program))
        with self._graph.inserting_after(max(weld.steps)):
            call = self._call(kernel, program, arguments)
            call.meta[WELDED] = tuple(step.name for step in weld.steps)
            for node, name in arguments.outputs.items():
                self._take_over(call, node, name)
            for cache, name in arguments.caches.items():
                writes = [n for n in weld.steps if is_write(n) and target_of(n, weld.steps) is cache]
                self._update(call, name, writes)
        for node in sorted(weld.steps, reverse=True):
            self._erase(node)

    def _launch_of(self, weld: Weld, program: WeldProgram) -> Launch:
        tuned = self._tuning and self._tuning.launch_of(program)
        return tuned or launch_on(weld.steps[0].meta["val"].device, program)

    def _call(self, kernel: Kernel, program: WeldProgram, arguments: Arguments) -> fx.Node:
        buffers = {name: self._buffer(node) for node, name in arguments.outputs.items()}
        kwargs: dict[str, fx.Node | int] = {name: node for node, name in arguments.inputs.items()}
        caches = {name: node for node, name in arguments.caches.items()}
        kwargs.update(buffers | caches)
        known = {symbol.name: symbol for task in program.tasks for symbol in free_symbols(task)}
        kwargs.update({name: self._symbols.node(known[name]) for name in kernel.symbols})
        call = self._graph.call_function(
            triton_kernel_wrapper_functional,
            (),
            {
                "kernel_idx": kernel_side_table.add_kernel(load(kernel)),
                "constant_args_idx": kernel_side_table.add_constant_args({}),
                "grid": [(self._symbols.node(kernel.grid), 1, 1)],
                "tma_descriptor_metadata": {},
                "kwargs": kwargs,
                "tensors_to_clone": [*buffers, *caches],
            },
        )
        call.meta["val"] = {name: node.meta["val"] for name, node in buffers.items()}
        call.meta["val"] |= {name: _copied(node.meta["val"]) for name, node in caches.items()}
        if _KEEPS_STRIDES:
            call.meta["eager_input_vals"] = ((), fx.node.map_arg(call.kwargs, lambda n: n.meta["val"]))
        for (
            node
        ) in arguments.inputs:  # the kernel was generated for these strides: Inductor must not pad them
            node.meta["dislike_padding"] = True
        return call

    def _buffer(self, node: fx.Node) -> fx.Node:
        """A fresh buffer, dense in the physical order of ``node``, or one dimension with the gaps in it."""
        value = node.meta["val"]
        if has_gaps(node):
            sizes = [self._symbols.node(memory_size(node))]
            shape = [s if isinstance(s, int) else s.meta["val"] for s in sizes]
        else:
            shape = [value.shape[i] for i in physical_order(node)]
            sizes = self._sizes(shape)
        empty = self._graph.call_function(
            aten.empty.memory_format,
            (sizes,),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
        with value.fake_mode:
            empty.meta["val"] = torch.empty(shape, dtype=value.dtype, device=value.device)
        return empty

    def _sizes(self, shape: Sequence[int | torch.SymInt]) -> list[Size]:
        return [self._symbols.node(s.node.expr) if isinstance(s, torch.SymInt) else int(s) for s in shape]

    def _take_over(self, call: fx.Node, node: fx.Node, name: str) -> None:
        """The value of ``node`` from the kernel's output, permuted back to its logical order."""
        result = self._result(call, name)
        order = physical_order(node)
        if has_gaps(node):
            result = self._strided(result, node)
        elif order != tuple(range(len(order))):
            inverse = [order.index(i) for i in range(len(order))]
            permuted = self._graph.call_function(aten.permute.default, (result, inverse))
            permuted.meta["val"] = aten.permute.default(result.meta["val"], inverse)
            result = permuted
        _inherit(node, result, call)
        node.replace_all_uses_with(result)

    def _strided(self, memory: fx.Node, node: fx.Node) -> fx.Node:
        """``node`` in its buffer. Nobody gives memory of one dimension other strides or fewer gaps."""
        sizes = self._sizes(node.meta["val"].shape)
        strides = [self._symbols.node(stride) for stride in memory_strides(node)]
        seen = self._graph.call_function(aten.as_strided.default, (memory, sizes, strides))
        seen.meta["val"] = fake(seen)
        return seen

    def _update(self, call: fx.Node, name: str, writes: Sequence[fx.Node]) -> None:
        """The written tensor in place of each of ``writes``, by the views that lead to what it returns."""
        result = self._result(call, name)
        for node in writes:
            seen = result
            for view in _views(returned(node), whole_of(node)):
                viewed = self._graph.node_copy(view, {view.args[0]: seen}.get)
                viewed.meta["val"] = _value_on(view, seen.meta["val"])
                seen = viewed
            _inherit(node, result, call)
            node.replace_all_uses_with(seen)
        _copy_back(result, result)

    def _result(self, call: fx.Node, name: str) -> fx.Node:
        """What the kernel wrote to its argument ``name``."""
        result = self._graph.call_function(operator.getitem, (call, name))
        result.meta["val"] = call.meta["val"][name]
        return result

    def _erase(self, node: fx.Node) -> None:
        """Erases a welded step with the views that only carried its value on to other steps."""
        for user in list(node.users):
            self._erase(user)
        self._graph.erase_node(node)

    def finish(self) -> None:
        """Restores topological order: a consumer may stand before the last step of its weld."""
        sort(self._graph)


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A fake copy of ``value`` that lies in its own memory just as ``value`` does in its.

    What a functional call returns shares no memory with what it was called with. A result recorded as an
    alias of the input would be one more reader of the old cache for Inductor, which would then keep it.
    """
    with value.fake_mode:  # type: ignore[attr-defined]
        copy: torch.Tensor = clone_preserve_strides(value)
    return copy


def _value_on(view: fx.Node, source: torch.Tensor) -> torch.Tensor:
    """What ``view`` is of ``source`` in place of its first operand."""
    rest = fx.node.map_arg((view.args[1:], view.kwargs), lambda node: node.meta["val"])
    with source.fake_mode:  # type: ignore[attr-defined]
        value: torch.Tensor = view.target(source, *rest[0], **rest[1])  # type: ignore[operator]
    return value


def _inherit(node: fx.Node, *heirs: fx.Node) -> None:
    """Gives ``heirs`` the place of ``node`` in the user's source."""
    for key in ("stack_trace", "nn_module_stack"):
        if key in node.meta:
            for heir in heirs:
                heir.meta[key] = node.meta[key]


def _views(node: fx.Node, base: fx.Node) -> list[fx.Node]:
    """The views from ``base`` to ``node``, in order."""
    found: list[fx.Node] = []
    while node is not base:
        found.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
    return found


def _copy_back(result: fx.Node, source: fx.Node) -> None:
    """Lets the copy into an input at the end of the graph read the kernel's ``result`` itself, not a view of
    ``source`` that comes to the same: only then does Inductor write in place.
    """
    for user in list(source.users):
        if user.target is aten.copy_.default and _lies_alike(result, source, user.args[0]):
            user.args = (user.args[0], result)
        elif is_view(user) and user.target is not aten.clone.default:
            _copy_back(result, user)


def _lies_alike(*nodes: object) -> bool:
    first, *others = (node.meta["val"] for node in nodes if isinstance(node, fx.Node))
    return all(first.shape == other.shape and first.stride() == other.stride() for other in others)
