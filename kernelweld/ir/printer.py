"""The stable text of a graph: the same graph prints the same on any machine and in any run.

Values are numbered by their order in the graph; every value carries its dtype and shape. Devices, line
numbers and the names that torch gives to nodes and symbols are left out::

    %0: bf16[s0, 64] = input
    %1: bf16[64] = input
    %2: bf16[s0, 64] = rms_norm(%0, %1) {eps=1e-06 dtype=bf16}
    return %2
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping

import sympy
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from kernelweld.ir.origin import ORIGIN, Origin, source_line
from kernelweld.ir.vocabulary import word_of
from kernelweld.ir.word import Word

_DTYPES: Mapping[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}

#: Namespaces whose operators print without a prefix.
_SHORT_NAMESPACES = frozenset({"aten", "prims", "kernelweld"})

#: Keyword arguments that say where a tensor lies and not what it is.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "requires_grad"})

_END = 2**63 - 1  # "to the end" of an ATen slice

_LAUNCHES = (triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation)

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def format_graph(graph: fx.Graph, *, sources: bool = False) -> str:
    """``graph`` as text, one value a line.

    ``sources`` adds the model's source lines as comments; the text then changes with the model's files.
    """
    printer = Printer(graph.nodes)
    lines = [printer.line(node) + (_comment(node) if sources else "") for node in graph.nodes]
    return "\n".join(lines) + "\n"


def format_value(value: object) -> str:
    """The dtype and shape of a value as it stands in ``node.meta["val"]``, for example ``bf16[2, 64]``."""
    return _Symbols().value(value)


def format_dtype(dtype: torch.dtype) -> str:
    """A dtype by its short name, for example ``bf16``."""
    return _DTYPES.get(dtype) or str(dtype).removeprefix("torch.")


def numbered(nodes: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """The names that values get by their order: ``%0``, ``%1``, …"""
    return {node: f"%{i}" for i, node in enumerate(n for n in nodes if n.op != "output")}


class Printer:
    """Prints nodes under the names that they have when the printer is made: numbers by their order, or
    ``names``.
    """

    def __init__(self, nodes: Iterable[fx.Node], names: Mapping[fx.Node, str] | None = None) -> None:
        self._names = numbered(nodes) if names is None else names
        self._symbols = _Symbols()
        typed = (node for node in self._names if "val" in node.meta)
        self._types = {node: self._symbols.value(node.meta["val"]) for node in typed}

    def line(self, node: fx.Node) -> str:
        """One node, for example ``%2: bf16[2, 64] = mul(%0, %1)``."""
        if node.op == "output":
            results = node.args[0]
            return f"return {self._list(results if isinstance(results, (tuple, list)) else (results,))}"
        return f"{self.typed(node)} = {self._call(node)}"

    def typed(self, node: fx.Node) -> str:
        """The name of a value with its type, for example ``%2: bf16[2, 64]``."""
        kind = self._types.get(node)
        return f"{self._names[node]}{f': {kind}' if kind else ''}"

    def _call(self, node: fx.Node) -> str:
        if node.op == "placeholder":
            return "input"
        if node.op == "get_attr":
            return f"attribute {node.target}"
        if node.target is operator.getitem:
            return f"{self._argument(node.args[0])}[{self._argument(node.args[1])}]"
        if node.target in _LAUNCHES:
            return self._kernel(node)
        word = word_of(node)
        return self._word(node, word) if word is not None else self._operator(node)

    def _operator(self, node: fx.Node) -> str:
        named = ((k, v) for k, v in node.kwargs.items() if v is not None and k not in _PLACEMENT)
        arguments = [*map(self._argument, node.args), *(f"{k}={self._argument(v)}" for k, v in named)]
        return f"{_operator_name(node.target)}({', '.join(arguments)})"

    def _word(self, node: fx.Node, word: Word) -> str:
        operands = list(node.args)
        while operands and operands[-1] is None:
            operands.pop()
        fields = [f"{name}={self._field(value)}" for name, value in _changed(word)]
        parameters = f" {{{' '.join(fields)}}}" if fields else ""
        return f"{word.kind}({', '.join(map(self._argument, operands))}){parameters}"

    def _field(self, value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else self._argument(value)

    def _kernel(self, node: fx.Node) -> str:
        """A Triton launch by its kernel's name: indices into the process-wide kernel table are not stable."""
        tensors = node.kwargs["kwargs"]
        constants = kernel_side_table.get_constant_args(_index(node, "constant_args_idx"))
        arguments = {**(tensors if isinstance(tensors, Mapping) else {}), **constants}
        listed = ", ".join(f"{name}={self._argument(arguments[name])}" for name in sorted(arguments))
        return f"{operation(node)}({listed}) grid={self._argument(node.kwargs['grid'])}"

    def _argument(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return self._names.get(value, f"?{value.name}")
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k}: {self._argument(v)}" for k, v in value.items()) + "}"
        if isinstance(value, tuple):
            return f"({self._list(value)})"
        if isinstance(value, list):
            return f"[{self._list(value)}]"
        return self._symbols.constant(value)

    def _list(self, values: Iterable[object]) -> str:
        return ", ".join(map(self._argument, values))


class _Symbols:
    """Renames symbolic sizes to s0, s1, … (u0, u1, … for data-dependent ones) by order of appearance."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        self._counts = {"s": 0, "u": 0}

    def value(self, value: object) -> str:
        if isinstance(value, torch.Tensor):
            return f"{format_dtype(value.dtype)}[{', '.join(map(self.constant, value.shape))}]"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.value, value))})"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{k}: {self.value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, (bool, int, float, *_SYMBOLIC)):
            return f"{type(value).__name__.lower().removeprefix('sym')}({self.constant(value)})"
        return "none" if value is None else type(value).__name__

    def constant(self, value: object) -> str:
        if isinstance(value, torch.dtype):
            return format_dtype(value)
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, _SYMBOLIC):
            return self._expression(value.node.expr)
        if isinstance(value, sympy.Expr):
            return self._expression(value)
        if isinstance(value, int) and value == _END:
            return "end"
        return "none" if value is None else str(value).removeprefix("torch.")

    def _expression(self, expression: sympy.Basic) -> str:
        unseen = sorted((s for s in expression.free_symbols if s not in self._names), key=str)
        for symbol in unseen:
            letter = "u" if str(symbol).startswith(("u", "zuf")) else "s"
            self._names[symbol] = sympy.Symbol(f"{letter}{self._counts[letter]}", integer=True, positive=True)
            self._counts[letter] += 1
        return str(expression.xreplace(self._names))


def operation(node: fx.Node) -> str:
    """What a call calls, without its operands, for example ``mul``, ``rms_norm`` or ``launch rms_norm``."""
    if node.target in _LAUNCHES:
        return f"launch {_kernel_name(_index(node, 'kernel_idx'))}"
    word = word_of(node)
    return _operator_name(node.target) if word is None else word.kind


def _operator_name(target: object) -> str:
    if isinstance(target, OpOverload):
        name = target._schema.name.partition("::")[2]
        return name if target.namespace in _SHORT_NAMESPACES else f"{target.namespace}.{name}"
    if isinstance(target, (OpOverloadPacket, HigherOrderOperator)):
        return str(target)
    return getattr(target, "__name__", str(target))


def _changed(word: Word) -> list[tuple[str, object]]:
    """The fields of ``word`` that differ from their defaults, in order; those without a default always."""
    pairs = ((f, getattr(word, f.name)) for f in dataclasses.fields(word))
    return [(f.name, value) for f, value in pairs if f.default is dataclasses.MISSING or value != f.default]


def _index(node: fx.Node, name: str) -> int:
    value = node.kwargs[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} of {node} is {value!r}, not an index into the kernel table")
    return value


def _kernel_name(index: int) -> str:
    kernel: object = kernel_side_table.get_kernel(index)
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn  # Autotuner, then JITFunction, then the function
    return str(getattr(kernel, "__name__", kernel))


def _comment(node: fx.Node) -> str:
    origin = node.meta.get(ORIGIN)
    own = source_line(node.meta)
    lines = origin.sources if isinstance(origin, Origin) else ((own,) if own else ())
    return f"  # {', '.join(line.rpartition('/')[2] for line in lines)}" if lines else ""
