"""Lower and upper bounds in all spellings: ``clamp``, ``clamp_min``, ``maximum`` with a number, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx
from torch._ops import OpOverload

from kernelweld.patterns.ops import argument, aten, is_call
from kernelweld.patterns.scalars import scalar, split_scalar

LOWER = (aten.clamp_min.default, aten.maximum.default)
UPPER = (aten.clamp_max.default, aten.minimum.default)


@dataclass(frozen=True)
class Bounds:
    """``value`` held between ``low`` and ``high`` (None: not bounded) by ``nodes``."""

    value: fx.Node
    low: float | None
    high: float | None
    nodes: tuple[fx.Node, ...]


def bounds_of(node: fx.Node) -> Bounds:
    """The value below the bounds that end in ``node``, at most one of each kind."""
    low = high = None
    nodes: list[fx.Node] = []
    while True:
        step = _clamp(node) or _one_sided(node, LOWER, lower=True) or _one_sided(node, UPPER, lower=False)
        if step is None or (step.low is not None and low is not None):
            break
        if step.high is not None and high is not None:
            break
        low, high = low if step.low is None else step.low, high if step.high is None else step.high
        nodes.append(node)
        node = step.value
    return Bounds(node, low, high, tuple(nodes))


def lower_bound(node: fx.Node) -> tuple[fx.Node, float] | None:
    """The value and the number of a single lower bound."""
    bounds = bounds_of(node)
    single = len(bounds.nodes) == 1 and bounds.high is None and bounds.low is not None
    return (bounds.value, bounds.low) if single and bounds.low is not None else None


def _clamp(node: fx.Node) -> Bounds | None:
    source = node.args[0] if is_call(node, aten.clamp.default) else None
    if not isinstance(source, fx.Node):
        return None
    low, high = (argument(node, i, name) for i, name in ((1, "min"), (2, "max")))
    found = [None if bound is None else scalar(bound) for bound in (low, high)]
    if (low is not None and found[0] is None) or (high is not None and found[1] is None):
        return None
    return Bounds(source, found[0], found[1], (node,))


def _one_sided(node: fx.Node, ops: Sequence[OpOverload], *, lower: bool) -> Bounds | None:
    split = split_scalar(node) if is_call(node, *ops) else None
    if split is None:
        return None
    value, number = split
    return Bounds(value, number if lower else None, None if lower else number, (node,))
