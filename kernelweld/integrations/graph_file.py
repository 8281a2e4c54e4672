"""One post-grad graph as a ``.pt2`` file: what ``torch.export.save`` writes, with a mark that says that it is
no program to be traced again but the graph itself, as the passes saw it.

Weights are inputs of a post-grad graph: the file holds their shapes, not their numbers. The model's source
lines and module paths are kept; what else the compiler notes at a node is not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import fx, nn
from torch._export.verifier import load_verifier
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_structure

import kernelweld
from kernelweld.integrations import stand_ins
from kernelweld.passes.values import fake
from kernelweld.patterns.aliasing import VIEWS

#: The file in the archive that marks a graph of ours.
MARK = "kernelweld.json"

_KEPT = ("val", "stack_trace", "nn_module_stack")

#: Values of inputs that a file can hold.
_WRITTEN = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool, str, type(None))

_Constant = tuple[str, torch.Tensor]  # a tensor and its name in the module


@dataclass(frozen=True)
class Saved:
    """What ``load`` read: the ``program``, and its ``graph`` if it is one of ours, else None."""

    program: ExportedProgram
    graph: fx.GraphModule | None


def save(gm: fx.GraphModule, path: Path) -> None:
    """Writes a copy of ``gm``, whose nodes have ``meta["val"]``, to ``path``.

    Raises whatever ``torch.export`` raises for an operator that it cannot write.
    """
    graph = copy.deepcopy(gm.graph)
    known = stand_ins.described(graph)
    _name_objects(graph)
    constants = dict(_lift_constants(gm, graph))
    for node in graph.nodes:
        node.meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
        if "nn_module_stack" in node.meta:
            node.meta["nn_module_stack"] = dict(_modules(node.meta["nn_module_stack"]))
    mark = json.dumps({"kernelweld": kernelweld.__version__, "offsets": dict(_offsets(graph)), **known})
    with unset_fake_temporarily():  # constants are no fakes, and a compiler calls us under its fake mode
        torch.export.save(_program(graph, constants), path, extra_files={MARK: mark})


def load(path: Path) -> Saved:
    """Reads what ``save`` or ``torch.export.save`` wrote; raises what ``torch.export.load`` raises."""
    stand_ins.define(_mark(path))
    extra = {MARK: ""}
    program = torch.export.load(path, extra_files=extra)
    return Saved(program, _graph_of(program, json.loads(extra[MARK])["offsets"]) if extra[MARK] else None)


def _mark(path: Path) -> Mapping[str, Any]:
    """What the mark says of operators; nothing where there is none, or no archive."""
    with suppress(OSError, BadZipFile), ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(f"/{MARK}"):
                return {"schemas": [], "roundings": [], **json.loads(archive.read(name))}
    return {"schemas": [], "roundings": []}


def _name_objects(graph: fx.Graph) -> None:
    """Puts the name of an input in place of it where it is an object that only its engine knows."""
    for node in list(graph.find_nodes(op="placeholder")):
        if isinstance(node.meta.get("val"), _WRITTEN):
            continue
        for user in list(node.users):
            named = partial(_named, node)
            user.args, user.kwargs = fx.map_arg(user.args, named), fx.map_arg(user.kwargs, named)
        graph.erase_node(node)


def _named(object_: fx.Node, value: fx.Node) -> fx.Node | str:
    return str(object_.target) if value is object_ else value


def _offsets(graph: fx.Graph) -> Iterator[tuple[str, int]]:
    """Where in its memory each input starts that is a part of a tensor; ``torch.export`` forgets it."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        start = value.storage_offset() if isinstance(value, torch.Tensor) else 0
        if isinstance(start, int) and start > 0:
            yield node.name, start


def _lift_constants(gm: fx.GraphModule, graph: fx.Graph) -> Iterator[tuple[str, _Constant]]:
    """Makes an input of every tensor that ``graph`` takes from ``gm``, as ``torch.export`` wants it."""
    for node in graph.find_nodes(op="get_attr"):
        value = _attribute(gm, str(node.target))
        with graph.inserting_before(next(iter(graph.nodes))):
            lifted = graph.placeholder(str(node.target).replace(".", "_"))
        lifted.meta = {"val": node.meta.get("val", value), **node.meta}
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
        yield lifted.name, (str(node.target).replace(".", "_"), value)


def _attribute(gm: fx.GraphModule, target: str) -> torch.Tensor:
    found: object = gm
    for name in target.split("."):
        found = getattr(found, name)
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"the graph reads {target}, which is no tensor but {type(found).__name__}")
    return found


def bytes_of(gm: fx.GraphModule, target: str) -> bytes:
    """The numbers of a tensor that a graph takes from ``gm``."""
    with unset_fake_temporarily(), torch.no_grad():
        value = _attribute(gm, target).detach().cpu().contiguous()
        return bytes(value.reshape(-1).view(torch.uint8).numpy()) if value.numel() else b""


def _modules(stack: Mapping[str, tuple[str, object]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The modules around a node with the names of their classes, as they are written."""
    for key, (path, kind) in stack.items():
        name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
        yield key, (path, name)


def _program(graph: fx.Graph, constants: Mapping[str, _Constant]) -> ExportedProgram:
    inputs = [_input(node, constants) for node in graph.find_nodes(op="placeholder")]
    (output,) = graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    output.args = (tuple(results),)
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(value), None) for value in results]
    given = tuple(spec for spec in inputs if spec.kind is InputKind.USER_INPUT)
    call = ModuleCallSignature([], [], tree_structure((given, {})), tree_structure(tuple(outputs)))
    return ExportedProgram(
        root=nn.Module(),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints=_ranges(graph.nodes),
        module_call_graph=[ModuleCallEntry("", call)],
        constants=dict(constants.values()),
        verifiers=[load_verifier("TRAINING")],  # the only one that lets a graph end in copies into its inputs
    )


def _input(node: fx.Node, constants: Mapping[str, _Constant]) -> InputSpec:
    if node.name in constants:
        return InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), constants[node.name][0])
    return InputSpec(InputKind.USER_INPUT, _argument(node), None)


def _argument(value: object) -> ArgumentSpec:
    if not isinstance(value, fx.Node):
        return ConstantArgument("", value)  # type: ignore[arg-type] # None, or a number
    recorded = value.meta["val"]
    if isinstance(recorded, torch.Tensor):
        return TensorArgument(value.name)
    return (
        SymIntArgument(value.name)
        if isinstance(recorded, torch.SymInt)
        else ConstantArgument(value.name, recorded)
    )


def _ranges(nodes: Iterable[fx.Node]) -> dict[object, object]:
    """What the compiler knows of each symbolic size."""
    found: dict[object, object] = {}
    for node in nodes:
        value = node.meta.get("val")
        sizes = (value, *value.shape) if isinstance(value, torch.Tensor) else (value,)
        for size in (size for size in sizes if isinstance(size, torch.SymInt)):
            known = size.node.shape_env.var_to_range
            found |= {symbol: known[symbol] for symbol in free_symbols(size) if symbol in known}
    return found


def _graph_of(program: ExportedProgram, offsets: Mapping[str, int]) -> fx.GraphModule:
    """The graph as it was saved: what was read has constants as inputs, a node for each result of an
    operator, needed or not, and for each view memory of its own.
    """
    root, graph = nn.Module(), program.graph
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in graph.find_nodes(op="placeholder"):
        if node.name in lifted:
            root.register_buffer(lifted[node.name], program.constants[lifted[node.name]])
            _take_out(graph, node, lifted[node.name])
        elif node.name in offsets:
            node.meta["val"] = _starting_at(offsets[node.name], node.meta["val"])
    for node in list(graph.nodes):
        if not node.users and node.op == "call_function" and node.target.__name__ == "getitem":
            graph.erase_node(node)
        elif node.target in VIEWS or _returns_what_it_writes(node):
            node.meta["val"] = fake(node)
    return fx.GraphModule(root, graph)


def _returns_what_it_writes(node: fx.Node) -> bool:
    mutable = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    return mutable and isinstance(node.meta.get("val"), torch.Tensor)


def _starting_at(offset: int, value: FakeTensor) -> torch.Tensor:
    """A value like ``value``, ``offset`` elements into its memory."""
    with value.fake_mode, torch.no_grad():
        elements = value.untyped_storage().nbytes() // value.dtype.itemsize + offset
        memory = torch.empty(elements, dtype=value.dtype, device=value.device)
        return memory.as_strided(value.shape, value.stride(), offset)


def _take_out(graph: fx.Graph, node: fx.Node, name: str) -> None:
    """Takes a constant from the module again, where it is first read, which is its line in the model. What
    nothing reads any more, of a constant that was folded, stands before all computation.
    """
    inner = (n for n in graph.nodes if n.op != "placeholder" and (n in node.users or not node.users))
    reader = next(inner)
    with graph.inserting_before(reader):
        constant = graph.create_node("get_attr", name)
    constant.meta = {**(reader.meta if node.users else {}), **node.meta}
    node.replace_all_uses_with(constant)
    graph.erase_node(node)
