"""Exponents in FX: from a whole logarithm, shifted and clamped, to the power of two."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from kernelweld.ir.quant_scale import QuantScale
from kernelweld.patterns.bounds import bounds_of
from kernelweld.patterns.ops import ADD, SUB, aten, dtype_of, is_call, only_user, operands
from kernelweld.patterns.reading import NEARLY, Miss, something_else
from kernelweld.patterns.scalars import scalar


@dataclass(frozen=True)
class Exponent:
    """``2 ** (min(max(e, least), most) + shift)`` of a whole number ``e``, computed by ``nodes``."""

    nodes: tuple[fx.Node, ...] = ()
    shift: int = 0
    least: float | None = None
    most: float | None = None

    @classmethod
    def above(cls, whole: fx.Node) -> Exponent:
        """The steps from ``whole`` to the power of two.

        Raises:
            Miss: they lead elsewhere.
        """
        found, value = cls(), whole
        while (user := only_user(value)) is not None and dtype_of(user) == torch.float32:
            if is_power_of_two(user, value):
                return replace(found, nodes=(*found.nodes, user))
            step = found._step(user, value)
            if step is None:
                break
            found, value = step, user
        raise something_else(whole)

    def _step(self, user: fx.Node, value: fx.Node) -> Exponent | None:
        """With one more addition of a whole number, or clamp."""
        nodes = (*self.nodes, user)
        pair = operands(user) if is_call(user, *ADD, *SUB) else None
        if pair is not None:
            number = scalar(pair[1])
            if pair[0] is not value or number is None or number != int(number):
                return None
            return replace(
                self, nodes=nodes, shift=self.shift + int(number) * (1 if is_call(user, *ADD) else -1)
            )
        bounds = bounds_of(user)
        if bounds.nodes[:1] != (user,) or value not in (bounds.value, *bounds.nodes):
            return None
        least, most = (None if b is None else b - self.shift for b in (bounds.low, bounds.high))
        return replace(self, nodes=nodes, least=least, most=most)

    def bounding(self, word: QuantScale, amax: fx.Node) -> QuantScale:
        """``word`` with the range of the power and, for a shift, another limit.

        Raises:
            Miss: the word has no such range or shift.
        """
        if self.shift:
            if word.limit != 1.0 or self.shift > 0:
                raise Miss("the exponent of %{} is shifted by {}", amax, amax, self.shift, stage=NEARLY)
            word = replace(word, limit=2.0**-self.shift)
        if self.least is None or self.most is None:
            return word
        low, high = self.least + self.shift, self.most + self.shift
        if not -127 <= low < high <= 127 or low != int(low) or high != int(high):
            template = "the exponent of %{} may be from {} to {}, which are no scales"
            raise Miss(template, amax, amax, low, high, stage=NEARLY)
        return replace(word, low=2.0**low, high=2.0**high)


def is_power_of_two(node: fx.Node | None, exponent: fx.Node) -> bool:
    """Whether ``node`` is ``2 ** exponent``."""
    if is_call(node, aten.exp2.default):
        return node.args[0] is exponent
    return is_call(node, aten.pow.Scalar) and scalar(node.args[0]) == 2.0 and node.args[1] is exponent
