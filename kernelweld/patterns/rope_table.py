"""Rotary tables in FX: cosines and sines of positions times frequencies, or read from a cache of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.rope_table import RopeTable
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.mrope import is_choice, read_choice
from kernelweld.patterns.ops import (
    CAST,
    FLOATS,
    MUL,
    RESHAPE,
    UNSQUEEZE,
    Size,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    only_user,
    operands,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import is_vector, vector
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.rope_cache import LOOKUPS, read_cache
from kernelweld.patterns.scalars import split_scalar
from kernelweld.patterns.spread import spread_above, spread_of
from kernelweld.patterns.tail import Tail

COS, SIN = aten.cos.default, aten.sin.default
POSITIONS = (torch.int64, torch.int32, *FLOATS)


@dataclass(frozen=True)
class RopeTablePattern(ReadingPattern):
    """``cos`` and ``sin`` of one angle, or both halves of a looked-up row that rope words read."""

    name: ClassVar[str] = "rope_table"
    kind: ClassVar[str] = "rope_table"
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
    positions, inv_freq = _outer_product(frequencies, cover)
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


def _outer_product(node: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node]:
    """Positions and frequencies of ``positions[..., None] * inv_freq``.

    Raises:
        Miss: ``node`` is no such product (stage 0), or one that is not computed in float32.
    """
    pair = operands(node) if is_call(node, *MUL) else None
    shape = shape_of(node)
    for column, row in (pair, pair[::-1]) if pair is not None and shape else ():
        if not isinstance(column, fx.Node) or not isinstance(row, fx.Node):
            continue
        trial = Cover()
        inv_freq = vector(row, shape[-1], trial)
        positions = _positions(column, shape, trial)
        if positions is None or not is_vector(shape_of(inv_freq), shape[-1]):
            continue
        for value in (node, column, row):
            if dtype_of(value) != torch.float32:
                dtype = dtype_name(dtype_of(value))
                raise Miss("%{}, part of the angle, is {}", value, value, dtype, stage=NEARLY)
        cover.merge(trial)
        cover.take(node)
        return positions, inv_freq
    raise something_else(node)


def _positions(column: fx.Node, product: tuple[Size, ...], cover: Cover) -> fx.Node | None:
    """``p`` if ``column`` is ``float(p)[..., None]`` with a row for each row of the product."""
    node, opened = column, False
    wanted = (*product[:-1], 1)
    while is_call(node, CAST, UNSQUEEZE, *RESHAPE):
        source = node.args[0]
        if not isinstance(source, fx.Node) or dtype_of(source) not in POSITIONS:
            break
        if not is_call(node, CAST):
            if (
                opened
                or not same_shape(shape_of(node), wanted)
                or not same_shape((*shape_of(source), 1), wanted)
            ):
                break
            opened = True
        cover.share(node)
        node = source
    return node if opened and same_shape(shape_of(node), product[:-1]) else None


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
