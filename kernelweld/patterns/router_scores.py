"""Router scores in FX: sigmoid or softmax of the product of tokens and one weight row for each expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch._ops import OpOverload

from kernelweld.ir import ExpertTopK, RouterScores, word_of
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import (
    CAST,
    DIV,
    FLOATS,
    SUB,
    SUM,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    operands,
    shape_of,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.peel import upcast
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else

SIGMOID: OpOverload = aten.sigmoid.default
SOFTMAX: OpOverload = aten._softmax.default


@dataclass(frozen=True)
class RouterScoresPattern(ReadingPattern):
    """``sigmoid`` or ``softmax`` of ``F.linear(x, weight)``, of which an ``expert_topk`` chooses."""

    name: ClassVar[str] = "router_scores"
    kind: ClassVar[str] = "router_scores"
    spelling: ClassVar[str] = "`F.linear(x, weight).float().sigmoid()`, or `.softmax(-1)`, without a bias"
    anchors: ClassVar[tuple[OpOverload, ...]] = (SIGMOID, SOFTMAX, aten.div.Tensor)

    def read(self, anchor: fx.Node) -> Match:
        if not any(isinstance(word_of(user), ExpertTopK) and user.args[0] is anchor for user in anchor.users):
            raise something_else(anchor)
        cover = Cover()
        scoring, logits = read_scoring(anchor, cover)
        product = _product(logits, cover)
        x, weight = _factors(product, cover)
        word = RouterScores(scoring, product.meta["val"].dtype)
        return cover.match(word, (x, weight), anchor)


def read_scoring(value: fx.Node, cover: Cover) -> tuple[str, fx.Node]:
    """The name of the scoring that ``value`` is, and its logits in float32. Raises Miss."""
    if is_call(value, SIGMOID):
        logits, scoring = value.args[0], "sigmoid"
    elif is_call(value, SOFTMAX) and value.args[1] in (-1, 1):
        logits, scoring = value.args[0], "softmax"
    else:
        logits, scoring = _softmax(value, cover), "softmax"
    if not isinstance(logits, fx.Node) or len(shape_of(logits)) != 2 or dtype_of(value) != torch.float32:
        raise something_else(value)
    cover.take(value)
    return scoring, logits


def _softmax(value: fx.Node, cover: Cover) -> fx.Node:
    """The operand of a softmax over the last dimension that is written out."""
    power, total = (operands(value) if is_call(value, *DIV) else None) or (None, None)
    if not is_call(power, aten.exp.default) or not is_call(total, SUM) or total.args[0] is not power:
        raise something_else(value)
    shifted = power.args[0]
    logits, largest = (operands(shifted) if is_call(shifted, *SUB) else None) or (None, None)
    if not isinstance(logits, fx.Node) or not is_call(largest, aten.amax.default):
        raise something_else(value)
    is_last = all(one.args[1] in ([-1], [1]) and argument(one, 2, "keepdim") for one in (total, largest))
    if largest.args[0] is not logits or not is_last:
        raise something_else(value)
    cover.take(power, total, shifted, largest)  # type: ignore[arg-type]
    return logits


def _product(logits: fx.Node, cover: Cover) -> fx.Node:
    """The product that the logits are, below a cast to float32."""
    product = logits
    while is_call(product, CAST):
        cover.take(product)
        product = product.args[0]  # type: ignore[assignment]
    if not is_call(product, aten.mm.default):
        raise Miss("the logits %{} are no product of two matrices", product, product, stage=NEARLY)
    if dtype_of(product) not in FLOATS:
        template = "the logits %{} are {}"
        raise Miss(template, product, product, dtype_name(dtype_of(product)), stage=NEARLY)
    cover.take(product)
    return product


def _factors(product: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node]:
    """The tokens and the weight [E, D] of a product, below exact casts."""
    x, matrix = product.args[:2]
    assert isinstance(x, fx.Node)
    if not is_call(matrix, aten.permute.default, aten.t.default):
        raise Miss("%{} is not the transpose of a weight", product, matrix, stage=NEARLY)
    weight = matrix.args[0]
    assert isinstance(weight, fx.Node)
    cover.share(matrix)
    return upcast(x, cover), upcast(weight, cover)
