"""Activations of gates in all spellings: decomposed, written out by hand, and as one operator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.gelu import TANH, gelu_value, read_gelu
from kernelweld.patterns.ops import (
    ADD,
    DIV,
    FLOATS,
    MUL,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    only_user,
    operands,
    other_operand,
)
from kernelweld.patterns.peel import same_value, upcast
from kernelweld.patterns.reading import NEARLY, Miss, something_else
from kernelweld.patterns.scalars import scalar, split_scalar
from kernelweld.patterns.squares import in_float32

SILU, SIGMOID, GELU = aten.silu.default, aten.sigmoid.default, aten.gelu.default
EXP, NEG = aten.exp.default, aten.neg.default
RECIPROCAL = aten.reciprocal.default

#: The operators that an activation may be recognised from.
ANCHORS = (aten.div.Tensor, RECIPROCAL, SIGMOID, TANH, SILU, GELU)


@dataclass(frozen=True)
class Activation:
    """``act(gate)``, computed in float32 and kept in the dtype of its node."""

    act: str
    gate: fx.Node


def activation_value(anchor: fx.Node) -> fx.Node:
    """The node that holds the finished activation that ``anchor`` is part of.

    Raises:
        Miss: ``anchor`` is no part of an activation (stage 0).
    """
    if is_call(anchor, TANH):
        return gelu_value(anchor)
    user = only_user(anchor)
    if not is_call(anchor, SIGMOID) or not is_call(user, *MUL) or dtype_of(anchor) != torch.float32:
        return anchor
    return user if same_value(other_operand(user, anchor), anchor.args[0]) else anchor


def read_activation(value: fx.Node, cover: Cover) -> Activation:
    """The activation that ``value`` holds.

    Raises:
        Miss: it is none, or one with another formula or precision.
    """
    if is_call(value, SILU, SIGMOID, GELU):
        return _operator(value, cover)
    if is_call(value, *DIV, RECIPROCAL):
        return _quotient(value, cover)
    if is_call(value, *MUL):
        return _product(value, cover)
    raise something_else(value)


def _operator(value: fx.Node, cover: Cover) -> Activation:
    if is_call(value, GELU) and argument(value, 1, "approximate", "none") != "tanh":
        raise Miss(
            "%{} is the exact gelu, not its tanh form",
            value,
            value,
            remedy="Use gelu with approximate='tanh'.",
        )
    act = {SILU: "silu", SIGMOID: "sigmoid", GELU: "gelu_tanh"}[value.target]  # type: ignore[index]
    cover.take(value)
    return Activation(act, _gate(value.args[0], value, cover))


def _quotient(value: fx.Node, cover: Cover) -> Activation:
    """``x / (1 + exp(-x))`` is silu, ``1 / (1 + exp(-x))`` is sigmoid."""
    pair = (1.0, value.args[0]) if is_call(value, RECIPROCAL) else operands(value)
    if pair is None or not isinstance(pair[1], fx.Node) or not is_call(pair[1], *ADD):
        raise something_else(value)
    split = split_scalar(pair[1])
    if split is None or not is_call(split[0], EXP):
        raise something_else(value)
    denominator, (exponential, one) = pair[1], split
    if one != 1.0:
        raise Miss("the denominator %{} adds {:g}, not 1", denominator, denominator, one, stage=NEARLY)
    negated = exponential.args[0]
    if not is_call(negated, NEG):
        template = "the exponential %{} is of %{}, not of its negative"
        raise Miss(template, exponential, exponential, negated, stage=NEARLY)
    inner = negated.args[0]
    for step in (value, denominator, exponential):
        in_float32(step, "activation")
    cover.take(value, denominator, exponential, negated)
    if scalar(pair[0]) == 1.0:
        return Activation("sigmoid", _gate(inner, value, cover))
    if not same_value(pair[0], inner):
        raise Miss("the numerator is %{} and the exponential is of %{}", value, pair[0], inner, stage=NEARLY)
    _gate(pair[0], value, cover)
    return Activation("silu", _gate(inner, value, cover))


def _product(value: fx.Node, cover: Cover) -> Activation:
    """``x * sigmoid(x)`` in float32 is silu; else it may be the last product of the tanh gelu."""
    pair = operands(value)
    if pair is None:
        raise something_else(value)
    for one, other in (pair, pair[::-1]):
        if is_call(one, SIGMOID) and same_value(other, one.args[0]):
            in_float32(one, "activation")
            cover.take(value, one)
            return Activation("silu", _gate(other, value, cover))
    return Activation("gelu_tanh", _gate(read_gelu(value, cover), value, cover))


def _gate(node: object, value: fx.Node, cover: Cover) -> fx.Node:
    if not isinstance(node, fx.Node):
        raise something_else(value)
    gate = upcast(node, cover)
    if dtype_of(gate) not in FLOATS:
        raise Miss("the gate %{} is {}", value, gate, dtype_name(dtype_of(gate)))
    return gate
