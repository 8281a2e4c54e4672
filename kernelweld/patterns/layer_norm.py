"""LayerNorm in FX: by ``var_mean``, by hand, or as ``aten.native_layer_norm``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.layer_norm import LayerNorm
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.normalise import first_result, normalised
from kernelweld.patterns.ops import (
    FLOATS,
    MEAN,
    SUB,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    is_getitem,
    operands,
    shape_of,
    shape_text,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import row_statistic, same_value, upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.roots import ROOTS, read_eps, read_root
from kernelweld.patterns.scalars import scalar
from kernelweld.patterns.squares import in_float32, read_mean, read_square
from kernelweld.patterns.tail import Tail
from kernelweld.patterns.weights import read_vector

VAR_MEAN: OpOverload = aten.var_mean.correction
VAR: OpOverload = aten.var.correction
NATIVE: tuple[OpOverload, ...] = (aten.native_layer_norm.default,)


@dataclass(frozen=True)
class LayerNormPattern(ReadingPattern):
    """``(x - mean(x)) * rsqrt(var(x) + eps)``, then weight and bias, as far as they are there."""

    name: ClassVar[str] = "layer_norm"
    kind: ClassVar[str] = "layer_norm"
    spelling: ClassVar[str] = (
        "`(x - mean(x)) * rsqrt(var(x) + eps)` over the last dimension in float32, then weight and bias"
    )
    anchors: ClassVar[tuple[OpOverload, ...]] = (*ROOTS, *NATIVE)

    def read(self, anchor: fx.Node) -> Match:
        if is_call(anchor, *NATIVE):
            return _read_native(anchor)
        cover = Cover()
        root = read_root(anchor, cover)
        stabilised = read_eps(root.radicand, cover)
        values, centred = _read_variance(stabilised.statistic, cover)
        normed = normalised(root, lambda numerator: _is_centred(numerator, values, centred, cover), cover)
        return _read_forward(normed, values, stabilised.eps, cover)


def _read_variance(statistic: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node | None]:
    """The values whose variance ``statistic`` is, and ``values - mean`` if it is written with that."""
    call = statistic.args[0] if is_getitem(statistic, 0) else statistic
    if is_call(call, VAR_MEAN, VAR):
        cover.take(statistic, call)
        return _operator_variance(call), None
    squares = read_mean(statistic, cover)
    centred = read_square(squares, cover, "mean")
    pair = operands(centred) if is_call(centred, *SUB) else None
    if pair is None or not isinstance(pair[0], fx.Node):
        raise something_else(centred)
    in_float32(centred, "difference from the mean")
    _check_mean(centred, pair[1], pair[0], cover)
    return pair[0], centred


def _operator_variance(call: fx.Node) -> fx.Node:
    values, dims = call.args[0], argument(call, 1, "dim")
    if not isinstance(values, fx.Node):
        raise something_else(call)
    rank = len(shape_of(values))
    listed = list(dims) if isinstance(dims, Sequence) else []
    if [d % rank for d in listed if isinstance(d, int)] != [rank - 1]:
        template = "the variance runs over dimensions {} of {}, not over the last alone"
        raise Miss(template, call, listed, shape_text(shape_of(values)))
    correction = scalar(argument(call, 2, "correction", 1))
    if correction != 0.0:
        divisor = 1.0 if correction is None else correction
        raise Miss("the variance is divided by N - {:g}, not by N", call, divisor, stage=NEARLY)
    in_float32(values, "variance")
    return values


def _is_centred(numerator: fx.Node, values: fx.Node, centred: fx.Node | None, cover: Cover) -> bool:
    """Whether ``numerator`` is ``values`` minus their mean; covers it."""
    if centred is not None:
        return same_value(numerator, centred)
    numerator = upcast(numerator, cover)
    pair = operands(numerator) if is_call(numerator, *SUB) else None
    if pair is None or not same_value(pair[0], values):
        return False
    in_float32(numerator, "difference from the mean")
    _check_mean(numerator, pair[1], values, cover)
    return True


def _check_mean(difference: fx.Node, mean: object, values: fx.Node, cover: Cover) -> None:
    """Covers ``difference = values - mean``.

    Raises:
        Miss: what is subtracted is not the mean of ``values``.
    """
    if not isinstance(mean, fx.Node):
        raise something_else(difference)
    statistic = row_statistic(mean, cover)
    if is_getitem(statistic, 1) and is_call(statistic.args[0], VAR_MEAN):
        averaged = _operator_variance(statistic.args[0])
        cover.take(statistic, statistic.args[0])
    elif is_call(statistic, MEAN) or operands(statistic):
        averaged = read_mean(statistic, cover)
    else:
        raise something_else(difference)
    if not same_value(averaged, values):
        template = "%{} subtracts the mean of %{} from %{}"
        raise Miss(template, difference, difference, averaged, values, stage=NEARLY)
    upcast(averaged, cover)
    cover.take(difference)


def _read_forward(normed: fx.Node, values: fx.Node, eps: float, cover: Cover) -> Match:
    width = shape_of(values)[-1]
    x = upcast(values, cover)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    tail = Tail(normed, cover)
    normed_dtype = tail.rounding()
    weight = tail.weight(width, plus_one=False)
    scaled_dtype = tail.rounding() if weight is not None else torch.float32
    bias = tail.bias(width)
    dtype = tail.rounding()
    if bias is None:
        scaled_dtype = torch.float32  # rounded once, to dtype
        normed_dtype = torch.float32 if weight is None else normed_dtype
    word = LayerNorm(eps, normed_dtype, scaled_dtype, dtype)
    return cover.match(word, (x, weight.node if weight else None, bias), tail.value, stopped=tail.stopped)


def _read_native(anchor: fx.Node) -> Match:
    """``native_layer_norm(x, [N], weight?, bias?, eps)``: float32 inside, rounded once."""
    x, normalized, weight, bias, eps = anchor.args
    if not isinstance(x, fx.Node) or not isinstance(normalized, Sequence):
        raise something_else(anchor)
    if len(normalized) != 1:
        raise Miss("%{} normalises the last {} dimensions", anchor, anchor, len(normalized))
    cover = Cover()
    cover.take(anchor)
    output = first_result(anchor, cover, "a result besides the normalised value")
    dtype = dtype_of(output)
    if dtype not in FLOATS or dtype_of(x) != dtype:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    width = shape_of(x)[-1]
    vectors = tuple(read_vector(v, width, cover) if isinstance(v, fx.Node) else None for v in (weight, bias))
    word = LayerNorm(eps=float(eps), dtype=dtype)  # type: ignore[arg-type]
    return cover.match(word, (x, *vectors), output)
