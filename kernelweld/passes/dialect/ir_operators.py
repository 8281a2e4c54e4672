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

from kernelweld.ir import ResidualAdd, RMSNorm
from kernelweld.ir.origin import Origin, record_origin
from kernelweld.passes.dialect.builder import Builder
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import FLOATS, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss

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
    """A call of one of the operators, as it stands in a graph."""

    node: fx.Node
    adds: bool

    @property
    def name(self) -> str:
        """``vllm_ir.rms_norm``."""
        return str(cast(OpOverload, self.node.target).name()).replace("::", ".")

    def operands(self) -> tuple[fx.Node, ...]:
        """What it reads."""
        return tuple(self.node.all_input_nodes)

    def results(self) -> tuple[fx.Node, ...]:
        """The nodes that hold its results: itself, or those that take one of two."""
        return tuple(self.node.users) if self.adds else (self.node,)

    def origin(self) -> Origin:
        """The call and what takes its results."""
        nodes = [self.node, *self.results()] if self.adds else [self.node]
        return record_origin(nodes, self.operands(), self.results())


def read_functional(node: fx.Node) -> FunctionalCall | None:
    """The call that ``node`` is, or None."""
    adds = _NAMES.get(node.target.name()) if isinstance(node.target, OpOverload) else None
    return None if adds is None else FunctionalCall(node, adds)


def expand_functional(call: FunctionalCall, build: Builder) -> list[fx.Node]:
    """The words of ``call``: one node for each of its results.

    Raises:
        Miss: words do not say what it computes.
    """
    given = {a.name: a.default_value for a in cast(OpOverload, call.node.target)._schema.arguments}
    values = list((given | dict(zip(given, call.node.args, strict=False)) | call.node.kwargs).values())
    tensors, rest = values[: 2 + call.adds], values[2 + call.adds :]
    x, weight = cast(fx.Node, tensors[0]), cast("fx.Node | None", tensors[-1])
    if any(value is not None for value in rest[1:]):
        raise Miss("%{} normalises by a part of its row", call.node, call.node)
    dtype, weight_dtype = dtype_of(x), None if weight is None else dtype_of(weight)
    if dtype not in FLOATS or (weight is not None and weight_dtype not in FLOATS):
        names = dtype_name(dtype), dtype_name(weight_dtype)
        raise Miss("the input %{} is {}, the weight {}", x, x, *names)
    if weight is not None and not same_shape(shape_of(weight), shape_of(x)[-1:]):
        raise Miss("the weight %{} is not one row", weight, weight)
    rounding = _rounding(cast(OpOverload, call.node.target), call.adds, dtype, weight_dtype)
    if rounding is None:
        raise Miss("%{} rounds as no word does, or not on a CPU", call.node, call.node)
    total = x
    if call.adds:
        total = build.word(ResidualAdd(rounding.total), x, cast(fx.Node, tensors[1]))
    normed = build.word(_word(rounding, cast(float, rest[0]), dtype, weight), total, weight, None)
    if not call.adds:
        return [normed]
    both = normed, build.cast(total, dtype)
    return [both[cast(int, user.args[1])] for user in call.results()]


def _word(rounding: Rounding, eps: float, dtype: torch.dtype, weight: object) -> RMSNorm:
    scale = "none" if weight is None else "w"
    normed = torch.float32 if weight is None else rounding.normed
    return RMSNorm(eps, scale, normed_dtype=normed, dtype=dtype)


@cache
def _rounding(
    target: OpOverload, adds: bool, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> Rounding | None:
    """How ``target`` rounds, if as exactly the words of one rounding do."""
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
        if _same(results, _expected(rounding, rows, weight)):
            return rounding
    return None


def _expected(
    rounding: Rounding, rows: Sequence[torch.Tensor], weight: torch.Tensor | None
) -> list[torch.Tensor]:
    dtype, total = rows[0].dtype, rows[0]
    if len(rows) > 1:
        total = ResidualAdd(rounding.total).reference(*rows)
    word = _word(rounding, _EPS, dtype, weight)
    normed = word.reference(total, weight, None)
    return [normed, total.to(dtype)] if len(rows) > 1 else [normed]


def _same(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    pairs = zip(results, expected, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
