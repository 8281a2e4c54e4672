"""What both spellings of a rotary embedding are read into, and the checks they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import (
    FLOATS,
    MUL,
    Size,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
    shape_text,
)
from kernelweld.patterns.reading import NEARLY, Miss
from kernelweld.patterns.regions import Region


@dataclass(frozen=True)
class Turn:
    """The rotary part on its own: ``part`` of ``x`` is turned, and ``value`` holds it turned.

    ``at`` is a node that reads ``part`` and nothing else, if there is one.
    """

    part: Region
    at: fx.Node | None
    cos: fx.Node
    sin: fx.Node
    style: str
    table: str
    inverse: bool
    product_dtype: torch.dtype
    value: fx.Node


def factors(node: object) -> tuple[fx.Node, fx.Node] | None:
    """Both tensors of a product, or None."""
    pair = operands(node) if is_call(node, *MUL) else None
    if pair is None or not isinstance(pair[0], fx.Node) or not isinstance(pair[1], fx.Node):
        return None
    return pair[0], pair[1]


def paired(first: Region, second: Region, owner: fx.Node) -> tuple[Region, str]:
    """The region that two halves make up, and whether they lie end to end (``neox``) or alternate.

    Raises:
        Miss: the halves are of different values, unequal, overlapping, apart, or in the wrong order.
    """
    if first.base is not second.base:
        raise Miss(
            "the halves are of different values, %{} and %{}", owner, first.base, second.base, stage=NEARLY
        )
    if first.length != second.length or first.step != second.step:
        raise Miss("the halves {} and {} are not of equal width", owner, first, second, stage=NEARLY)
    width, path = 2 * first.length, (first.base,)
    if first.step == 2 and second.start == first.start + 1:
        return Region(first.base, first.start, width, 1, path), "interleaved"
    if first.step == 1 and second.start == first.stop:
        return Region(first.base, first.start, width, 1, path), "neox"
    if first.step == 1 and second.start < first.stop and first.start < second.stop:
        raise Miss("the halves {} and {} overlap", owner, first, second, stage=NEARLY)
    template = "the halves {} and {} are not the first and second elements of pairs, in this order"
    raise Miss(template, owner, first, second, stage=NEARLY)


def check_table(table: fx.Node, width: int, product: fx.Node, turned: tuple[Size, ...]) -> None:
    """Checks that a table has ``width`` values a row and broadcasts against what it turns.

    Raises:
        Miss: it does not, or has no float dtype of at most 32 bits.
    """
    if dtype_of(table) not in FLOATS:
        raise Miss("the table %{} is {}", table, table, dtype_name(dtype_of(table)), stage=NEARLY)
    got = shape_of(table)
    if not got or got[-1] != width:
        raise Miss(
            "the table %{} has shape {}, not [..., {}]", table, table, shape_text(got), width, stage=NEARLY
        )
    if not same_shape(shape_of(product), turned):
        raise Miss(
            "the table %{} of shape {} is larger than {}",
            table,
            table,
            shape_text(got),
            shape_text(turned),
            stage=NEARLY,
        )


def common_dtype(first: fx.Node, second: fx.Node) -> torch.dtype:
    """The dtype that both products are rounded to.

    Raises:
        Miss: they are rounded differently, or to a dtype that is no float of at most 32 bits.
    """
    a, b = dtype_of(first), dtype_of(second)
    if a != b or a not in FLOATS or a is None:
        template = "the products %{} and %{} are {} and {}"
        raise Miss(template, second, first, second, dtype_name(a), dtype_name(b), stage=NEARLY)
    return a
