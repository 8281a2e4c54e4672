"""Rotary embedding in FX, of all or part of the last dimension, by rotation or by halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.rope import Rope
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import CAT, FLOATS, Size, dtype_name, dtype_of, only_user, shape_of
from kernelweld.patterns.pattern import Match, NoMatch
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern
from kernelweld.patterns.regions import Region, region
from kernelweld.patterns.rope_join import last_dim_parts, read_join
from kernelweld.patterns.rope_rotated import is_rotation, read_rotated
from kernelweld.patterns.rope_turn import Turn
from kernelweld.patterns.rope_turned import read_turned
from kernelweld.patterns.tail import Tail


@dataclass(frozen=True)
class RopePattern(ReadingPattern):
    """``x * cos + rotate_half(x) * sin`` and the other rotations of pairs of the last dimension, started from
    the ``cat`` that joins the halves.
    """

    name: ClassVar[str] = "rope"
    kind: ClassVar[str] = "rope"
    spelling: ClassVar[str] = (
        "`x * cos + cat((-x2, x1), -1) * sin`, where x1 and x2 are the first and second half of x"
    )
    anchors: ClassVar[tuple[OpOverload, ...]] = (CAT,)

    def read(self, anchor: fx.Node) -> Match:
        cover = Cover()
        join = read_join(anchor, cover)
        turn = read_rotated(join, cover) if is_rotation(join) else read_turned(join, cover)
        tail = Tail(turn.value, cover)
        tail.rounding()
        whole = _join_rest(turn, tail)
        tail.rounding()
        x = turn.part.base if whole else _held_alone(turn)
        if dtype_of(x) not in FLOATS:
            raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
        word = Rope(
            rotary_dim=turn.part.length,
            offset=turn.part.start if whole else 0,
            style=turn.style,
            table=turn.table,
            inverse=turn.inverse,
            product_dtype=turn.product_dtype,
            dtype=tail.dtype,
        )
        tables = upcast(turn.cos, cover), upcast(turn.sin, cover)
        return cover.match(word, (x, *tables), tail.value, stopped=tail.stopped)


def _join_rest(turn: Turn, tail: Tail) -> bool:
    """Takes the ``cat`` that joins the turned part with the rest of ``x``; whether there is one."""
    if turn.part.whole:
        return True
    joined = only_user(tail.value)
    parts = last_dim_parts(joined)
    if joined is None or parts is None:
        return False
    at: Size = 0
    rest: list[Region] = []
    for part in parts:
        found = turn.part if part is tail.value else region(part)
        if found is None or found.base is not turn.part.base or (found.start, found.step) != (at, 1):
            template = "%{} joins %{}, which is not the rest of %{}"
            tail.stopped = NoMatch(template, joined, (joined, part, turn.part.base))
            return False
        at, rest = at + found.length, [*rest, found]
    if at != shape_of(turn.part.base)[-1] or any(dtype_of(part) != tail.dtype for part in parts):
        tail.stopped = NoMatch("%{} does not hold all of %{}", joined, (joined, turn.part.base))
        return False
    tail.take(joined, *(r for r in rest if r is not turn.part))
    return True


def _held_alone(turn: Turn) -> fx.Node:
    """The node that holds nothing but the rotary part, below upcasts.

    Raises:
        Miss: the part is read out of a larger value, and what is turned is not joined with its rest.
    """
    if turn.at is None:
        template = "{} is turned, but not joined with the rest of %{}"
        raise Miss(template, turn.value, turn.part, turn.part.base, stage=NEARLY)
    return upcast(turn.at)
