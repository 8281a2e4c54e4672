"""Gelu by tanh, decomposed: ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` in any order."""

from __future__ import annotations

import math

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import ADD, MUL, POW, aten, is_call, only_user, operands
from kernelweld.patterns.peel import same_value, upcast
from kernelweld.patterns.reading import Miss, something_else
from kernelweld.patterns.scalars import close_to, scalar, split_scalar
from kernelweld.patterns.squares import in_float32

TANH = aten.tanh.default


def gelu_value(tanh: fx.Node) -> fx.Node:
    """The node of the last product of the gelu that ``tanh`` is part of.

    Raises:
        Miss: ``tanh`` is not part of one (stage 0).
    """
    shifted = only_user(tanh)
    product = only_user(shifted) if is_call(shifted, *ADD) else None
    if not is_call(product, *MUL):
        raise something_else(tanh)
    try:
        number = _factors(product, Cover())[0]
    except Miss:
        number = None
    outer = only_user(product)
    return outer if number != 0.5 and is_call(outer, *MUL) else product


def read_gelu(value: fx.Node, cover: Cover) -> fx.Node:
    """The ``x`` of the gelu that ``value`` is.

    Raises:
        Miss: it is none (stage 0), or one with other constants or another inner ``x``.
    """
    half, x, shifted = _factors(value, cover)
    split = split_scalar(shifted)
    if split is None or not is_call(split[0], TANH):
        raise something_else(value)
    tanh, one = split
    if one != 1.0 or half != 0.5:
        raise Miss("%{} is {:g} x ({:g} + tanh), not 0.5 x (1 + tanh)", value, value, half, one)
    scaled = tanh.args[0]
    inner = split_scalar(scaled) if is_call(scaled, *MUL) else None
    if inner is None or not close_to(inner[1], math.sqrt(2 / math.pi)):
        raise Miss("the argument of %{} is not scaled by sqrt(2/pi)", value, tanh)
    cover.take(value, shifted, tanh, scaled)  # type: ignore[arg-type]
    _read_cubic(inner[0], x, cover)
    for step in cover.inner:
        in_float32(step, "activation")
    return x


def _factors(value: fx.Node, cover: Cover) -> tuple[float, fx.Node, fx.Node]:
    """Splits a product into its number, ``x`` and ``1 + tanh``."""
    number, x, shifted = 1.0, None, None
    pending: list[object] = [value]
    while pending:
        factor = pending.pop()
        found = scalar(factor)
        if found is not None:
            number *= found
        elif factor is value or _is_inner_product(factor):
            cover.take(factor)  # type: ignore[arg-type]
            pending += operands(factor) or ()  # type: ignore[arg-type]
        elif is_call(factor, *ADD) and is_call(factor.args[0], TANH):
            shifted = factor
        elif isinstance(factor, fx.Node) and x is None:
            x = factor
        else:
            raise something_else(value)
    if x is None or shifted is None:
        raise something_else(value)
    return number, x, shifted


def _is_inner_product(node: object) -> bool:
    """A product by a number or by ``1 + tanh``."""
    if not is_call(node, *MUL):
        return False
    return split_scalar(node) is not None or any(
        is_call(a, *ADD) and is_call(a.args[0], TANH) for a in node.args
    )


def _read_cubic(node: fx.Node, x: fx.Node, cover: Cover) -> None:
    """Checks ``x + 0.044715 x^3``."""
    for linear, cube in _both_orders(node) if is_call(node, *ADD) else ():
        split = split_scalar(cube) if is_call(cube, *MUL) else None
        if split is None or not same_value(linear, x) or not close_to(split[1], 0.044715):
            continue
        if _is_cube(split[0], x, cover):
            upcast(x, cover)
            cover.take(node, cube)  # type: ignore[arg-type]
            return
    raise Miss("%{} is not x + 0.044715 x^3 of the outer x, %{}", node, node, x)


def _is_cube(node: fx.Node, x: fx.Node, cover: Cover) -> bool:
    cover.take(node)
    if is_call(node, POW):
        return scalar(node.args[1]) == 3.0 and same_value(node.args[0], x)
    for square, linear in _both_orders(node) if is_call(node, *MUL) else ():
        if same_value(linear, x) and _is_square(square, x):
            cover.take(square)  # type: ignore[arg-type]
            return True
    return False


def _is_square(node: object, x: fx.Node) -> bool:
    if is_call(node, POW):
        return scalar(node.args[1]) == 2.0 and same_value(node.args[0], x)
    pair = operands(node) if is_call(node, *MUL) else None
    return pair is not None and same_value(*pair) and same_value(pair[0], x)


def _both_orders(node: fx.Node) -> tuple[tuple[object, object], ...]:
    pair = operands(node)
    return (pair, (pair[1], pair[0])) if pair is not None else ()
