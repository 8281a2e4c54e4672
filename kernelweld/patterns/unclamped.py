"""Quotients that need no clamp: their scale keeps them within the codes.

A cast to e4m3 does not saturate: beyond 464 it gives NaN. A cast to int8 is undefined beyond its range.
Where the scale is the largest magnitude of the same row over a largest code, no quotient exceeds that code by
more than roundings, and both casts give the codes of a clamped quotient. NaN and infinite rows are no
exception: a row with an infinity has an infinite scale, and its quotients are zeros and NaN with a clamp and
without. So an infinite quotient never meets the saturating conversion of hardware.
"""

from __future__ import annotations

import torch
from torch import fx

from kernelweld.ir import Quant, QuantScale, word_of
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import RESHAPE, UNSQUEEZE, dtype_name, is_call, shape_of
from kernelweld.patterns.reading import NEARLY, Miss

#: The smallest scale that a quotient is taken with at full precision, and its reciprocal is a number.
_NORMAL = 2.0**-126
#: No float32 is as large.
_BEYOND = 2.0**128
#: What a cast gives for a quotient out of range.
_BEHAVIOUR = {torch.float8_e4m3fn: "gives NaN", torch.int8: "is undefined"}


def check_unclamped(anchor: fx.Node, word: Quant, x: fx.Node, scale: fx.Node | float) -> None:
    """Checks that the quotients of ``x``, which ``anchor`` casts without a clamp, have codes.

    Raises:
        Miss: one may be out of range.
    """
    why = _unbounded(word, x, scale)
    if why is not None:
        name = dtype_name(word.dtype)
        template = (
            "%{} casts to {} without a clamp, which {} for a quotient out of range, and {}; "
            "write .clamp({}, {}) before the cast"
        )
        raise Miss(
            template, anchor, anchor, name, _BEHAVIOUR[word.dtype], why, word.low, word.high, stage=NEARLY
        )


def _unbounded(word: Quant, x: fx.Node, scale: fx.Node | float) -> str | None:
    """Why quotients by ``scale`` may be out of range; None if they cannot."""
    node = _statistic(scale) if isinstance(scale, fx.Node) else None
    found = word_of(node) if node is not None else None
    if node is None or not isinstance(found, QuantScale) or node.args[0] is not x:
        return "its scale is not taken from the magnitudes of what is quantized"
    if word.operation == "multiply":
        return "it multiplies with the scale instead of dividing by it"
    if found.limit > min(-word.low, word.high):
        return f"its scale divides by {found.limit:g}"
    if len(node.args) > 1 and node.args[1] is not None:
        return "its scale has an upper bound"
    if found.format == "ue8m0_floor":
        return "its scale is rounded down to a power of two"
    if found.high and found.high * found.limit < _BEYOND:
        return "its scale is held below a bound"
    if _least(found) < _NORMAL:
        return "its scale has no lower bound that keeps it a normal number, such as .clamp(min=1e-10)"
    return None


def _least(word: QuantScale) -> float:
    """The smallest scale that ``word`` gives."""
    return max(word.low, {"amax": word.eps / word.limit, "scale": word.eps}.get(word.eps_place, 0.0))


def _statistic(scale: fx.Node) -> fx.Node:
    """The scale below a view that appends its last dimension."""
    while is_call(scale, UNSQUEEZE, *RESHAPE) and isinstance(source := scale.args[0], fx.Node):
        if not same_shape((*shape_of(source), 1), shape_of(scale)):
            break
        scale = source
    return scale
