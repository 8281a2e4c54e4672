"""L2 norm in FX: eps inside the root, added outside, or as the lower bound of ``F.normalize``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir.l2_norm import L2Norm
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.normalise import normalised
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    FLOATS,
    HALVES,
    SUM,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    only_user,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import same_value, upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.roots import BOUNDS, ROOTS, Root, read_eps, read_root
from kernelweld.patterns.scalars import scalar, split_scalar
from kernelweld.patterns.squares import in_float32, read_square, reduced
from kernelweld.patterns.tail import Tail


@dataclass(frozen=True)
class L2NormPattern(ReadingPattern):
    """``x * rsqrt(sum(x²) + eps)``, ``x / (sqrt(sum(x²)) + eps)`` or ``x / max(sqrt(sum(x²)), eps)``."""

    name: ClassVar[str] = "l2_norm"
    kind: ClassVar[str] = "l2_norm"
    spelling: ClassVar[str] = "`x * rsqrt(sum(x²) + eps)` over the last dimension in float32"
    anchors: ClassVar[tuple[OpOverload, ...]] = ROOTS

    def read(self, anchor: fx.Node) -> Match:
        cover = Cover()
        root = read_root(anchor, cover)
        stabilised = read_eps(root.radicand, cover, SUM)
        total = stabilised.statistic
        if not is_call(total, SUM):
            raise something_else(anchor)
        cover.take(total)
        values = read_square(reduced(total, "sum"), cover, "sum")
        in_float32(values, "sum of squares")
        word, bounded = L2Norm(stabilised.eps), root
        if not root.inverse and stabilised.eps == 0.0:
            word, bounded = _bound(root, cover)
        normed = normalised(bounded, lambda numerator: same_value(numerator, values), cover, word.norm_dtype)
        return _finish(word, values, normed, cover)


def _bound(root: Root, cover: Cover) -> tuple[L2Norm, Root]:
    """What happens to the norm before it divides: rounding, then eps added or as a lower bound."""
    norm, norm_dtype = root.value, torch.float32
    user = only_user(norm)
    if is_call(user, CAST) and (dtype := dtype_of(user)) in HALVES:
        assert dtype is not None
        cover.take(user)
        norm, norm_dtype, user = user, dtype, only_user(user)
    if is_call(user, *ADD):
        split = split_scalar(user)
        place, eps = "outside", None if split is None else split[1]
    elif is_call(user, *BOUNDS):
        place, eps = "clamp", _lower_bound(user)
    else:
        return L2Norm(0.0, "outside", norm_dtype), Root(root.radicand, norm, inverse=False)
    if eps is None:
        raise Miss("the eps of %{} is not a constant", user, user, stage=NEARLY)
    cover.take(user)
    return L2Norm(eps, place, norm_dtype), Root(root.radicand, user, inverse=False)


def _lower_bound(node: fx.Node) -> float | None:
    upper = argument(node, 2, "max") if is_call(node, aten.clamp.default) else None
    return scalar(argument(node, 1, "min")) if upper is None else None


def _finish(word: L2Norm, values: fx.Node, normed: fx.Node, cover: Cover) -> Match:
    x = upcast(values, cover)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)), stage=NEARLY)
    tail = Tail(normed, cover)
    dtype = tail.rounding()
    word = L2Norm(word.eps, word.eps_place, word.norm_dtype, dtype)
    return cover.match(word, (x,), tail.value)
