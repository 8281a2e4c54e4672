"""``vllm_ir.rms_norm`` and ``vllm_ir.fused_add_rms_norm``: operators that write nothing and say no rounding.

Their definition has changed where it rounds, and implementations differ. So the definition is asked: it is
run once on a CPU, on values whose bits tell the ways to round apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelweld.ir import ResidualAdd, RMSNorm
from kernelweld.ir.origin import Origin, record_origin
from kernelweld.passes.dialect.builder import Builder
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import FLOATS, argument, dtype_name, dtype_of, shape_of
from kernelweld.patterns.pattern import in_graph_order
from kernelweld.patterns.reading import Miss
from kernelweld.patterns.weights import read_weight

#: The operators, and whether they add a residual first.
_NAMES = {"vllm_ir::rms_norm": False, "vllm_ir::fused_add_rms_norm": True}
_EPS = 1e-6


@dataclass(frozen=True)
class Rounding:
    """Dtypes of the sum with the residual, as the norm reads it, and of the normalised value."""

    total: torch.dtype
    normed: torch.dtype


@dataclass(frozen=True)
class FunctionalCall:
    """A call of one of the operators, as it stands in a graph.

    Its factor is ``weight`` in any dtype, or ``1 + weight`` if ``plus_one``; nodes ``between`` them are the
    call's own, since the word takes their place.
    """

    node: fx.Node
    adds: bool
    weight: fx.Node | None = None
    plus_one: bool = False
    between: tuple[fx.Node, ...] = ()

    @property
    def name(self) -> str:
        """``vllm_ir.rms_norm``."""
        return str(cast(OpOverload, self.node.target).name()).replace("::", ".")

    def operands(self) -> tuple[fx.Node, ...]:
        """What it reads."""
        read = [n for n in self.node.all_input_nodes if n not in self.between]
        return tuple(dict.fromkeys(read if self.weight is None else [*read, self.weight]))

    def dtypes(self) -> tuple[torch.dtype | None, torch.dtype | None]:
        """Of the input and of the factor, None without one."""
        factor = argument(self.node, 1 + self.adds, "weight")
        read = argument(self.node, 0, "x")
        return dtype_of(cast(fx.Node, read)), dtype_of(factor) if isinstance(factor, fx.Node) else None

    def results(self) -> tuple[fx.Node, ...]:
        """The nodes that hold its results: itself, or those that take one of two."""
        return tuple(self.node.users) if self.adds else (self.node,)

    def origin(self) -> Origin:
        """The call and what takes its results."""
        nodes = [*self.between, self.node, *(self.results() if self.adds else ())]
        return record_origin(nodes, self.operands(), self.results())


def read_functional(node: fx.Node) -> FunctionalCall | None:
    """The call that ``node`` is, or None."""
    adds = _NAMES.get(node.target.name()) if isinstance(node.target, OpOverload) else None
    if adds is None:
        return None
    factor = argument(node, 1 + adds, "weight")
    if not isinstance(factor, fx.Node):
        return FunctionalCall(node, adds)
    return _weighted(node, adds, factor)


def _weighted(node: fx.Node, adds: bool, factor: fx.Node) -> FunctionalCall:
    """The call with the weight below its factor: below casts to float32, and ``1 +``."""
    cover = Cover()
    try:
        weight = read_weight(factor, shape_of(factor)[-1], cover)
    except Miss:
        return FunctionalCall(node, adds, factor)
    if not same_shape(shape_of(weight.node), shape_of(factor)):
        return FunctionalCall(node, adds, factor)
    return FunctionalCall(node, adds, weight.node, weight.plus_one, in_graph_order(cover.shared))


def expand_functional(call: FunctionalCall, build: Builder) -> list[fx.Node]:
    """The words of ``call``: one node for each of its results.

    Raises:
        Miss: words do not say what it computes.
    """
    given = {a.name: a.default_value for a in cast(OpOverload, call.node.target)._schema.arguments}
    values = list((given | dict(zip(given, call.node.args, strict=False)) | call.node.kwargs).values())
    tensors, rest = values[: 2 + call.adds], values[2 + call.adds :]
    x, factor = cast(fx.Node, tensors[0]), cast("fx.Node | None", tensors[-1])
    if any(value is not None for value in rest[1:]):
        raise Miss("%{} normalises by a part of its row", call.node, call.node)
    dtype, factor_dtype = dtype_of(x), None if factor is None else dtype_of(factor)
    if dtype not in FLOATS or (factor is not None and factor_dtype not in FLOATS):
        names = dtype_name(dtype), dtype_name(factor_dtype)
        raise Miss("the input %{} is {}, the weight {}", x, x, *names)
    if factor is not None and not same_shape(shape_of(factor), shape_of(x)[-1:]):
        raise Miss("the weight %{} is not one row", factor, factor)
    rounding = _rounding(cast(OpOverload, call.node.target), call.adds, dtype, factor_dtype)
    if rounding is None:
        raise Miss("%{} rounds as no word does, or not on a CPU", call.node, call.node)
    total = x
    if call.adds:
        total = build.word(ResidualAdd(rounding.total), x, cast(fx.Node, tensors[1]))
    scale = "1+w" if call.plus_one else "none" if factor is None else "w"
    word = _word(rounding, cast(float, rest[0]), dtype, scale)
    normed = build.word(word, total, call.weight, None)
    if not call.adds:
        return [normed]
    both = normed, build.cast(total, dtype)
    return [both[cast(int, user.args[1])] for user in call.results()]


def _word(rounding: Rounding, eps: float, dtype: torch.dtype, scale: str) -> RMSNorm:
    normed = torch.float32 if scale == "none" else rounding.normed
    return RMSNorm(eps, scale, normed_dtype=normed, dtype=dtype)


def rounding_of(call: FunctionalCall) -> Rounding | None:
    """How ``call`` rounds, if as exactly the words of one rounding do."""
    dtype, factor = call.dtypes()
    if dtype not in FLOATS or factor not in (None, *FLOATS):
        return None
    return _rounding(cast(OpOverload, call.node.target), call.adds, dtype, factor)


@cache
def _rounding(
    target: OpOverload, adds: bool, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> Rounding | None:
    """How ``target`` rounds, if as exactly the words of one rounding do."""
    with unset_fake_temporarily():  # a compiler's hook runs under its fake mode
        return _asked(target, adds, dtype, weight_dtype)


def forget_roundings() -> None:
    """Has definitions asked again: operators were defined."""
    _rounding.cache_clear()


def _asked(
    target: OpOverload, adds: bool, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> Rounding | None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(16, 256, generator=generator).to(dtype) for _ in range(1 + adds)]
    weight = None if weight_dtype is None else torch.rand(256, generator=generator).to(weight_dtype) + 0.5
    try:
        given = target(*(row.clone() for row in rows), weight, _EPS)
    except RuntimeError:  # no kernel for a CPU, or none for these dtypes
        return None
    results = given if isinstance(given, (tuple, list)) else (given,)
    dtypes = [dtype, torch.float32] if dtype != torch.float32 else [dtype]
    for total, normed in product(dtypes if adds else [dtype], dtypes):
        rounding = Rounding(total, normed)
        if _same(results, rounds_as(rounding, rows, weight, _EPS)):
            return rounding
    return None


def rounds_as(
    rounding: Rounding, rows: Sequence[torch.Tensor], weight: torch.Tensor | None, eps: float
) -> list[torch.Tensor]:
    """What an operator of this ``rounding`` returns for ``rows``, the input and a residual if it adds one."""
    dtype, total = rows[0].dtype, rows[0]
    if len(rows) > 1:
        total = ResidualAdd(rounding.total).reference(*rows)
    word = _word(rounding, eps, dtype, "none" if weight is None else "w")
    normed = word.reference(total, weight, None)
    return [normed, total.to(dtype)] if len(rows) > 1 else [normed]


def _same(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    pairs = zip(results, expected, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
