"""Gates in FX: an activation of one tensor times another tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.gate_mul import GateMul
from kernelweld.patterns.activation import ANCHORS, activation_value, read_activation
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import FLOATS, MUL, dtype_name, dtype_of, is_call, only_user, other_operand
from kernelweld.patterns.other_activation import OTHERS, other_activation
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import LOOKS_LIKE, SOMETHING_ELSE, Miss, ReadingPattern, something_else
from kernelweld.patterns.scalars import scalar
from kernelweld.patterns.tail import Tail


@dataclass(frozen=True)
class GateMulPattern(ReadingPattern):
    """``act(gate) * up``, either order, the activation rounded or not."""

    name: ClassVar[str] = "gate_mul"
    kind: ClassVar[str] = "gate_mul"
    spelling: ClassVar[str] = (
        "`act(gate) * up` with silu, sigmoid or the tanh form of gelu, computed in float32"
    )
    anchors: ClassVar[tuple[OpOverload, ...]] = (*ANCHORS, *(op for op in OTHERS if op not in ANCHORS))

    def read(self, anchor: fx.Node) -> Match:
        try:
            return self._read_gate(anchor)
        except Miss as miss:
            if miss.no_match.stage != SOMETHING_ELSE or anchor.target not in OTHERS:
                raise
        raise other_activation(anchor)

    def _read_gate(self, anchor: fx.Node) -> Match:
        cover = Cover()
        value = activation_value(anchor)
        activation = read_activation(value, cover)
        tail = Tail(value, cover)
        act_dtype = tail.rounding()
        up = _up(tail.value, cover)
        product = only_user(tail.value)
        assert product is not None
        cover.take(product)
        tail = Tail(product, cover)
        dtype = tail.rounding()
        word = GateMul(activation.act, act_dtype, dtype)
        return cover.match(word, (activation.gate, up), tail.value)


def _up(activation: fx.Node, cover: Cover) -> fx.Node:
    """The tensor that the activation multiplies."""
    product = only_user(activation)
    if not is_call(product, *MUL):
        if any(is_call(user, *MUL) for user in activation.users):
            users = len(activation.users)
            raise Miss("the activation %{} is used by {} nodes", activation, activation, users)
        raise something_else(activation)
    up = other_operand(product, activation)
    if not isinstance(up, fx.Node) or up is activation or scalar(up) is not None:
        raise something_else(activation)
    for node in (up, product):
        if dtype_of(node) not in FLOATS:
            raise Miss("%{} is {}", node, node, dtype_name(dtype_of(node)), stage=LOOKS_LIKE)
    assert isinstance(up, fx.Node)
    return upcast(up, cover) if dtype_of(up) == torch.float32 else up
