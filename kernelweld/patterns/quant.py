"""Quantization in FX: scaled, clamped to the codes, and cast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.quant import Quant
from kernelweld.patterns.bounds import Bounds, bounds_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    DIV,
    FLOATS,
    MUL,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.scalars import split_scalar
from kernelweld.patterns.unclamped import check_unclamped

#: The range of codes of each dtype.
RANGES: Mapping[torch.dtype, tuple[float, float]] = MappingProxyType(
    {torch.float8_e4m3fn: (-448.0, 448.0), torch.int8: (-128.0, 127.0)}
)


@dataclass(frozen=True)
class QuantPattern(ReadingPattern):
    """``clamp(x / scale, low, high)`` as fp8 e4m3 codes, or rounded to int8 codes; without the clamp where
    the scale keeps quotients within the codes.
    """

    name: ClassVar[str] = "quant"
    kind: ClassVar[str] = "quant"
    spelling: ClassVar[str] = "`clamp(x / scale, low, high)`, rounded and cast to the codes"
    anchors: ClassVar[tuple[OpOverload, ...]] = (CAST,)

    def read(self, anchor: fx.Node) -> Match:
        dtype = dtype_of(anchor)
        if dtype is None or dtype not in RANGES or not isinstance(anchor.args[0], fx.Node):
            raise something_else(anchor)
        cover = Cover()
        bounds = _clamped(anchor, dtype, cover)
        below = _below_rounding(bounds.value)
        scaled = bounds.value if below is None else _without_zero(below, cover)
        x, scale, operation = _scaled(scaled, anchor, cover)
        _check_rounding(bounds.value, below, dtype, cover)
        cover.take(anchor, *bounds.nodes)
        assert bounds.low is not None and bounds.high is not None
        word = Quant(bounds.low, bounds.high, operation, dtype)
        if not bounds.nodes:
            check_unclamped(anchor, word, x, scale)
        if isinstance(scale, fx.Node):
            return cover.match(word, (x, scale), anchor)
        return cover.match(replace(word, number=scale), (x, None), anchor)


def _clamped(anchor: fx.Node, dtype: torch.dtype, cover: Cover) -> Bounds:
    """The bounds below the cast, with int8's rounding between them and the cast or not; without a clamp
    those of the codes, from no nodes.
    """
    value = anchor.args[0]
    assert isinstance(value, fx.Node)
    if is_call(value, aten.round.default) and isinstance(value.args[0], fx.Node):
        cover.take(value)
        value = value.args[0]
    bounds = bounds_of(value)
    if not dtype.is_floating_point:
        bounds = replace(bounds, value=_without_zero(bounds.value, cover))
    low, high = RANGES[dtype]
    if not bounds.nodes and (dtype.is_floating_point or cover.inner):
        return replace(bounds, low=low, high=high)
    if bounds.low is None or bounds.high is None:
        raise something_else(anchor)
    if not (low <= bounds.low < bounds.high <= high):
        template = "%{} clamps to [{}, {}], more than {} has codes for"
        name = dtype_name(dtype)
        raise Miss(template, bounds.nodes[0], bounds.nodes[0], bounds.low, bounds.high, name, stage=NEARLY)
    return bounds


def _without_zero(value: fx.Node, cover: Cover) -> fx.Node:
    """The value below the addition of a zero point of zero, before or behind the rounding; a sign of zero
    has no code.
    """
    split = split_scalar(value) if is_call(value, *ADD) else None
    if split is None or split[1] != 0.0:
        return value
    cover.take(value)
    return split[0]


def _below_rounding(value: fx.Node) -> fx.Node | None:
    below = value.args[0] if is_call(value, aten.round.default) else None
    return below if isinstance(below, fx.Node) else None


def _check_rounding(value: fx.Node, below: fx.Node | None, dtype: torch.dtype, cover: Cover) -> None:
    """Takes the rounding to whole numbers, which int8 has and fp8 has not."""
    rounded = below is not None or any(is_call(n, aten.round.default) for n in cover.inner)
    if rounded == dtype.is_floating_point:
        what = "rounded to whole numbers" if rounded else "cast without rounding"
        raise Miss("%{} is {} before it becomes {}", value, value, what, dtype_name(dtype), stage=NEARLY)
    if below is not None:
        cover.take(value)


def _scaled(node: fx.Node, anchor: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node | float, str]:
    """``x``, its scale, and how they meet."""
    pair = operands(node) if is_call(node, *DIV, *MUL) else None
    if pair is None or dtype_of(node) != torch.float32:
        raise something_else(anchor)
    known = _by_number(node)
    if known is not None:
        cover.take(node)
        return _values(known[0], anchor, cover), known[1], known[2]
    divided = is_call(node, *DIV)
    for x, scale in (pair,) if divided else (pair, pair[::-1]):
        if not isinstance(x, fx.Node) or not isinstance(scale, fx.Node) or not _is_scale(scale, node):
            continue
        if not same_shape(shape_of(x), shape_of(node)):
            continue
        cover.take(node)
        x = _values(x, anchor, cover)
        if dtype_of(scale) != torch.float32:
            raise something_else(anchor)
        return x, *_operation(scale, divided, cover)
    raise something_else(anchor)


def _values(x: fx.Node, anchor: fx.Node, cover: Cover) -> fx.Node:
    """What is quantized, below its upcast."""
    x = upcast(x, cover)
    if dtype_of(x) not in FLOATS:
        raise something_else(anchor)
    return x


def _operation(scale: fx.Node, divided: bool, cover: Cover) -> tuple[fx.Node, str]:
    """The scale of a quotient, or of a product with it or with its reciprocal; and which it is."""
    if divided:
        return scale, "divide"
    if is_call(scale, aten.reciprocal.default) and isinstance(scale.args[0], fx.Node):
        cover.share(scale)
        return scale.args[0], "reciprocal"
    return scale, "multiply"


def _by_number(node: fx.Node) -> tuple[fx.Node, float, str] | None:
    """What ``node`` divides by a number or multiplies with it, the number, and which of both."""
    split = split_scalar(node) if is_call(node, *DIV, *MUL) else None
    if split is None:
        return None
    value, number = split
    divided = is_call(node, *DIV)
    if not 2.0**-126 <= abs(number) < math.inf or (divided and value is not node.args[0]):
        return None
    return value, number, "divide" if divided else "multiply"


def _is_scale(scale: fx.Node, product: fx.Node) -> bool:
    """Whether ``scale`` is one number, or one for each row."""
    shape = shape_of(scale)
    if all(isinstance(size, int) for size in shape) and math.prod(shape) == 1:
        return True
    wanted = (*shape_of(product)[:-1], 1)
    return len(shape) == len(wanted) and same_size(shape[-1], 1) and same_shape(shape, wanted)
