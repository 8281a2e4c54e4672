"""The builder: a chain of graph steps becomes a row task, with the tensors it reads and writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import sympy
from torch import fx

from kernelweld.codegen.task import (
    Apply,
    Concat,
    Elementwise,
    Index,
    Load,
    Operand,
    Reduce,
    RowTask,
    Slice,
    Store,
    TaskStep,
    Value,
)
from kernelweld.ir import CacheWrite, Pointwise, RowReduce, Word, step_of
from kernelweld.ir.origin import sources_of
from kernelweld.passes.tasks.axes import Axis, AxisSpace, DomainMismatch
from kernelweld.passes.tasks.caches import Part, part_of, target_of
from kernelweld.passes.tasks.derived import Place, derived, is_derived
from kernelweld.passes.tasks.domain import Domain, find_domain, value_of
from kernelweld.passes.tasks.held import Access, memory_strides, write_access
from kernelweld.passes.tasks.landing import jumps_of, landing
from kernelweld.passes.tasks.layout import Layout, lay_out
from kernelweld.passes.tasks.steps import operands_of
from kernelweld.passes.tasks.views import expression, sizes_of


@dataclass
class Arguments:
    """The tensor arguments of one kernel: each input or output node has one name, shared by all tasks
    of the weld, which has ``steps`` and writes the pieces of ``joined`` rows. ``caches`` are the tensors that
    its cache writes change.
    """

    steps: Collection[fx.Node] = ()
    joined: Collection[fx.Node] = ()
    inputs: dict[fx.Node, str] = field(default_factory=dict)
    outputs: dict[fx.Node, str] = field(default_factory=dict)
    caches: dict[fx.Node, str] = field(default_factory=dict)

    def read(self, node: fx.Node, role: str) -> str:
        """The argument for an input, named after the role it plays first."""
        if node not in self.inputs:
            self.inputs[node] = self._unique(role)
        return self.inputs[node]

    def write(self, node: fx.Node, role: str) -> str:
        """The argument for an output."""
        if node not in self.outputs:
            self.outputs[node] = self._unique(f"{role}_out")
        return self.outputs[node]

    def update(self, write: fx.Node) -> str:
        """The argument for the tensor that ``write`` writes to."""
        target = target_of(write, self.steps)
        if target not in self.caches:
            self.caches[target] = self._unique("cache")
        return self.caches[target]

    def _unique(self, role: str) -> str:
        taken = {*self.inputs.values(), *self.outputs.values(), *self.caches.values()}
        name = f"{role}_ptr"
        count = 1
        while name in taken:
            count += 1
            name = f"{role}{count}_ptr"
        return name


def build_task(steps: Sequence[fx.Node], escaping: Collection[fx.Node], arguments: Arguments) -> RowTask:
    """The row task of ``steps`` (topological order), storing those in ``escaping``; DomainMismatch if
    they share no domain.
    """
    layout = lay_out(steps)
    domain = find_domain(layout, escaping)
    return _Assembly(layout, domain, arguments).task(escaping)


class _Assembly:
    """Writes the steps of one task once its layout and domain are known."""

    def __init__(self, layout: Layout, domain: Domain, arguments: Arguments) -> None:
        self.layout, self.domain, self.arguments = layout, domain, arguments
        self.values: dict[fx.Node, Value] = {}
        self.loads: dict[tuple[object, ...], Value] = {}
        self.steps: list[TaskStep] = []
        self.names: dict[str, int] = {}

    def task(self, escaping: Collection[fx.Node]) -> RowTask:
        for node in self.layout.steps:
            word = step_of(node)
            if isinstance(word, CacheWrite):
                self._scatter(node, word)
                continue
            self._step(node)
            if node in escaping:
                self._store(node)
        heads = int(self.domain.heads.size) if self.domain.heads is not None else 1
        rows = tuple(axis.size for axis in self.domain.rows)
        return RowTask(self._title(), rows, tuple(self.steps), heads, self._sources())

    def _title(self) -> str:
        return " -> ".join(dict.fromkeys(_kind(node) for node in self.layout.steps))

    def _sources(self) -> tuple[str, ...]:
        lines: dict[str, None] = {}
        for node in self.layout.steps:
            lines.update(dict.fromkeys(sources_of(node)))
        return tuple(lines)

    def _step(self, node: fx.Node) -> None:
        step = step_of(node)
        ins = [self._operand(node, i, operand) for i, operand in enumerate(operands_of(node))]
        out = self.values[node] = value_of(self.layout, self.domain, node, self._name(_kind(node)))
        if is_derived(node):
            self.steps.extend(self._derive(node, out, ins))
        else:
            self.steps.append(self._make(node, step, out, ins))

    def _derive(
        self, node: fx.Node, out: Value, ins: Sequence[Value | float | int | None]
    ) -> Iterator[TaskStep]:
        """The steps of the word's reference, of which the last makes ``out``."""
        values, steps, over = list(ins), derived(node), self._over_heads(node)
        for inner in steps:
            reads = tuple(values[one.number] if isinstance(one, Place) else one for one in inner.reads)
            tensors = [value for value in reads if isinstance(value, Value)]
            reduced = isinstance(inner.step, RowReduce)
            width = 1 if reduced else max(value.width for value in tensors)
            name = f"{_kind(node)}_{inner.step.name}"
            value = out if inner is steps[-1] else Value(self._name(name), width, inner.dtype)
            values.append(value)
            if reduced:
                yield Reduce(value, inner.step.name, tensors[0], over)
            else:
                yield Elementwise(value, inner.step.name, tuple(read for read in reads if read is not None))

    def _make(
        self, node: fx.Node, step: object, out: Value, ins: list[Value | float | int | None]
    ) -> TaskStep:
        over = self._over_heads(node)
        tensors = tuple(v for v in ins if isinstance(v, Value))
        if isinstance(step, Word):
            return Apply((out,), step, tuple(v if isinstance(v, Value) else None for v in ins), over)
        if isinstance(step, Pointwise):
            return Elementwise(out, step.name, tuple(v for v in ins if v is not None))
        if isinstance(step, RowReduce):
            return Reduce(out, step.name, tensors[0], over)
        return Concat(out, tensors)

    def _over_heads(self, node: fx.Node) -> bool:
        return any(n is node and len(self.layout.space.resolve(dim)) == 2 for n, _, dim in self.layout.needs)

    def _operand(self, node: fx.Node, index: int, operand: object) -> Value | float | int | None:
        if operand is None or isinstance(operand, (bool, int, float)):
            return operand
        if not isinstance(operand, fx.Node):
            raise DomainMismatch(f"an operand of {_kind(node)} is neither a tensor nor a number")
        if (node, operand) in self.layout.reads:
            return self._load(self.layout.reads[node, operand], _role(node, index))
        return self._inner(operand)

    def _inner(self, node: fx.Node) -> Value:
        if node in self.values:
            return self.values[node]
        source = self._inner(node.args[0])  # type: ignore[arg-type]
        if node in self.layout.slices:
            start, stop, step = _slice_bounds(node)
            out = value_of(self.layout, self.domain, node, self._name("part"))
            self.steps.append(Slice(out, source, start, stop, step))
            source = out
        self.values[node] = source
        return source

    def _load(self, access: Access, role: str) -> Value:
        place = access.place
        operand = self._address(access, self.arguments.read(access.node, "table" if place else role))
        if place is not None:
            number = self._load(place.number, "positions")
            operand = replace(operand, indices=(Index(number, (place.stride,), (place.size,), wraps=True),))
        key = (operand, self._width(access))
        if key not in self.loads:
            out = Value(self._name(role), self._width(access), access.node.meta["val"].dtype)
            self.steps.append(Load(out, operand))
            self.loads[key] = out
        return self.loads[key]

    def _width(self, access: Access) -> int:
        feature = self.domain.feature_of(self.layout.space, access.dims)
        return int(feature.size) if feature is not None else 1

    def _store(self, node: fx.Node) -> None:
        lands = landing(self.layout, self.domain, node, self.arguments.joined)
        name = self.arguments.write(lands.place, _kind(node))
        access = write_access(lands.place, lands.dims)
        offset = lands.column * memory_strides(lands.place)[-1]
        operand = self._address(replace(access, offset=offset), name, lands.space)
        dtype = node.meta["val"].dtype
        if operand.dtype != dtype:  # bytes, copied as integers
            operand = replace(operand, dtype=dtype, argument=operand.dtype)
        self.steps.append(Store(self.values[node], operand))

    def _scatter(self, node: fx.Node, word: CacheWrite) -> None:
        """Stores rows at places of a cache."""
        cache, value, *places = operands_of(node)
        assert isinstance(cache, fx.Node) and isinstance(places[0], fx.Node)
        row = self._operand(node, 1, value)
        indices = [self._operand(node, i, p) for i, p in enumerate(places, 2) if p is not None]
        assert isinstance(row, Value)
        if any(isinstance(index, Value) and index.width != 1 for index in indices):
            raise DomainMismatch("the places of a cache write vary along the dimension that a tile holds")
        dims, rank, part = self.layout.held[node].dims, len(sizes_of(places[0])), part_of(node)
        kept = [stride for dim, stride in enumerate(part.strides) if dim not in word.dims]
        walked = (*dims[: word.place], *dims[word.place + rank :])
        access = Access(part.whole, walked, tuple(kept), part.offset)
        operand = self._address(access, self.arguments.update(node))
        places_in = _indices(part, word, indices)
        stored = replace(operand, dtype=part.dtype, argument=operand.dtype, indices=places_in)
        self.steps.append(Store(row, stored))

    def _address(self, access: Access, name: str, space: AxisSpace | None = None) -> Operand:
        """``access`` over the axes of the task; in ``space`` they may be split further."""
        space = self.layout.space if space is None else space
        strides = access.stride_of(space)
        feature = self.domain.feature_of(space, access.dims)

        def stride(axis: Axis | None) -> sympy.Expr:
            parts = () if axis is None else space.resolve((axis,))
            return strides.get(parts[-1], sympy.Integer(0)) if parts else sympy.Integer(0)

        rows = tuple(stride(axis) for axis in self.domain.rows)
        dtype = access.node.meta["val"].dtype
        jumps = tuple(
            jump
            for dim, axis in (*enumerate(self.domain.rows), (None, self.domain.heads))
            if axis is not None
            for jump in jumps_of(dim, space.resolve((axis,)), strides)
        )
        heads = stride(self.domain.heads)
        return Operand(name, dtype, rows, stride(feature), heads, access.offset, jumps=jumps)

    def _name(self, stem: str) -> str:
        self.names[stem] = self.names.get(stem, 0) + 1
        return stem if self.names[stem] == 1 else f"{stem}{self.names[stem]}"


def _kind(node: fx.Node) -> str:
    step = step_of(node)
    if step is None:
        return "concat"
    return step.name if isinstance(step, (Pointwise, RowReduce)) else step.kind


def _role(node: fx.Node, index: int) -> str:
    step = step_of(node)
    if isinstance(step, Word):
        return step.operands[index].rstrip("?")
    return "x"


def _slice_bounds(node: fx.Node) -> tuple[int, int, int]:
    source: fx.Node = node.args[0]  # type: ignore[assignment]
    width = int(expression(source.meta["val"].shape[-1]))
    bounds = [int(b) for b in node.args[2:]]  # type: ignore[arg-type]
    start, stop = (min(b + width if b < 0 else b, width) for b in bounds[:2])
    return start, stop, bounds[2] if len(bounds) > 2 else 1


def _indices(part: Part, word: CacheWrite, values: Sequence[object]) -> tuple[Index, ...]:
    """The indices of a cache write: one for each dimension, or one of slots for both."""
    groups = [word.dims] if len(values) == 1 else [(dim,) for dim in word.dims]
    return tuple(
        Index(
            value,
            tuple(part.strides[d] for d in dims),
            tuple(part.sizes[d] for d in dims),
            word.negative == "end",
        )
        for value, dims in zip(values, groups, strict=True)
        if isinstance(value, Value)
    )
