"""The root of a norm in all spellings: ``rsqrt``, ``1 / sqrt``, ``pow -0.5``, ``sqrt`` as a divisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx
from torch._ops import OpOverload

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import ADD, DIV, MEAN, POW, aten, is_call, only_user, operands
from kernelweld.patterns.peel import row_statistic
from kernelweld.patterns.reading import LOOKS_LIKE, NEARLY, Miss, something_else
from kernelweld.patterns.scalars import scalar, split_scalar

BOUNDS = (aten.clamp_min.default, aten.clamp.default, aten.maximum.default)
ROOTS: tuple[OpOverload, ...] = (aten.rsqrt.default, aten.sqrt.default, POW)
_EXPONENTS: Mapping[object, float] = MappingProxyType({aten.rsqrt.default: -0.5, aten.sqrt.default: 0.5})


@dataclass(frozen=True)
class Root:
    """``value`` is ``1 / sqrt(radicand)`` if ``inverse``, else ``sqrt(radicand)``."""

    radicand: fx.Node
    value: fx.Node
    inverse: bool


def read_root(anchor: fx.Node, cover: Cover) -> Root:
    """The root that ``anchor`` takes.

    Raises:
        Miss: ``anchor`` is another power (stage 0).
    """
    radicand = anchor.args[0]
    if not isinstance(radicand, fx.Node):
        raise something_else(anchor)
    exponent = scalar(anchor.args[1]) if is_call(anchor, POW) else _EXPONENTS[anchor.target]
    if exponent not in (0.5, -0.5):
        raise something_else(anchor)
    cover.take(anchor)
    if exponent == -0.5:
        return Root(radicand, anchor, inverse=True)
    reciprocal = only_user(anchor)
    if reciprocal is not None and _is_reciprocal(reciprocal):
        cover.take(reciprocal)
        return Root(radicand, reciprocal, inverse=True)
    return Root(radicand, anchor, inverse=False)


def _is_reciprocal(node: fx.Node) -> bool:
    if is_call(node, aten.reciprocal.default):
        return True
    pair = operands(node) if is_call(node, *DIV) else None
    return pair is not None and scalar(pair[0]) == 1.0


@dataclass(frozen=True)
class Stabilised:
    """``statistic + eps``; eps is 0 where nothing is added."""

    statistic: fx.Node
    eps: float


def read_eps(radicand: fx.Node, cover: Cover, reduction: OpOverload = MEAN) -> Stabilised:
    """Takes the eps off a radicand that looks like the word if it holds a ``reduction``.

    Raises:
        Miss: eps is a graph input, so the compiled graph would not be constant in it.
    """
    node = row_statistic(radicand, cover)
    if is_call(node, *BOUNDS) and is_call(row_statistic(_first(node), Cover()), reduction):
        raise Miss(
            "eps is a lower bound of the statistic in %{}, not added to it",
            node,
            node,
            stage=NEARLY,
            remedy="Add eps to the statistic in place of the bound.",
        )
    if not is_call(node, *ADD):
        return Stabilised(node, 0.0)
    split = split_scalar(node)
    if split is None:
        raise _no_eps(node, reduction)
    cover.take(node)
    return Stabilised(row_statistic(split[0], cover), split[1])


def _first(node: fx.Node) -> fx.Node:
    first = node.args[0]
    assert isinstance(first, fx.Node)
    return first


def _no_eps(node: fx.Node, reduction: OpOverload) -> Miss:
    terms = [a for a in operands(node) or () if isinstance(a, fx.Node)]
    dynamic = next((a for a in terms if a.op == "placeholder"), None)
    if dynamic is None or not any(is_call(row_statistic(a, Cover()), reduction) for a in terms):
        return something_else(node)
    return Miss("eps is the graph input %{}, not a constant", dynamic, dynamic, stage=LOOKS_LIKE)
