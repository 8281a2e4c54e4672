"""Gates with an activation that no gate word has: which one, so that the near miss can say it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import fx
from torch._ops import OpOverload

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.gelu import TANH
from kernelweld.patterns.ops import ADD, MUL, aten, is_call, only_user, other_operand, shape_of
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import Miss, something_else
from kernelweld.patterns.scalars import scalar, split_scalar
from kernelweld.patterns.tail import Tail

ERF = aten.erf.default

#: Activations that are one operator in a captured graph, or have one at their heart.
OTHERS: Mapping[OpOverload, str] = MappingProxyType(
    {aten.relu.default: "relu", TANH: "tanh", ERF: "the exact gelu"}
)

#: How far a factor is looked for among what an activation is computed from.
_DEPTH = 8


def other_activation(anchor: fx.Node) -> Miss:
    """The miss of ``act(gate) * up`` with the activation of ``anchor``; stage 0 if there is none."""
    value = _finished(anchor) if is_call(anchor, ERF) else anchor
    if value is None:
        return something_else(anchor)
    tail = Tail(value, Cover())
    tail.rounding()
    product = only_user(tail.value)
    up = other_operand(product, tail.value) if is_call(product, *MUL) else None
    if not isinstance(up, fx.Node) or up is tail.value or scalar(up) is not None:
        return something_else(anchor)
    if not same_shape(shape_of(up), shape_of(value)) or _reads(value, upcast(up), _DEPTH):
        return something_else(anchor)
    name = OTHERS[anchor.target]  # type: ignore[index]
    return Miss("the activation of the gate in %{} is {}", anchor, product, name)


def _finished(erf: fx.Node) -> fx.Node | None:
    """The last product of ``0.5 x (1 + erf(...))``."""
    shifted = only_user(erf)
    if not is_call(shifted, *ADD) or (split := split_scalar(shifted)) is None or split[1] != 1.0:
        return None
    product = only_user(shifted)
    return product if is_call(product, *MUL) else None


def _reads(value: fx.Node, operand: fx.Node, depth: int) -> bool:
    """Whether ``value`` is computed from ``operand`` in a few steps: then the product is no gate."""
    if value is operand or depth == 0:
        return value is operand
    return any(_reads(source, operand, depth - 1) for source in value.all_input_nodes)
