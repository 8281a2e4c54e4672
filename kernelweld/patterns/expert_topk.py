"""The choice of experts in FX: a top-k of scores, biased and by groups, and the weights of those chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import fx
from torch._ops import OpOverload

from kernelweld.ir import ExpertTopK
from kernelweld.patterns.cover import Cover
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.expert_groups import read_groups
from kernelweld.patterns.ops import (
    ADD,
    DIV,
    FLOATS,
    MUL,
    SUM,
    argument,
    aten,
    dtype_name,
    dtype_of,
    is_call,
    is_getitem,
    only_user,
    operands,
    shape_of,
    shape_text,
)
from kernelweld.patterns.pattern import Match
from kernelweld.patterns.reading import NEARLY, Miss, ReadingPattern, something_else
from kernelweld.patterns.router_scores import read_scoring
from kernelweld.patterns.scalars import split_scalar

TOPK: OpOverload = aten.topk.default


@dataclass(frozen=True)
class ExpertTopKPattern(ReadingPattern):
    """``topk`` of sigmoid or softmax scores, plus a bias and among the best groups perhaps, with the weights
    gathered from the scores, renormalised and scaled perhaps.

    ``topk(sorted=False)`` leaves the order of a row free: that of the word, by falling choice, is one that it
    may give.
    """

    name: ClassVar[str] = "expert_topk"
    kind: ClassVar[str] = "expert_topk"
    spelling: ClassVar[str] = (
        "`ids = torch.topk(scores + bias, k, dim=-1)[1]; weights = scores.gather(1, ids)` with float32 "
        "scores, experts of other groups masked with -inf"
    )
    anchors: ClassVar[tuple[OpOverload, ...]] = (TOPK,)

    def read(self, anchor: fx.Node) -> Match:
        choice, k = anchor.args[:2]
        assert isinstance(choice, fx.Node)
        cover = Cover()
        groups = read_groups(choice, cover)
        scores, bias = _scores(groups.choice, cover)
        groups.check(biased=bias is not None)
        if not isinstance(k, int) or not _is_of_the_last(anchor):
            raise Miss("%{} is no choice of the largest in each row", anchor, anchor)
        ids = _result(anchor, 1)
        weights = _weights(anchor, ids, scores, is_plain=choice is scores)
        cover.take(anchor, ids, weights)
        word = ExpertTopK(k, groups.count, groups.kept, renormalise=False, eps=0.0)
        word, weights = _tail(word, weights, cover)
        return cover.match(word, (scores, bias), weights, ids)


def _scores(choice: fx.Node, cover: Cover) -> tuple[fx.Node, fx.Node | None]:
    """The scores and the bias, if there is one."""
    pair = operands(choice) if is_call(choice, *ADD) else None
    for scores, bias in (pair, pair[::-1]) if pair else ():
        if isinstance(scores, fx.Node) and isinstance(bias, fx.Node) and _is_scoring(scores):
            if dtype_of(bias) not in FLOATS or not same_shape(shape_of(bias), shape_of(scores)[1:]):
                text = f"{dtype_name(dtype_of(bias))} {shape_text(shape_of(bias))}"
                raise Miss("the bias %{} is {}, not a number for each expert", bias, bias, text, stage=NEARLY)
            cover.take(choice)
            return scores, bias
    if not _is_scoring(choice):
        raise something_else(choice)
    return choice, None


def _is_scoring(value: fx.Node) -> bool:
    try:
        read_scoring(value, Cover())
    except Miss:
        return False
    return True


def _is_of_the_last(anchor: fx.Node) -> bool:
    """Whether a ``topk`` takes the largest along the last of two dimensions."""
    return argument(anchor, 2, "dim", -1) in (-1, 1) and argument(anchor, 3, "largest", True) is True


def _result(call: fx.Node, index: int) -> fx.Node:
    found = [user for user in call.users if is_getitem(user, index)]
    if len(found) != 1:
        raise something_else(call)
    return found[0]


def _weights(anchor: fx.Node, ids: fx.Node, scores: fx.Node, *, is_plain: bool) -> fx.Node:
    """The scores of the chosen: gathered, or the values of the top-k itself where it is of the scores."""
    for user in ids.users:
        if is_call(user, aten.gather.default) and user.args == (scores, 1, ids):
            return user
        if is_call(user, aten.gather.default) and user.args[:1] == (scores,):
            raise Miss("%{} does not gather the scores of each row", user, user, stage=NEARLY)
    if is_plain:
        return _result(anchor, 0)
    raise Miss("the scores of %{} are not gathered as weights", anchor, anchor, stage=NEARLY)


def _tail(word: ExpertTopK, weights: fx.Node, cover: Cover) -> tuple[ExpertTopK, fx.Node]:
    """``word`` with what follows its weights, and the last value: their division by their sum, a scale."""
    total = next((user for user in weights.users if is_call(user, SUM) and _keeps_rows(user)), None)
    if total is not None:
        eps, divisor = 0.0, total
        added = only_user(total)
        if is_call(added, *ADD) and (found := split_scalar(added)) is not None:
            eps, divisor = found[1], added
        quotient = only_user(divisor)
        if is_call(quotient, *DIV) and operands(quotient) == (weights, divisor):
            cover.take(total, divisor, quotient)
            word, weights = replace(word, renormalise=True, eps=eps), quotient
    product = only_user(weights)
    if is_call(product, *MUL) and (found := split_scalar(product)) is not None:
        cover.take(product)
        word, weights = replace(word, scale=found[1]), product
    return word, weights


def _keeps_rows(total: fx.Node) -> bool:
    return total.args[1] in ([-1], [1]) and argument(total, 2, "keepdim", False) is True
