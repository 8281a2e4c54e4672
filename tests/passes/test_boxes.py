"""Strided sets of bytes: what is called apart has no byte in common, for any sizes."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import sympy

from kernelweld.passes.tasks.boxes import Box, disjoint

S = sympy.Symbol("s", integer=True, positive=True)


def box(start: object, sizes: tuple[object, ...], strides: tuple[object, ...], width: int) -> Box:
    numbers = [tuple(map(sympy.sympify, given)) for given in (sizes, strides)]
    return Box(sympy.sympify(start), numbers[0], numbers[1], width)


def members(box: Box) -> set[int]:
    places = product(*(range(int(size)) for size in box.sizes))
    starts = (sum(i * int(s) for i, s in zip(place, box.strides, strict=True)) for place in places)
    return {int(box.start) + start + byte for start in starts for byte in range(box.width)}


APART = {
    "keys before values": (box(0, (S, 4, 8), (64, 16, 2), 2), box(64 * S, (S, 4, 8), (64, 16, 2), 2)),
    "keys beside values": (box(0, (S, 4, 8), (128, 16, 2), 2), box(64, (S, 4, 8), (128, 16, 2), 2)),
    "blocks of any size": (box(0, (7, S, 8), (32 * S, 16, 2), 2), box(16 * S, (7, S, 8), (32 * S, 16, 2), 2)),
    "slices of a row": (box(0, (S, 512), (656, 1), 1), box(528, (S, 64), (656, 2), 2)),
    "codes and scales of a page": (box(0, (S, 64, 128), (8448, 128, 1), 1), box(8192, (S, 64), (8448, 4), 4)),
}
TOGETHER = {
    "one place": (box(0, (S, 8), (16, 2), 2), box(0, (S, 8), (16, 2), 2)),
    "slices that overlap": (box(0, (S, 8), (32, 2), 2), box(14, (S, 8), (32, 2), 2)),
    "a row that runs into the next": (box(0, (4, 8), (16, 2), 2), box(16, (4, 16), (16, 2), 2)),
}


@pytest.mark.parametrize("name", APART)
def test_parts_of_a_cache_are_apart(name: str) -> None:
    first, second = APART[name]
    assert disjoint(first, second) and disjoint(second, first)


@pytest.mark.parametrize("name", TOGETHER)
def test_parts_that_may_meet_are_not(name: str) -> None:
    first, second = TOGETHER[name]
    assert not disjoint(first, second) and not disjoint(second, first)


def test_what_is_called_apart_has_no_byte_in_common() -> None:
    random, proved = Random(0), 0
    for _ in range(3000):
        shapes = [[random.randint(0, 3) for _ in range(2)] for _ in range(2)]
        steps = [[random.choice((1, 2, 4, 6, 8, 12, 24)) for _ in range(2)] for _ in range(2)]
        widths = random.choices((1, 2, 4), k=2)
        a, b = (box(random.randint(0, 30), tuple(shapes[i]), tuple(steps[i]), widths[i]) for i in range(2))
        if disjoint(a, b):
            proved += 1
            assert not members(a) & members(b), (a, b)
    assert proved > 300
