"""Rotary tables looked up in a cache: rows of cosines and sines, one row a position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.rope import Rope
from kernelweld.ir.rope_table import RopeTable
from kernelweld.ir.vocabulary import word_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import (
    CAST,
    EXPAND,
    FLOATS,
    RESHAPE,
    UNSQUEEZE,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import NEARLY, Miss, something_else
from kernelweld.patterns.regions import region

LOOKUPS: tuple[OpOverload, ...] = (aten.index.Tensor, aten.index_select.default, aten.embedding.default)


def read_cache(lookup: fx.Node) -> Match:
    """``cache[positions]``, cosines in the first half of a row and sines in the second, read by rope words.

    Raises:
        Miss: ``lookup`` is something else (stage 0), or rope words read it in another way.
    """
    cache, positions = _looked_up(lookup)
    halves = [(r, user) for user in lookup.users if (r := region(user)) is not None and r.base is lookup]
    if len(halves) != len(lookup.users) or len(halves) != 2:
        raise something_else(lookup)
    (first, cos), (second, sin) = sorted(halves, key=lambda half: half[0].start)
    uses = _rope_uses(cos), _rope_uses(sin)
    if not {"cos", "sin"} & (uses[0] | uses[1]):
        raise something_else(lookup)
    if uses != ({"cos"}, {"sin"}):
        template = "the first half of %{} is read as {} and the second as {}"
        names = ("/".join(sorted(use)) for use in uses)
        raise Miss(template, lookup, lookup, *names, stage=NEARLY)
    half = first.length
    if (*first.span, *second.span, shape_of(lookup)[-1]) != (0, half, 1, half, half, 1, 2 * half):
        raise Miss("{} and {} are not the halves of a row", lookup, first, second, stage=NEARLY)
    cover = Cover()
    cover.take(lookup, cos, sin)
    dtype = dtype_of(lookup)
    if dtype not in FLOATS or dtype is None:
        raise Miss("the cache %{} is {}", cache, cache, dtype_name(dtype))
    return cover.match(RopeTable(source="cache", layout="half", dtype=dtype), (positions, cache), cos, sin)


def _looked_up(lookup: fx.Node) -> tuple[fx.Node, fx.Node]:
    cache, index = lookup.args[0], lookup.args[1]
    if is_call(lookup, aten.index_select.default):
        if index != 0:
            raise something_else(lookup)
        index = lookup.args[2]
    elif is_call(lookup, aten.index.Tensor):
        index = index[0] if isinstance(index, Sequence) and len(index) == 1 else None
    if not isinstance(cache, fx.Node) or not isinstance(index, fx.Node) or len(shape_of(cache)) != 2:
        raise something_else(lookup)
    if dtype_of(index) not in (torch.int64, torch.int32):
        raise something_else(lookup)
    return cache, index


def _rope_uses(half: fx.Node) -> set[str]:
    """As what rope words read ``half``, through views."""
    uses: set[str] = set()
    pending = [half]
    while pending:
        node = pending.pop()
        for user in node.users:
            if is_call(user, UNSQUEEZE, EXPAND, CAST, *RESHAPE):
                pending.append(user)
            elif isinstance(word_of(user), Rope):
                uses |= {
                    name for name, operand in zip(Rope.operands, user.args, strict=True) if operand is node
                }
            else:
                uses.add("something else")
    return uses
