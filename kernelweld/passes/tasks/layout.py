"""Laying out a task: the axes of every value, found by walking its steps in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from kernelweld.codegen.task import DTYPES
from kernelweld.ir import E2M1, E4M3, E8M0, CacheWrite, MatVec, Quant, Rope, step_of
from kernelweld.passes.tasks.axes import AxisSpace, Dim, Dims, DomainMismatch
from kernelweld.passes.tasks.held import Access, Held, read_access
from kernelweld.passes.tasks.steps import Need, is_concat, is_feature_slice, need_of, operands_of
from kernelweld.passes.tasks.views import carry, is_view, sizes_of
from kernelweld.patterns.aliasing import storage_root

_READ = "a cache that the chain writes is read by the chain"


class Layout:
    """The axes of a growing chain of steps. ``add`` raises DomainMismatch for a step that does not
    share the chain's domain.
    """

    def __init__(self) -> None:
        self.space = AxisSpace()
        self.steps: list[fx.Node] = []
        self.held: dict[fx.Node, Held] = {}
        self.reads: dict[tuple[fx.Node, fx.Node], Access] = {}
        self.needs: list[tuple[fx.Node, Need, Dim]] = []
        self.slices: dict[fx.Node, fx.Node] = {}

    def copy(self) -> Layout:
        """The same chain, to be grown on its own."""
        other = Layout()
        other.space = AxisSpace(dict(self.space.finer))
        other.steps, other.needs = list(self.steps), list(self.needs)
        other.held, other.reads, other.slices = dict(self.held), dict(self.reads), dict(self.slices)
        return other

    def add(self, node: fx.Node) -> None:
        """Adds a step after those it reads from."""
        if not is_concat(node):  # which only renames what it joins
            check_dtypes(node)
        dims = self._concat_dims(node) if is_concat(node) else self._step_dims(node)
        self.steps.append(node)
        self.held[node] = Held(node, dims)

    def inner(self, node: fx.Node) -> Held | None:
        """What is held for ``node``, following views and slices down to a step of the chain; None if
        it is outside.
        """
        if node in self.held:
            if isinstance(step_of(node), CacheWrite):
                raise DomainMismatch(_READ)
            return self.held[node]
        if not (is_view(node) or is_feature_slice(node)):
            return None
        source = self.inner(node.args[0])  # type: ignore[arg-type]
        if source is None:
            return None
        dims = (
            self._slice(node, source.dims) if is_feature_slice(node) else carry(self.space, node, source.dims)
        )
        self.held[node] = Held(node, dims)
        return self.held[node]

    def _slice(self, node: fx.Node, dims: Dims) -> Dims:
        source: fx.Node = node.args[0]  # type: ignore[assignment]
        self._demand(node, Need.SINGLE, dims[-1])
        self.slices[node] = source
        return (*dims[:-1], self.space.fresh(sizes_of(node)[-1], "feature"))

    def _step_dims(self, node: fx.Node) -> Dims:
        """The dimensions of a step's iteration space; every operand inside the chain is unified with them."""
        step = step_of(node)
        if isinstance(step, CacheWrite):
            return self._write_dims(node, step)
        if isinstance(step, E2M1):
            return self._pair_dims(node, step)
        if isinstance(step, MatVec):
            return self._product_dims(node, step)
        tensors = [o for o in operands_of(node) if isinstance(o, fx.Node)]
        need = need_of(node)
        whole = need is not Need.NOTHING
        sizes = sizes_of(tensors[0]) if whole else sizes_of(node)
        dims = tuple(self.space.fresh(size) for size in sizes)
        for i, tensor in enumerate(tensors):
            own = isinstance(step, Rope) and i > 0
            self._join(node, tensor, self._table_dims(tensor, dims) if own else dims)
        if whole:
            self._demand(node, need, dims[-1])
        return self._result_dims(node, dims)

    def _write_dims(self, node: fx.Node, step: CacheWrite) -> Dims:
        """A cache write walks the rows it writes; the cache itself is only an address."""
        cache, value, *places = (o for o in operands_of(node) if isinstance(o, fx.Node))
        rank = len(sizes_of(places[0]))
        dims = tuple(self.space.fresh(size) for size in sizes_of(value))
        self._join(node, value, dims)
        missing = len(sizes_of(cache)) - len(step.dims) + rank - len(dims)
        dims = ((),) * missing + dims
        for place in places:
            self._join(node, place, dims[step.place : step.place + rank])
        return dims

    def _pair_dims(self, node: fx.Node, step: E2M1) -> Dims:
        """Codes by two: the last dimension is one of blocks, whose elements are a tile's and become half as
        many bytes.
        """
        x, scale, *whole = (o for o in operands_of(node) if isinstance(o, fx.Node))
        *rows, width = sizes_of(x)
        outer = tuple(self.space.fresh(size) for size in rows)
        blocks, block = self.space.fresh(width / step.block), self.space.fresh(width * 0 + step.block)
        self._join(node, x, (*outer, blocks + block))
        self._join(node, scale, self.space.regroup((*outer, blocks), sizes_of(scale)))
        for one in whole:
            self._join(node, one, ((),) * len(sizes_of(one)))
        self._demand(node, Need.SINGLE, block)
        return (*outer, blocks + self.space.fresh(width * 0 + step.block // 2, "feature"))

    def _product_dims(self, node: fx.Node, step: MatVec) -> Dims:
        """A product walks the rows of its weight, each of them whole, and one row of ``x`` for all."""
        weight, x = (o for o in operands_of(node) if isinstance(o, fx.Node))
        dims = tuple(self.space.fresh(size) for size in sizes_of(weight))
        *batch, column, depth = (*dims[:-2], dims[-1], dims[-2]) if step.transposed else dims
        self._join(node, weight, dims)
        self._join(node, x, (*batch, (), depth))
        self._demand(node, Need.WHOLE, depth)
        return (*batch, (), column)

    def _table_dims(self, table: fx.Node, dims: Dims) -> Dims:
        """A table of cosines or sines has the rows of the step, and a last dimension of its own."""
        feature = self.space.fresh(sizes_of(table)[-1], "feature")
        self._demand(table, Need.SINGLE, feature)
        return (*dims[:-1], feature)

    def _result_dims(self, node: fx.Node, dims: Dims) -> Dims:
        rank = node.meta["val"].dim()
        if rank < len(dims):
            return dims[:-1]
        return tuple(() if size == 1 else d for d, size in zip(dims, sizes_of(node), strict=True))

    def _join(self, node: fx.Node, operand: fx.Node, dims: Dims) -> None:
        inner = self.inner(operand)
        if inner is None:
            if isinstance(step_of(storage_root(operand)), CacheWrite) and storage_root(operand) in self.held:
                raise DomainMismatch(_READ)
            check_dtypes(operand)
            access = read_access(self.space, operand, dims)
            self._meet(operand, access)
            self.reads[node, operand] = access
            return
        kept = is_concat(node) or isinstance(step_of(node), CacheWrite)
        if operand.meta["val"].dtype not in DTYPES and not kept:
            raise DomainMismatch("codes are rounded when they are stored, so no step can read them before")
        aligned = dims[len(dims) - len(inner.dims) :]
        for mine, own in zip(aligned, inner.dims, strict=True):
            if self.space.resolve(own):
                self.space.unify(mine, own)

    def _meet(self, operand: fx.Node, access: Access) -> None:
        """Two steps that read one value walk it together, where their dimensions allow it."""
        for (_, other), earlier in self.reads.items():
            if other is operand:
                before = dict(self.space.finer)
                try:
                    for mine, theirs in zip(access.dims, earlier.dims, strict=True):
                        self.space.unify(mine, theirs)
                except DomainMismatch:
                    self.space.finer = before
                return

    def _concat_dims(self, node: fx.Node) -> Dims:
        sizes, parts = sizes_of(node), operands_of(node)
        if len(set(parts)) != len(parts):
            raise DomainMismatch("a value is concatenated with itself")
        outer = tuple(self.space.fresh(size) for size in sizes[:-1])
        for part in parts:
            assert isinstance(part, fx.Node)
            feature = self.space.fresh(sizes_of(part)[-1], "feature")
            self._join(node, part, (*outer, feature))
            self._demand(node, Need.SINGLE, feature)
        return (*outer, self.space.fresh(sizes[-1], "feature"))

    def _demand(self, node: fx.Node, need: Need, dim: Dim) -> None:
        self.needs.append((node, need, dim))


def lay_out(steps: Sequence[fx.Node]) -> Layout:
    """The layout of a chain given in topological order; DomainMismatch if it is not one."""
    layout = Layout()
    for node in steps:
        layout.add(node)
    return layout


def check_dtypes(node: fx.Node) -> None:
    """Refuses values that row tasks do not compute on."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise DomainMismatch("an operand is not a tensor")
    if value.dtype not in DTYPES and not isinstance(step_of(node), (Quant, E8M0, E4M3, E2M1, CacheWrite)):
        raise DomainMismatch(
            f"{str(value.dtype).removeprefix('torch.')} values are not computed in row tasks"
        )
