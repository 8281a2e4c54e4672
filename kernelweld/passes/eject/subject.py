"""What is taken away: a weld with the names, sizes and strides of everything that its file mentions."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch import fx

from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.expressions import spell
from kernelweld.codegen.launch import choose
from kernelweld.codegen.names import identifier
from kernelweld.errors import CodegenFailed
from kernelweld.ir import word_of
from kernelweld.passes.eject.bounds import least
from kernelweld.passes.eject.reference import outputs_of
from kernelweld.passes.restore import inline_reference
from kernelweld.passes.symbols import of_some
from kernelweld.passes.tasks.views import expression
from kernelweld.passes.verification.specimen import Buffer, Specimen

#: Names that the file has for itself.
_TAKEN = frozenset(
    ("torch", "triton", "tl", "sys", "draw", "reference", "computed", "benchmark", "grid", "devices")
)


@dataclass(frozen=True)
class Given:
    """An argument: its node in the graph, and the kernel's argument for it. A cache is only written."""

    name: str
    argument: str
    node: fx.Node
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    is_cache: bool


@dataclass(frozen=True)
class Made:
    """A result, and how it lies in its memory, which may have gaps."""

    name: str
    argument: str
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    extent: int | None


@dataclass(frozen=True)
class Size:
    """A size that is a symbol: its name in the file, where it is read (None: an argument of its own), what it
    was as traced, and how small it may be.
    """

    symbol: str
    name: str
    read: str | None
    traced: int
    least: int = 1


@dataclass(frozen=True)
class Subject:
    """A weld to be taken away as the function ``name``."""

    name: str
    one: Specimen
    kernel: Kernel
    inputs: tuple[Given, ...]
    outputs: tuple[Made, ...]
    sizes: tuple[Size, ...]
    extras: tuple[sympy.Expr, ...]

    @property
    def caches(self) -> tuple[Given, ...]:
        return tuple(given for given in self.inputs if given.is_cache)

    @property
    def free(self) -> tuple[Size, ...]:
        """The sizes that no argument tells."""
        return tuple(size for size in self.sizes if size.read is None)

    @property
    def any_size(self) -> Size | None:
        """The size that may be any, if it is the only one."""
        return self.sizes[0] if len(self.sizes) == 1 else None

    @property
    def device(self) -> str:
        """The device of the arguments."""
        return f"{self.inputs[0].name}.device"

    def spelled(self, size: sympy.Expr) -> str:
        """A size in the names of the file."""
        return self.renamed(spell(size))

    def traced(self, size: sympy.Expr) -> int:
        """A size as it was when the graph was traced."""
        return _traced(self.one, size)

    def renamed(self, text: str) -> str:
        """``text`` with the file's names for symbols."""
        for size in self.sizes:
            text = re.sub(rf"\b{re.escape(size.symbol)}\b", size.name, text)
        return text

    def tuple_of(self, sizes: Sequence[sympy.Expr]) -> str:
        """Sizes as a tuple."""
        inner = ", ".join(map(self.spelled, sizes))
        return f"({inner},)" if len(sizes) == 1 else f"({inner})"

    def placeholders(self) -> list[ast.expr]:
        """What stands for the inputs of the graph: arguments, and the sizes behind them."""
        names: list[ast.expr] = [ast.Name(given.name, ast.Load()) for given in self.inputs]
        return names + [ast.parse(self.spelled(size), mode="eval").body for size in self.extras]


def _traced(one: Specimen, size: sympy.Expr) -> int:
    return int(size.subs({symbol: one.symbols[symbol.name] for symbol in size.free_symbols}))


def subject(one: Specimen, name: str) -> Subject:
    """``one`` with all that is to be known about it. Bfloat16 is rounded in pairs where the GPU can."""
    one = replace(one, computed=_in_torch(one.computed))
    kernel = emit(one.program, choose(one.program, packed=True))
    nodes = one.computed.graph.find_nodes(op="placeholder")
    count = len(one.arguments)
    inputs, extras = tuple(_given(one, nodes[:count])), tuple(_size(node) for node in nodes[count:])
    outputs = tuple(_made(one, *both) for both in zip(one.buffers, _results(one), strict=True))
    every: list[Given | Made] = [*inputs, *outputs]
    tensors = {each.argument: each for each in every}
    sizes = tuple(
        replace(size, least=least(size, one.program, tensors, one.symbols))
        for size in _sizes(one, kernel, inputs, outputs, extras)
    )
    return Subject(identifier(name), one, kernel, inputs, outputs, sizes, extras)


def _in_torch(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` with the references of words that the model calls itself, which came from no nodes."""
    words = [(node, word) for node in gm.graph.nodes if (word := word_of(node)) is not None]
    if not words:
        return gm
    copied: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, copied))
    for node, word in words:
        inline_reference(graph, copied[node], word)
    return fx.GraphModule(gm, graph)


def _given(one: Specimen, nodes: Sequence[fx.Node]) -> Iterator[Given]:
    caches = {part.cache: part.argument for part in one.caches}
    for place, (node, argument) in enumerate(zip(nodes, one.arguments, strict=True)):
        value = node.meta["val"]
        shape, strides = (tuple(map(expression, extents)) for extents in (value.shape, value.stride()))
        known = argument or caches[place]
        yield Given(
            _plain(known),
            known,
            node,
            shape,
            tuple(map(of_some, strides)),
            value.dtype,
            argument is None,
        )


def _plain(argument: str) -> str:
    """The kernel's argument without what says that it is a pointer."""
    name = argument.removesuffix("_ptr")
    return f"{name}_in" if name in _TAKEN or keyword.iskeyword(name) else name


def _size(node: fx.Node) -> sympy.Expr:
    return expression(node.meta["val"])


def _results(one: Specimen) -> list[fx.Node]:
    return outputs_of(one.computed.graph)[: len(one.buffers)]


def _made(one: Specimen, buffer: Buffer, node: fx.Node) -> Made:
    """A result; its strides as symbols where they are dense, or those of the node."""
    shape = tuple(map(expression, node.meta["val"].shape))
    order = sorted(range(len(shape)), key=lambda dim: (-buffer.strides[dim], dim))
    strides = _dense(shape, order)
    is_static = all(size.is_Integer for size in shape)
    is_dense = buffer.size == _count(buffer.shape)
    if is_static:
        strides = tuple(map(sympy.Integer, buffer.strides))
    elif not is_dense:
        strides = tuple(of_some(expression(stride)) for stride in node.meta["val"].stride())
    traced = tuple(_traced(one, stride) for stride in strides)
    if traced != buffer.strides:
        raise CodegenFailed(
            one.name, f"the strides of {buffer.argument} are not those of its graph: {traced}"
        )
    extent = buffer.size if not is_dense and is_static else None
    return Made(_plain(buffer.argument), buffer.argument, shape, strides, buffer.dtype, extent)


def _dense(shape: Sequence[sympy.Expr], order: Sequence[int]) -> tuple[sympy.Expr, ...]:
    """The strides of memory without gaps whose dimensions lie in ``order``, outermost first."""
    strides, step = [sympy.Integer(1)] * len(shape), sympy.Integer(1)
    for dim in reversed(order):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _sizes(
    one: Specimen,
    kernel: Kernel,
    inputs: Sequence[Given],
    outputs: Sequence[Made],
    extras: Sequence[sympy.Expr],
) -> Iterator[Size]:
    """The symbols of the weld, each read where it is the size of an argument."""
    tensors: list[Given | Made] = [*inputs, *outputs]
    exprs = [expr for one_ in tensors for expr in (*one_.shape, *one_.strides)]
    used = {symbol.name for expr in (*exprs, *extras) for symbol in expr.free_symbols}
    used |= set(kernel.symbols) | {symbol.name for symbol in kernel.grid.free_symbols}
    taken = {given.name for given in tensors}
    for symbol in sorted(used):
        place = next(((g, d) for g in inputs for d, size in enumerate(g.shape) if str(size) == symbol), None)
        name = "num_rows" if place is None or place[1] == 0 else f"{place[0].name}_size"
        name = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 99))) if n not in taken)
        taken.add(name)
        read = None if place is None else f"{place[0].name}.shape[{place[1]}]"
        yield Size(symbol, name, read, one.symbols[symbol])
