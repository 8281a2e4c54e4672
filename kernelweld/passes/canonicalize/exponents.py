"""Bytes of exponents in terms of the scales that they stand for."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from kernelweld.passes.canonicalize.storage import Storage
from kernelweld.patterns.bounds import LOWER, UPPER, bounds_of
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.exponent import is_power_of_two
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    DIV,
    MUL,
    RESHAPE,
    SQUEEZE,
    SUB,
    UNSQUEEZE,
    aten,
    dtype_of,
    is_call,
    operands,
    shape_of,
)
from kernelweld.patterns.scalars import scalar

_BIAS = 127.0
#: How many steps a scale may be from the magnitude.
_REACH = 8


def byte_of_power(node: fx.Node, storage: Storage) -> fx.Node | None:
    """The byte of a biased exponent ``e`` becomes that of the scale ``exp2(e - 127)``, where that is computed
    as well: ``(scale.view(int32) >> 23).to(uint8)``. Then the exponent is the scale's own.
    """
    biased = node.args[0]
    if dtype_of(node) != torch.uint8 or not isinstance(biased, fx.Node) or not _is_biased(biased):
        return None
    power = next((power for power in map(_power, biased.users) if power is not None), None)
    if power is None or any(user < power for user in node.users):
        return None
    bits = _put_after(power, aten.view.dtype, (power, torch.int32))
    shifted = _put_after(bits, aten.bitwise_right_shift.Tensor_Scalar, (bits, 23))
    byte = _put_after(shifted, CAST, (shifted, torch.uint8))
    byte.meta = dict(node.meta)
    return byte


def byte_of_scale(node: fx.Node, storage: Storage) -> fx.Node | None:
    """A scale as e4m3, which is read in float32 too, becomes the byte of what is read there."""
    source = node.args[0]
    if dtype_of(node) != torch.float8_e4m3fn or not isinstance(source, fx.Node) or len(node.users) < 2:
        return None
    bounds = bounds_of(source)
    if bounds.low is None or bounds.high is None or not -448 <= bounds.low < bounds.high <= 448:
        return None
    if not _is_of_the_largest(bounds.value):
        return None
    backs = [u for u in node.users if is_call(u, CAST) and dtype_of(u) == torch.float32]
    if not backs:
        return None
    others = [user for user in node.users if user not in backs]
    scale = _put_after(node, CAST, (node, torch.float32))
    byte = _put_after(scale, CAST, (scale, torch.float8_e4m3fn))
    for back in backs:
        back.replace_all_uses_with(scale)
        back.graph.erase_node(back)
    for user in others:
        user.replace_input_with(node, byte)
    return node


def _is_of_the_largest(node: Argument) -> bool:
    """Whether ``node`` is the largest magnitude of a row, in other units."""
    for _ in range(_REACH):
        if not isinstance(node, fx.Node) or is_call(node, aten.amax.default):
            break
        if is_call(node, *MUL, *DIV):
            whole = shape_of(node)
            node = next((o for o in node.all_input_nodes if same_shape(shape_of(o), whole)), None)
        elif is_call(node, CAST, *RESHAPE, *SQUEEZE, UNSQUEEZE, *LOWER, *UPPER, aten.clamp.default):
            node = node.args[0]
        else:
            break
    return is_call(node, aten.amax.default)


def _is_biased(node: fx.Node) -> bool:
    """Whether ``node`` is a whole number from 0 to 254 in float32."""
    bounds = bounds_of(node)
    if dtype_of(node) != torch.float32 or bounds.low is None or bounds.high is None:
        return False
    return 0 <= bounds.low < bounds.high <= 254 and _is_whole(bounds.value)


def _is_whole(node: fx.Node) -> bool:
    """Whether ``node`` is a whole number: rounded, and shifted by whole numbers."""
    while is_call(node, *ADD, *SUB):
        pair = operands(node)
        number = scalar(pair[1]) if pair is not None else None
        if pair is None or number is None or number != int(number) or not isinstance(pair[0], fx.Node):
            return False
        node = pair[0]
    return is_call(node, aten.ceil.default, aten.floor.default)


def _power(less: fx.Node) -> fx.Node | None:
    """``exp2(less)`` of ``less = biased - 127``."""
    pair = operands(less) if is_call(less, *SUB, *ADD) else None
    if pair is None or scalar(pair[1]) != (_BIAS if is_call(less, *SUB) else -_BIAS):
        return None
    return next((user for user in less.users if is_power_of_two(user, less)), None)


def _put_after(node: fx.Node, target: OpOverload, args: tuple[Argument, ...]) -> fx.Node:
    """A call just behind ``node``, with its value."""
    with node.graph.inserting_after(node):
        new = node.graph.call_function(target, args)
    value = node.meta["val"]
    operands = [value if arg is node else arg for arg in args]
    new.meta = {**node.meta, "val": target(*operands)}
    return new
