"""Dynamic quantization scales in FX: the largest magnitude of a row over the largest code."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.quant_scale import QuantScale, inverse
from kernelweld.patterns.bounds import LOWER, UPPER, bounds_of, lower_bound
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.exponent import Exponent
from kernelweld.patterns.ops import (
    CAST,
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
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.scalars import scalar, split_scalar

#: What becomes of a logarithm.
_WHOLE = {aten.ceil.default: "ue8m0", aten.floor.default: "ue8m0_floor"}

#: Largest codes: e4m3, e4m3 of AMD, e5m2, int8, e2m1.
LIMITS = (448.0, 240.0, 57344.0, 127.0, 6.0)


@dataclass(frozen=True)
class QuantScalePattern(ReadingPattern):
    """``amax(abs(x), -1) / limit`` with bounds, to the next power of two or not."""

    name: ClassVar[str] = "quant_scale"
    kind: ClassVar[str] = "quant_scale"
    spelling: ClassVar[str] = "`amax(abs(x), -1) / limit`, with a lower bound or none"
    anchors: ClassVar[tuple[OpOverload, ...]] = (aten.amax.default,)

    def read(self, anchor: fx.Node) -> Match:
        cover = Cover()
        x = _magnitudes(anchor, cover)
        walk = _Walk(anchor, cover)
        walk.read()
        return cover.match(walk.word, (x, walk.upper, walk.whole), walk.value)


def _magnitudes(amax: fx.Node, cover: Cover) -> fx.Node:
    """``x`` of ``amax(abs(x), -1)``."""
    magnitude = amax.args[0]
    if not is_call(magnitude, aten.abs.default) or not isinstance(magnitude.args[0], fx.Node):
        raise something_else(amax)
    dims = amax.args[1] if len(amax.args) > 1 else []
    rank = len(shape_of(magnitude))
    if not isinstance(dims, (list, tuple)) or [d % rank for d in dims if isinstance(d, int)] != [rank - 1]:
        raise Miss("%{} is not taken over the last dimension", amax, amax)
    cover.take(magnitude, amax)
    x = upcast(magnitude.args[0], cover)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    return x


class _Walk:
    """Goes forward from the largest magnitude to the scale, step by step."""

    def __init__(self, amax: fx.Node, cover: Cover) -> None:
        self.value, self._cover = amax, cover
        self.upper: fx.Node | None = None
        self.whole: fx.Node | None = None
        self.word = QuantScale(1.0, keepdim=bool(argument(amax, 2, "keepdim", False)))

    def read(self) -> None:
        """Takes all steps.

        Raises:
            Miss: the magnitude is neither divided by a largest code nor raised to a power of two.
        """
        amax = self.value
        if dtype_of(self.value) != torch.float32:
            self._take(self._next(CAST))
        self._upper_bound()
        self._lower_bound("amax")
        self._limit(amax)
        if self.word.eps_place == "none":
            self._lower_bound("scale")
        self._power_of_two(amax)
        self._number_of_e4m3(amax)
        if self.word.limit == 1.0 and self.word.format == "fp32":
            raise something_else(amax)

    def _next(self, *ops: OpOverload) -> fx.Node | None:
        user = only_user(self.value)
        return user if is_call(user, *ops) and dtype_of(user) == torch.float32 else None

    def _take(self, *nodes: fx.Node | None) -> None:
        for node in nodes:
            if node is not None:
                self._cover.take(node)
                self.value = node

    def _upper_bound(self) -> None:
        user = self._next(UPPER[1])
        other = other_operand(user, self.value) if user is not None else None
        if isinstance(other, fx.Node) and math.prod(map(_number, shape_of(other))) == 1:
            self.upper = other
            self._take(user)

    def _lower_bound(self, place: str) -> None:
        user = only_user(self.value)
        bound = lower_bound(user) if user is not None else None
        if bound is not None and bound[0] is self.value:
            self.word = replace(self.word, eps=bound[1], eps_place=place)
            self._take(user)

    def _limit(self, amax: fx.Node) -> None:
        user = self._next(*DIV, *MUL)
        pair = operands(user) if user is not None else None
        if user is None or pair is None:
            return
        if _single(other_operand(user, self.value)) is not None:
            return
        split = split_scalar(user) if is_call(user, *MUL) else (pair[0], scalar(pair[1]))
        number = split[1] if split is not None and split[0] is self.value else None
        times = is_call(user, *MUL)
        # A factor is written as a double; the product is with its float32.
        spellings = {c: (1.0 / c, inverse(c)) if times else (c,) for c in LIMITS}
        limit = next((c for c, numbers in spellings.items() if number in numbers), None)
        if limit is None:
            raise something_else(amax)
        self.word = replace(self.word, limit=limit, inverse_limit=times)
        self._take(user)

    def _number_of_e4m3(self, amax: fx.Node) -> None:
        """The scale of the whole tensor, bounds, the cast to e4m3 and the one back.

        Takes nothing if they do not end in those casts.
        """
        user = self._next(*DIV, *MUL)
        whole = _single(other_operand(user, self.value)) if user is not None else None
        if user is None or whole is None or (is_call(user, *DIV) and user.args[0] is not self.value):
            user = whole = None
        nodes = _to_e4m3_and_back(user or self.value)
        if not nodes or self.word.format != "fp32":
            return
        bounds = bounds_of(nodes[0].args[0])  # type: ignore[arg-type]
        low, high, word = bounds.low, bounds.high, self.word
        if whole is None and word.eps_place == "scale":  # of two lower bounds the larger one decides
            low = word.eps if low is None else max(low, word.eps)
            word = replace(word, eps=0.0, eps_place="none")
        if low is None or high is None or not -448.0 <= low < high <= 448.0:
            raise Miss("the scale of %{} may be no number of e4m3", amax, amax, stage=NEARLY)
        apply = "divide" if is_call(user, *DIV) else "multiply"
        self.whole, self.word = whole, replace(word, format="e4m3", low=low, high=high, apply=apply)
        self._take(user, *bounds.nodes, *nodes)

    def _power_of_two(self, amax: fx.Node) -> None:
        log = self._next(aten.log2.default)
        whole = only_user(log) if log is not None else None
        if log is None or whole is None or not is_call(whole, *_WHOLE):
            return
        format = _WHOLE[whole.target]  # type: ignore[index]
        exponent = Exponent.above(whole)
        self.word = exponent.bounding(replace(self.word, format=format), amax)
        self._take(log, whole, *exponent.nodes)


def _to_e4m3_and_back(value: fx.Node) -> tuple[fx.Node, ...]:
    """Both casts behind bounds of ``value``; none if there are no such casts."""
    for _ in range(3):
        user = only_user(value)
        if user is None:
            break
        if is_call(user, CAST) and dtype_of(user) == torch.float8_e4m3fn:
            back = only_user(user)
            return (user, back) if is_call(back, CAST) and dtype_of(back) == torch.float32 else ()
        if not is_call(user, aten.clamp.default, *LOWER, *UPPER):
            break
        value = user
    return ()


def _single(node: object) -> fx.Node | None:
    """``node`` if it is a tensor of one element that no number is known of."""
    if not isinstance(node, fx.Node) or scalar(node) is not None or shape_of(node) not in ((), (1,)):
        return None
    return node if dtype_of(node) == torch.float32 else None


def _number(size: object) -> int:
    return size if isinstance(size, int) else 2
