"""The step that all norms share: values times an inverse root, or divided by a root."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import (
    ADD,
    CAST,
    DIV,
    MUL,
    dtype_name,
    dtype_of,
    is_call,
    is_getitem,
    only_user,
    operands,
    other_operand,
    shape_of,
)
from kernelweld.patterns.peel import row_statistic, upcast
from kernelweld.patterns.reading import NEARLY, Miss, something_else
from kernelweld.patterns.roots import Root
from kernelweld.patterns.squares import check_row_factor

_EPS = "Add eps to what is under the root, before the root is taken."
_SAME = "Normalise the very value whose squares are under the root."


def normalised(
    root: Root, is_numerator: Callable[[fx.Node], bool], cover: Cover, dtype: torch.dtype = torch.float32
) -> fx.Node:
    """The normalised value that ``root`` makes of the values that ``is_numerator`` accepts.

    Raises:
        Miss: the root is used otherwise, elsewhere, or for other values.
    """
    factor, user = _below_views(root.value, cover)
    if dtype_of(factor) != dtype:
        names = map(dtype_name, (dtype_of(factor), dtype))
        raise Miss(
            "the root %{} is computed in {}, not in {}",
            factor,
            factor,
            *names,
            remedy="Cast the values to float32 before they are squared.",
        )
    if is_call(user, CAST):
        rounded = dtype_name(dtype_of(user))
        raise Miss(
            "the root %{} is rounded to {} before it is used",
            user,
            factor,
            rounded,
            stage=NEARLY,
            remedy="Multiply by the root in float32, and round the product.",
        )
    if is_call(user, *ADD):
        template = "%{} adds to the root after it is taken: eps is outside the root"
        raise Miss(template, user, user, stage=NEARLY, remedy=_EPS)
    numerator = _numerator(user, factor, root.inverse)
    if not is_numerator(numerator):
        template = "%{} normalises %{}, which is not the value whose squares are under the root"
        raise Miss(template, user, user, numerator, stage=NEARLY, remedy=_SAME)
    check_row_factor(factor, numerator)
    if not same_shape(shape_of(user), shape_of(numerator)):
        raise Miss("%{} repeats the rows of %{}", user, user, numerator, stage=NEARLY)
    upcast(numerator, cover)
    cover.take(user)
    return user


def _below_views(factor: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node]:
    """The root after views that only add or repeat the last dimension, and its single user."""
    user = only_user(factor)
    while user is not None and row_statistic(user, Cover()) is row_statistic(factor, Cover()):
        cover.take(user)
        factor, user = user, only_user(user)
    if user is None:
        raise Miss("the root %{} is used by {} nodes", factor, factor, len(factor.users), stage=NEARLY)
    return factor, user


def _numerator(user: fx.Node, factor: fx.Node, inverse: bool) -> fx.Node:
    pair = operands(user)
    numerator: object = None
    if inverse and is_call(user, *MUL):
        numerator = other_operand(user, factor)
    elif not inverse and is_call(user, *DIV) and pair is not None and pair[1] is factor:
        numerator = pair[0]
    if not isinstance(numerator, fx.Node):
        raise Miss("%{} does not normalise by the root %{}", user, user, factor, stage=NEARLY)
    return numerator


def first_result(anchor: fx.Node, cover: Cover, others: str) -> fx.Node:
    """The first result of an operator with several, the only one that is used.

    Raises:
        Miss: another result is used.
    """
    output: fx.Node | None = None
    for user in anchor.users:
        if is_getitem(user, 0):
            output = user
        elif user.users:
            reader = next(iter(user.users))
            raise Miss("{} of %{} is used by %{}", reader, others, anchor, reader, stage=NEARLY)
        cover.take(user)
    if output is None:
        raise something_else(anchor)
    return output
