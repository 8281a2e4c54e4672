"""The nodes that a weld replaces as statements of torch.

A value that is used once is written where it is used, as long as the line of the model is the same and the
statement stays short. Values are named after what the model's line assigns to.
"""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import fx

from kernelweld.ir.origin import source_line
from kernelweld.passes.eject.calls import call
from kernelweld.passes.eject.layout import WIDTH, comment, flat, statement
from kernelweld.passes.eject.operators import write
from kernelweld.passes.eject.sources import assigned, shown, text_of
from kernelweld.passes.tasks.views import is_view
from kernelweld.patterns.ops import CAST

aten = torch.ops.aten

#: The longest expression that is written on one line.
_LONGEST = 76
#: The shortest that is worth a name.
_SHORTEST = 12
_INDENT = 4
#: What is written wherever it is read: numbers, and memory that only one copy may write to.
_NEVER_ALONE = frozenset(
    {
        aten.alias.default,
        aten.scalar_tensor.default,
        aten.sym_size.int,
        aten.empty_strided.default,
        aten.empty.memory_format,
    }
)

#: Names of values whose line of the model names none.
_STEMS: Mapping[str, str] = MappingProxyType(
    {
        "mul": "product",
        "add": "total",
        "sub": "difference",
        "div": "quotient",
        "rsqrt": "rstd",
        "reshape": "view",
        "view": "bits",
        "permute": "turned",
        "cat": "joined",
        "slice": "part",
        "select": "part",
        "getitem": "part",
        "unsqueeze": "view",
        "abs": "magnitude",
        "amax": "largest",
        "clamp_min": "bounded",
        "clamp_max": "bounded",
        "where": "chosen",
        "index": "rows",
        "neg": "negated",
        "full": "filled",
        "bitwise_or": "codes",
        "scalar_tensor": "number",
        "var_mean": "moments",
        "clone": "copy",
        "convert_element_type": "rounded",
    }
)
#: Besides views, what is short enough to stand anywhere.
_SMALL = frozenset(
    {aten.slice.Tensor, aten.select.int, aten.scalar_tensor.default, aten.sym_size.int, aten.full.default}
)


class Reference:
    """Writes the body of a function: ``lines``, and in ``returned`` the expressions of the outputs.

    ``arguments`` are the names of the placeholders. ``results`` are names for the outputs, None for any.
    """

    def __init__(
        self, graph: fx.Graph, arguments: Sequence[ast.expr], results: Sequence[str | None], device: str
    ) -> None:
        self.lines: list[str] = []
        self._device = device
        self._known: dict[fx.Node, ast.expr] = dict(
            zip(graph.find_nodes(op="placeholder"), arguments, strict=True)
        )
        self._open: dict[fx.Node, ast.expr] = {}
        self._taken = {name for one in arguments for name in _names_in(one)} | {r for r in results if r}
        outputs = outputs_of(graph)
        self._results = {o: r for o, r in zip(outputs, results, strict=True) if r and o.op != "placeholder"}
        self._source: str | None = None
        self._needed = _needed(graph, outputs)
        for node in graph.nodes:
            if node.op == "call_function" and node in self._needed:
                self._node(node)
        self.returned = [self._name(node) for node in outputs]

    def _node(self, node: fx.Node) -> None:
        expr = self._written(node)
        if node in self._results:
            self._assign(node, expr, self._results[node])
        elif self._stands_alone(node):
            self._assign(node, expr, self._fresh(node))
        else:
            self._open[node] = expr

    def _written(self, node: fx.Node) -> ast.expr:
        """The node in terms of others; the longest of these get names of their own until it is short."""
        while True:
            expr = write(node, self._name, self._device)
            inner = [operand for operand in node.all_input_nodes if operand in self._open]
            longer = [operand for operand in inner if operand.target not in _NEVER_ALONE]
            if len(flat(expr)) <= _LONGEST or not longer:
                break
            longest = max(longer, key=lambda operand: len(flat(self._open[operand])))
            if len(flat(self._open[longest])) < _SHORTEST:
                break
            self._assign(longest, self._open.pop(longest), self._fresh(longest))
        for operand in inner:
            self._known[operand] = self._open.pop(operand)
        return expr

    def _name(self, node: fx.Node) -> ast.expr:
        return self._known[node] if node in self._known else self._open[node]

    def _stands_alone(self, node: fx.Node) -> bool:
        users = [user for user in node.users if user in self._needed]
        reads = sum(use is node for user in users for use in _uses(user))
        if len(users) != 1 or reads != 1:
            return node.target not in _NEVER_ALONE
        is_small = is_view(node) or node.target in _SMALL
        return not is_small and source_line(node.meta) != source_line(users[0].meta)

    def _assign(self, node: fx.Node, expr: ast.expr, name: str) -> None:
        source = source_line(node.meta)
        if source is not None and source != self._source:
            self.lines.append(comment(f"{Path(shown(source)).name}: {text_of(source)}", _INDENT))
            self._source = source
        self.lines += self._statement(name, expr)
        self._known[node] = ast.Name(name, ast.Load())

    def _statement(self, name: str, expr: ast.expr) -> list[str]:
        """``name = expr``; a sum, product or call of a result's method that is too long in two parts."""
        line = f"{name} = {flat(expr)}"
        if _INDENT + len(line) <= WIDTH:
            return statement(line, _INDENT)
        first: ast.expr
        rest: ast.expr
        match expr:
            case ast.BinOp(left=left, op=op, right=right):
                first, rest = left, ast.BinOp(_named(f"{name}_before"), op, right)
            case ast.Call(func=ast.Attribute(value=ast.Call() as receiver, attr=attr), args=args):
                given = {keyword.arg: keyword.value for keyword in expr.keywords if keyword.arg}
                method_of = ast.Attribute(_named(f"{name}_before"), attr, ast.Load())
                first, rest = receiver, call(method_of, *args, **given)
            case _:
                return statement(line, _INDENT)
        return [*self._statement(f"{name}_before", first), *self._statement(name, rest)]

    def _fresh(self, node: fx.Node) -> str:
        stem = self._model_name(node) or _stem(node)
        name, number = stem, 1
        while name in self._taken or keyword.iskeyword(name) or hasattr(builtins, name):
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def _model_name(self, node: fx.Node) -> str | None:
        """What the model calls the value, if it is the last one of its line."""
        source = source_line(node.meta)
        inside = any(source_line(user.meta) == source for user in node.users)
        return None if inside else assigned(source)


def _named(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _stem(node: fx.Node) -> str:
    if node.target is CAST and node.args[1] == torch.float32:
        return "wide"
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0].strip("_")
    return _STEMS.get(name, name)


def _names_in(expr: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expr) if isinstance(node, ast.Name)}


def _uses(node: fx.Node) -> list[fx.Node]:
    """The operands of ``node``, each as often as it is read."""
    found: list[fx.Node] = []

    def note(operand: fx.Node) -> fx.Node:
        found.append(operand)
        return operand

    fx.node.map_arg((node.args, dict(node.kwargs)), note)
    return found


def outputs_of(graph: fx.Graph) -> list[fx.Node]:
    """What a graph returns."""
    (outputs,) = graph.output_node().args
    assert isinstance(outputs, tuple)
    return [output for output in outputs if isinstance(output, fx.Node)]


def _needed(graph: fx.Graph, outputs: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes that the outputs depend on."""
    needed = set(outputs)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed
