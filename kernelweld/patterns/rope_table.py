"""Rotary tables in FX: cosines and sines of positions times frequencies, or read from a cache of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.rope_table import RopeTable
from kernelweld.patterns.angles import outer_product
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.mrope import is_choice, read_choice
from kernelweld.patterns.ops import (
    MUL,
    aten,
    is_call,
    only_user,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.rope_cache import LOOKUPS, read_cache
from kernelweld.patterns.scalars import split_scalar
from kernelweld.patterns.spread import spread_above, spread_of
from kernelweld.patterns.tail import Tail

COS, SIN = aten.cos.default, aten.sin.default


@dataclass(frozen=True)
class RopeTablePattern(ReadingPattern):
    """``cos`` and ``sin`` of one angle, or both halves of a looked-up row that rope words read."""

    name: ClassVar[str] = "rope_table"
    kind: ClassVar[str] = "rope_table"
    spelling: ClassVar[str] = "`cos` and `sin` of one angle, or both halves of one looked-up row"
    anchors: ClassVar[tuple[OpOverload, ...]] = (COS, *LOOKUPS)

    def read(self, anchor: fx.Node) -> Match:
        return _read_angles(anchor) if is_call(anchor, COS) else read_cache(anchor)


@dataclass(frozen=True)
class Finished:
    """What happens to cosines or sines after they are taken."""

    value: fx.Node
    layout: str
    sections: tuple[int, ...]
    order: str
    scaling: float
    dtype: torch.dtype

    @property
    def statics(self) -> tuple[object, ...]:
        """All but the node: these must agree for cosines and sines."""
        return self.layout, self.sections, self.order, self.scaling, self.dtype


def _read_angles(cos: fx.Node) -> Match:
    angle = cos.args[0]
    if not isinstance(angle, fx.Node):
        raise something_else(cos)
    sin = next((user for user in angle.users if is_call(user, SIN)), None)
    cover = Cover()
    frequencies, layout = spread_of(angle, cover)
    if sin is None:
        raise something_else(cos)
    positions, inv_freq = outer_product(frequencies, cover)
    cover.take(angle, cos, sin)
    cosines, sines = _finish(cos, layout, cover), _finish(sin, layout, cover)
    if cosines.statics != sines.statics:
        raise Miss("cosines and sines are treated differently after %{} and %{}", sin, cos, sin, stage=NEARLY)
    leading = shape_of(positions)[1:] if cosines.order != "none" else shape_of(positions)
    if not same_shape(shape_of(cosines.value)[:-1], leading):
        template = "the table %{} has other rows than the positions %{}"
        raise Miss(template, cosines.value, cosines.value, positions)
    word = RopeTable(
        "inv_freq", cosines.layout, cosines.sections, cosines.order, cosines.scaling, cosines.dtype
    )
    return cover.match(word, (positions, inv_freq), cosines.value, sines.value)


def _finish(value: fx.Node, layout: str, cover: Cover) -> Finished:
    """Takes scaling, the choice of mrope, repetition and rounding, as far as they follow."""
    sections: tuple[int, ...] = ()
    order = "none"
    value, scaling = _scaled(value, cover)
    if is_choice(value):
        choice = read_choice(value, cover)
        value, sections, order = choice.value, choice.sections, choice.order
    if layout == "half":
        value, layout = spread_above(value, cover)
    if scaling == 1.0:
        value, scaling = _scaled(value, cover)
    tail = Tail(value, cover)
    dtype = tail.rounding()
    return Finished(tail.value, layout, sections, order, scaling, dtype)


def _scaled(value: fx.Node, cover: Cover) -> tuple[fx.Node, float]:
    user = only_user(value)
    split = split_scalar(user) if is_call(user, *MUL) else None
    if user is None or split is None or split[0] is not value:
        return value, 1.0
    cover.take(user)
    return user, split[1]
