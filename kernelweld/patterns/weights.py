"""Weights and biases of norms: one value a channel, from a parameter, as they are or as ``1 + w``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import ADD, FLOATS, Size, dtype_name, dtype_of, is_call, shape_of, shape_text
from kernelweld.patterns.peel import is_vector, vector
from kernelweld.patterns.reading import Miss
from kernelweld.patterns.scalars import split_scalar


@dataclass(frozen=True)
class Weight:
    """A vector of the row's width; the factor is ``1 + node`` in float32 if ``plus_one``."""

    node: fx.Node
    plus_one: bool


def read_vector(factor: fx.Node, width: Size, cover: Cover) -> fx.Node:
    """The vector that ``factor`` repeats over rows.

    Raises:
        Miss: it varies over rows, has another width, or is no float of at most 32 bits.
    """
    node = vector(factor, width, cover)
    shape, dtype = shape_of(node), dtype_of(node)
    parameter = node.op in ("placeholder", "get_attr")
    if not is_vector(shape, width) or (len(shape) > 1 and not parameter):
        template = "the factor %{} has shape {}, a weight has shape [{}]"
        raise Miss(template, node, node, shape_text(shape), width)
    if dtype not in FLOATS:
        raise Miss("the weight %{} is {}", node, node, dtype_name(dtype))
    return node


def read_weight(factor: fx.Node, width: Size, cover: Cover, *, plus_one: bool = True) -> Weight:
    """The weight that ``factor`` is; ``plus_one`` asks for ``1 +`` in float32 to be taken off.

    Raises:
        Miss: as :func:`read_vector`.
    """
    node = read_vector(factor, width, cover)
    split = split_scalar(node) if is_call(node, *ADD) and dtype_of(node) == torch.float32 else None
    if not plus_one or split is None or split[1] != 1.0:
        return Weight(node, plus_one=False)
    cover.share(node)
    return Weight(read_vector(split[0], width, cover), plus_one=True)
