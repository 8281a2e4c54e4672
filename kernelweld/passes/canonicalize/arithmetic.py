"""Arithmetic with one spelling: tensor overloads, squares as products, nothing that returns its input."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from kernelweld.passes.canonicalize.edit import put_before
from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.patterns.dims import same_shape, same_size
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    DIV,
    FLOATS,
    MUL,
    SUB,
    argument,
    aten,
    dtype_of,
    is_call,
    operands,
    value_of,
)

#: The overload with a tensor operand of each overload with a number.
_TENSOR_OVERLOAD = {one[1]: one[0] for one in (ADD, SUB, MUL, DIV)}


def scalar_overload(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``add.Scalar(x, 2)`` becomes ``add.Tensor(x, 2)``."""
    if operands(node) is None:
        return None
    overload: OpOverload = _TENSOR_OVERLOAD[node.target]  # type: ignore[index]
    return put_before(node, overload, node.args)


def square(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``pow(x, 2)`` of a float becomes ``mul(x, x)``, which is how it is computed."""
    base, exponent = node.args
    if not isinstance(base, fx.Node) or exponent != 2 or dtype_of(base) not in FLOATS:
        return None
    return put_before(node, MUL[0], (base, base))


def identity(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``x * 1``, ``x / 1``, ``x - 0`` and, for integers, ``x + 0`` become ``x``.

    ``x + 0.0`` does not: it turns -0.0 into 0.0.
    """
    pair = operands(node)
    if pair is None:
        return None
    source, number = pair if isinstance(pair[0], fx.Node) else pair[::-1]
    if not isinstance(source, fx.Node) or isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    commutes = is_call(node, MUL[0], ADD[0])
    neutral = 1 if is_call(node, MUL[0], DIV[0]) else 0
    if number != neutral or (source is not pair[0] and not commutes) or str(number) == "-0.0":
        return None
    val = value_of(source)
    if is_call(node, ADD[0]) and (val is None or val.dtype.is_floating_point or val.dtype.is_complex):
        return None
    return source if _same_tensor(node, source) and storage.may_alias(node, source) else None


def largest(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``max(x, dim)[0]`` without the places of the largest becomes ``amax(x, [dim])``."""
    found, index = node.args
    if not isinstance(found, fx.Node) or found.target is not aten.max.dim or index != 0:
        return None
    if any(user is not node and user.users for user in found.users):
        return None
    source, dim = found.args[:2]
    return put_before(node, aten.amax.default, (source, [dim], bool(argument(found, 2, "keepdim", False))))


def idle_copy(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A cast to the dtype that a value has, and a clone with its strides, become the value."""
    source = node.args[0]
    if not isinstance(source, fx.Node) or not _same_tensor(node, source):
        return None
    return source if storage.may_alias(node, source) else None


def plain_cast(node: fx.Node, storage: Storage) -> fx.Node | None:
    """``_to_copy`` that changes nothing but the dtype becomes ``convert_element_type``."""
    source, dtype = node.args[0], node.kwargs.get("dtype")
    below, above = (value_of(source) if isinstance(source, fx.Node) else None), value_of(node)
    if below is None or above is None or dtype is None or below.device != above.device:
        return None
    if above.layout != torch.strided or node.kwargs.get("pin_memory") or not _same_layout(node, source):
        return None
    return put_before(node, CAST, (source, dtype))


def _same_tensor(node: fx.Node, source: fx.Node) -> bool:
    """Whether both have the same dtype, shape and strides, for every value of their symbols."""
    a, b = value_of(node), value_of(source)
    return a is not None and b is not None and a.dtype == b.dtype and _same_layout(node, source)


def _same_layout(node: fx.Node, source: Argument) -> bool:
    a, b = value_of(node), value_of(source) if isinstance(source, fx.Node) else None
    if a is None or b is None or not same_shape(a.shape, b.shape):
        return False
    strides = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(same_size(size, 1) or same_size(x, y) for size, x, y in strides)
