"""RMSNorm in FX: decomposed in any spelling, gated before or after, or as one ATen operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.rms_norm import GATES, RMSNorm
from kernelweld.patterns.activation import Activation, read_activation
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.normalise import first_result, normalised
from kernelweld.patterns.ops import (
    FLOATS,
    MUL,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import same_value, upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.roots import ROOTS, read_eps, read_root
from kernelweld.patterns.squares import in_float32, read_mean, read_square
from kernelweld.patterns.tail import Tail
from kernelweld.patterns.weights import read_weight

FUSED: tuple[OpOverload, ...] = (aten._fused_rms_norm.default, aten.rms_norm.default)


@dataclass(frozen=True)
class RMSNormPattern(ReadingPattern):
    """``x * rsqrt(mean(x²) + eps)``, then rounding, weight, rounding, gate, as far as they are there."""

    name: ClassVar[str] = "rms_norm"
    kind: ClassVar[str] = "rms_norm"
    spelling: ClassVar[str] = (
        "`x * rsqrt(mean(x²) + eps)` over the last dimension in float32, then the weight"
    )
    anchors: ClassVar[tuple[OpOverload, ...]] = (*ROOTS, *FUSED)

    def read(self, anchor: fx.Node) -> Match:
        if is_call(anchor, *FUSED):
            return _read_fused(anchor)
        cover = Cover()
        root = read_root(anchor, cover)
        stabilised = read_eps(root.radicand, cover)
        squares = read_mean(stabilised.statistic, cover)
        values = read_square(squares, cover, "mean")
        in_float32(values, "mean of squares")
        normed = normalised(root, lambda numerator: same_value(numerator, values), cover)
        return _read_forward(normed, values, stabilised.eps, cover)


def _read_forward(normed: fx.Node, values: fx.Node, eps: float, cover: Cover) -> Match:
    width = shape_of(values)[-1]
    first = _gate_before(values, normed, cover)
    tail = Tail(normed, cover)
    normed_dtype = tail.rounding()
    weight = tail.weight(width)
    scaled_dtype = tail.rounding() if weight is not None else normed_dtype
    gate = None if first is not None else tail.gate(GATES)
    dtype = tail.rounding()
    if gate is None:
        scaled_dtype = torch.float32  # rounded once, to dtype
    if weight is None and gate is None:
        normed_dtype = torch.float32
    x, gate_node, act = _inputs(values, first, gate, cover)
    word = RMSNorm(
        eps=eps,
        scale="none" if weight is None else "1+w" if weight.plus_one else "w",
        gate=act,
        gate_first=first is not None,
        normed_dtype=normed_dtype,
        scaled_dtype=scaled_dtype,
        dtype=dtype,
    )
    operands_ = (x, weight.node if weight else None, gate_node)
    return cover.match(word, operands_, tail.value, stopped=tail.stopped)


def _inputs(
    values: fx.Node, first: tuple[fx.Node, Activation] | None, gate: Activation | None, cover: Cover
) -> tuple[fx.Node, fx.Node | None, str]:
    x = upcast(values if first is None else first[0], cover)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    active = first[1] if first is not None else gate
    return (x, None, "none") if active is None else (x, active.gate, active.act)


def _gate_before(values: fx.Node, normed: fx.Node, cover: Cover) -> tuple[fx.Node, Activation] | None:
    """``values = x * act(gate)`` in float32, used by the norm alone: the input and the gate."""
    pair = operands(values) if is_call(values, *MUL) else None
    for x, factor in (pair, pair[::-1]) if pair is not None else ():
        if not isinstance(x, fx.Node) or not isinstance(factor, fx.Node):
            continue
        trial = Cover()
        try:
            trial.take(values)
            active = read_activation(factor, trial)
            trial.merge(cover)
            trial.check(normed)
        except Miss:
            continue
        kept = dtype_of(factor) == torch.float32 and same_shape(shape_of(x), shape_of(values))
        if active.act in GATES and kept:
            cover.merge(trial)
            return x, active
    return None


def _read_fused(anchor: fx.Node) -> Match:
    """``rms_norm(x, [N], weight?, eps?)``: float32 inside, rounded once; ``_fused`` also returns ``rstd``."""
    x, normalized = anchor.args[0], anchor.args[1]
    if not isinstance(x, fx.Node) or not isinstance(normalized, Sequence):
        raise something_else(anchor)
    if len(normalized) != 1:
        raise Miss("%{} normalises the last {} dimensions", anchor, anchor, len(normalized))
    cover = Cover()
    cover.take(anchor)
    output = anchor
    if is_call(anchor, aten._fused_rms_norm.default):
        output = first_result(anchor, cover, "its second result, the inverse root")
    factor = argument(anchor, 2, "weight")
    weight = read_weight(factor, shape_of(x)[-1], cover) if isinstance(factor, fx.Node) else None
    dtype = dtype_of(output)
    if dtype not in FLOATS or dtype_of(x) != dtype:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    eps = argument(anchor, 3, "eps")
    word = RMSNorm(
        eps=torch.finfo(torch.float32).eps if eps is None else float(eps),  # type: ignore[arg-type]
        scale="none" if weight is None else "1+w" if weight.plus_one else "w",
        dtype=dtype,
    )
    return cover.match(word, (x, weight.node if weight else None, None), output)
