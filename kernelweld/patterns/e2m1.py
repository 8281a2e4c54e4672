"""Codes of e2m1 in FX: scaled by blocks, converted by any steps, and two put in a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.e2m1 import E2M1, ZEROS, code_of
from kernelweld.patterns.blocks import read_blocks
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import is_static, same_shape, same_size
from kernelweld.patterns.function import Function, Walk
from kernelweld.patterns.ops import (
    CAST,
    RESHAPE,
    SELECT,
    SLICE,
    aten,
    dtype_of,
    is_call,
    only_user,
    shape_of,
    shape_text,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import is_upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else

#: What a function of other values than it is given may raise.
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError)


@dataclass(frozen=True)
class E2M1Pattern(ReadingPattern):
    """``code[..., ::2] | code[..., 1::2] << 4``, where ``code`` is a number of e2m1 for every number.

    How a number becomes its code, and codes a byte, is found by evaluation: comparisons, masked writes and
    arithmetic with bits are the same function.
    """

    name: ClassVar[str] = "e2m1"
    kind: ClassVar[str] = "e2m1"
    spelling: ClassVar[str] = "`code[..., ::2] | code[..., 1::2] << 4` of codes of e2m1"
    anchors: ClassVar[tuple[OpOverload, ...]] = (
        aten.bitwise_or.Tensor,
        aten.__or__.Tensor,
        aten.add.Tensor,
    )

    def read(self, anchor: fx.Node) -> Match:
        dtype = dtype_of(anchor)
        if dtype is None or dtype.is_floating_point or dtype == torch.bool:
            raise something_else(anchor)
        cover = Cover()
        cast = only_user(anchor)
        byte = cast if cast is not None and is_call(cast, CAST) and dtype != torch.uint8 else anchor
        if dtype_of(byte) != torch.uint8:
            raise something_else(anchor)
        codes = _Codes(byte, cover)
        found = read_blocks(codes.numbers, cover)
        out = _whole_rows(byte, cover)
        operands = _rows(found.x, out, cover), found.scale, found.whole
        return cover.match(E2M1(found.operation, found.block, codes.zeros), operands, out)


class _Codes:
    """The numbers whose codes stand by two in ``byte``, and what becomes of zeros."""

    def __init__(self, byte: fx.Node, cover: Cover) -> None:
        both = _halves(byte)
        source = both.leaves[0].args[0]
        assert isinstance(source, fx.Node)
        ways = _ways(source)
        if not ways:
            raise something_else(byte)
        found = next(((way, zeros) for way in reversed(ways) if (zeros := _zeros(both, way))), None)
        if found is None:
            raise Miss(
                "the bytes %{} hold no codes of e2m1: {}",
                byte,
                byte,
                _difference(both, ways[-1]),
            )
        way, self.zeros = found
        self.numbers = way.leaves[0]
        for function in (both, way):
            cover.take(*(node for node in function.nodes if node not in function.constants))
            cover.share(*function.constants)
        cover.take(*both.leaves)


def _halves(byte: fx.Node) -> Function:
    """``byte`` as a function of even and odd elements of one value."""
    walk = Walk(byte, lambda node: _half(node) is not None)
    while walk.step():
        pass
    function = walk.function()
    halves = {_half(leaf) for leaf in function.leaves}
    sources = {leaf.args[0] for leaf in function.leaves if leaf.args}
    if halves != {0, 1} or len(function.leaves) != 2 or len(sources) != 1:
        raise something_else(byte)
    even, odd = sorted(function.leaves, key=lambda leaf: _half(leaf) or 0)
    return Function(byte, (even, odd), function.nodes, function.constants)


def _half(node: fx.Node) -> int | None:
    """0 for the elements of even numbers along the last dimension, 1 for the odd ones."""
    source = node.args[0] if is_call(node, SLICE, SELECT) else None
    if not isinstance(source, fx.Node):
        return None
    size, dim = shape_of(source)[-1], node.args[1] if len(node.args) > 1 else 0
    if not isinstance(dim, int) or dim % len(shape_of(source)) != len(shape_of(source)) - 1:
        return None
    if is_call(node, SELECT):
        index = node.args[2]
        return index % 2 if isinstance(index, int) and same_size(size, 2) else None
    step = node.args[4] if len(node.args) > 4 else 1
    start = node.args[2] if len(node.args) > 2 else 0
    paired = step == 2 and start in (0, 1) and same_size(2 * shape_of(node)[-1], size)
    return int(start) if paired and isinstance(start, int) else None


def _ways(source: fx.Node) -> list[Function]:
    """``source`` as a function of each single float32 value that it is one of, the nearest first."""
    walk, found = Walk(source), list[Function]()
    while True:
        leaves = walk.leaves
        if len(leaves) == 1 and dtype_of(leaves[0]) == torch.float32:
            found.append(walk.function())
        if not walk.step():
            return found


def _zeros(both: Function, way: Function) -> str | None:
    """How zeros are written, if the bytes are those of e2m1."""
    numbers = tuple(sorted({*both.numbers(), *way.numbers()}))
    key = (both.signature(), way.signature())
    if key not in _KNOWN:
        while len(_KNOWN) >= _REMEMBERED:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = _evaluated(both, way, numbers)
    return _KNOWN[key]


#: What functions were found to be, by their steps: the layers of a model take the same.
_KNOWN: dict[object, str | None] = {}
_REMEMBERED = 256


def _evaluated(both: Function, way: Function, numbers: tuple[float, ...]) -> str | None:
    even, odd = _pairs(numbers)
    try:
        bytes_of = both(*((way(half) if way.nodes else half) for half in (even, odd)))
    except _FAILURES:
        return None
    number = ~(even.isnan() | odd.isnan())
    return next((z for z in ZEROS if torch.equal(bytes_of[number], _expected(even, odd, z)[number])), None)


def _expected(even: torch.Tensor, odd: torch.Tensor, zeros: str = "signed") -> torch.Tensor:
    return code_of(even, zeros) | (code_of(odd, zeros) << 4)


def _pairs(numbers: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers that tell e2m1 from other functions, as even and as odd elements.

    Each float of 16 bits with its neighbours in float32, the numbers that stand in the function, their sums,
    differences, products and quotients, with theirs, and all pairs of codes. What a comparison, also of a
    scaled or shifted number, or a shift of bits tells apart begins at one of them.
    """
    one = torch.tensor([0.0, *(n for n in numbers if abs(n) < 3e38)], dtype=torch.float32)
    row, column = one[None, :], one[:, None]
    written = torch.cat(
        [one, *(f.flatten() for f in (row + column, row - column, row * column, row / column))]
    )
    bits = torch.cat([_halves_of_floats(), *((written.view(torch.int32) + k) for k in (-1, 0, 1))])
    values = torch.cat([bits.view(torch.float32), -written])
    codes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.cat([codes, -codes])
    even = torch.cat([values, codes.repeat_interleave(16)])
    return even, torch.cat([values.roll(4099), codes.repeat(16)])


@lru_cache(maxsize=1)
def _halves_of_floats() -> torch.Tensor:
    high = torch.arange(-(2**15), 2**15, dtype=torch.int64)[:, None] * 2**16
    return (high + torch.tensor([0, 1, 2**16 - 1])).flatten().to(torch.int32)


def _difference(both: Function, way: Function) -> str:
    """A number that has another code, in words."""
    even, odd = (torch.tensor(x) for x in _EXAMPLES)
    try:
        got = both(*((way(half) if way.nodes else half) for half in (even, odd)))
    except _FAILURES:
        return "they cannot be evaluated"
    wanted = _expected(even, odd)
    wrong = (got != wanted).nonzero()
    if not len(wrong):
        return "some numbers have others"
    i = int(wrong[0])
    return f"{even[i]:g} and {odd[i]:g} are {int(got[i]):#04x}, not {int(wanted[i]):#04x}"


_EXAMPLES = (
    (0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.5, 3.5, 5.0, 6.0, 8.0, -1.0, 0.3, 0.7),
    (0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 3.0, 0.6, 4.9),
)


def _whole_rows(byte: fx.Node, cover: Cover) -> fx.Node:
    """The bytes in the shape of the rows, if they were flat."""
    user = only_user(byte)
    if user is None or not is_call(user, *RESHAPE) or len(shape_of(byte)) != 1:
        return byte
    cover.take(byte, user)
    return user


def _rows(x: fx.Node, out: fx.Node, cover: Cover) -> fx.Node:
    """The rows that become ``out``, below views and upcasts of them."""
    *outer, width = shape_of(out)
    node = x
    while not same_shape(shape_of(node), (*outer, 2 * width)) or is_upcast(node):
        if not is_upcast(node) and not is_call(node, *RESHAPE):
            shape = shape_text((*outer, 2 * width))
            raise Miss("%{} is no view of rows of shape {}", x, x, shape, stage=NEARLY)
        cover.share(node)
        node = node.args[0]  # type: ignore[assignment]
    if not is_static(width):
        raise Miss("the width of %{} is a symbol", out, out, stage=NEARLY)
    return node
