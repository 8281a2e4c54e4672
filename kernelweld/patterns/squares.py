"""Means and sums of squares over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import (
    DIV,
    MEAN,
    MUL,
    POW,
    SUM,
    argument,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
    shape_text,
)
from kernelweld.patterns.peel import row_statistic, same_value
from kernelweld.patterns.reading import LOOKS_LIKE, NEARLY, Miss, something_else
from kernelweld.patterns.scalars import close_to, scalar, split_scalar


def read_mean(node: fx.Node, cover: Cover, stage: int = 0) -> fx.Node:
    """What ``node`` is the last-dimension mean of: ``mean``, ``sum / N`` or ``sum * (1/N)``.

    Raises:
        Miss: ``node`` is no mean (at ``stage``), or one over other dimensions or with another divisor.
    """
    if is_call(node, MEAN):
        cover.take(node)
        return reduced(node, "mean")
    split = _scaled_sum(node)
    if split is None:
        raise Miss("%{} is not a mean", node, node, stage=stage)
    total, divisor = split
    cover.take(node, total)
    values = reduced(total, "sum")
    width = shape_of(values)[-1]
    if not isinstance(width, int) or not close_to(divisor, float(width)):
        raise Miss(
            "the sum %{} is divided by {:g}, not by the width {}", node, total, divisor, width, stage=NEARLY
        )
    return values


def _scaled_sum(node: fx.Node) -> tuple[fx.Node, float] | None:
    pair = operands(node)
    if is_call(node, *DIV) and pair is not None:
        total, divisor = pair[0], scalar(pair[1])
    elif is_call(node, *MUL) and (split := split_scalar(node)) is not None and split[1] != 0:
        total, divisor = split[0], 1 / split[1]
    else:
        return None
    if not isinstance(total, fx.Node) or divisor is None:
        return None
    total = row_statistic(total, Cover())
    return (total, divisor) if is_call(total, SUM) else None


def reduced(node: fx.Node, what: str) -> fx.Node:
    """The operand of a reduction of the last dimension alone, computed in float32.

    Raises:
        Miss: another dimension is reduced, or the reduction is not computed in float32.
    """
    values = node.args[0]
    if not isinstance(values, fx.Node):
        raise something_else(node)
    dims = argument(node, 1, "dim")
    rank = len(shape_of(values))
    listed = list(dims) if isinstance(dims, Sequence) else [dims]
    if [d % rank for d in listed if isinstance(d, int)] != [rank - 1]:
        raise Miss(
            "the {} runs over dimensions {} of {}, not over the last alone",
            node,
            what,
            listed,
            shape_text(shape_of(values)),
            remedy="Reduce the last dimension alone, with dim=-1.",
        )
    in_float32(values, what)
    in_float32(node, what)
    return values


def in_float32(node: fx.Node, what: str) -> None:
    """Refuses a value of a word that is not computed in float32.

    Raises:
        Miss: ``node`` has another dtype.
    """
    if dtype_of(node) != torch.float32:
        raise Miss(
            "the {} is computed in {}, not in float32",
            node,
            what,
            dtype_name(dtype_of(node)),
            stage=NEARLY,
            remedy="Cast the input to float32 before, and round the result.",
        )


def read_square(node: fx.Node, cover: Cover, what: str) -> fx.Node:
    """What ``node`` is the square of.

    Raises:
        Miss: ``node`` is no square.
    """
    pair = operands(node)
    base: object = None
    if is_call(node, POW) and scalar(node.args[1]) == 2.0:
        base = node.args[0]
    elif is_call(node, *MUL) and pair is not None and same_value(*pair):
        base = pair[0]
    if not isinstance(base, fx.Node):
        raise Miss(
            "the {} is of %{}, which is no square",
            node,
            what,
            node,
            stage=LOOKS_LIKE,
            remedy="Square the values, as x.pow(2) or x * x.",
        )
    cover.take(node)
    return base


def check_row_factor(factor: fx.Node, values: fx.Node) -> None:
    """Refuses a statistic that is not one number for each row of ``values``.

    Raises:
        Miss: its shape is neither ``[..., 1]`` nor that of ``values``.
    """
    got, wanted = shape_of(factor), shape_of(values)
    if len(got) == len(wanted) and all(same_size(a, b) for a, b in zip(got[:-1], wanted[:-1], strict=True)):
        return
    template = "the statistic %{} has shape {}, which is not one number for each row of {}"
    raise Miss(template, factor, factor, shape_text(got), shape_text(wanted), stage=NEARLY)
