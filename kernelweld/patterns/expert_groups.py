"""Groups of experts in FX: choices outside the best groups are masked with -inf before the top-k."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import fx

from kernelweld.patterns.cover import Cover
from kernelweld.patterns.ops import (
    CAST,
    CLONE,
    EXPAND,
    RESHAPE,
    SUM,
    UNSQUEEZE,
    argument,
    aten,
    is_call,
    is_getitem,
    shape_of,
)
from kernelweld.patterns.reading import NEARLY, Miss, something_else
from kernelweld.patterns.scalars import scalar

_NOT = (aten.bitwise_not.default, aten.logical_not.default)
_SPREAD = (*RESHAPE, CAST, CLONE, EXPAND, UNSQUEEZE)
_SCATTER = (aten.scatter.value, aten.scatter.src)


@dataclass(frozen=True)
class Groups:
    """``kept`` of ``count`` groups of ``choice``, by the sum of the two largest of each (``pairs``) or by the
    largest; one group where nothing is masked.
    """

    choice: fx.Node
    count: int = 1
    kept: int = 1
    pairs: bool = True

    def check(self, *, biased: bool) -> None:
        """Raises Miss where the rule does not go with the bias: two choices with one, the largest without."""
        if self.count > 1 and self.pairs != biased:
            how = "the sum of two choices" if self.pairs else "the largest choice"
            text = "with" if biased else "without"
            template = "groups of %{} are compared by {} {} a bias"
            raise Miss(template, self.choice, self.choice, how, text, stage=NEARLY)


def read_groups(choice: fx.Node, cover: Cover) -> Groups:
    """What is below the masking of ``choice``. Raises Miss."""
    if is_call(choice, aten.where.self):
        mask, fill, base = choice.args
    elif is_call(choice, aten.masked_fill.Scalar):
        base, mask, fill = choice.args
    else:
        return Groups(choice)
    if not isinstance(base, fx.Node) or not isinstance(mask, fx.Node) or not _is_not(mask):
        raise something_else(choice)
    kept: object = mask.args[0]
    cover.take(choice, mask)
    while is_call(kept, *_SPREAD):
        cover.take(kept)
        kept = kept.args[0]
    assert isinstance(kept, fx.Node)
    best = _best(kept, choice, cover)
    if scalar(fill) != -math.inf:
        raise Miss("%{} masks experts with another value than -inf", choice, choice, stage=NEARLY)
    score = best.args[0]
    grouped, pairs = _grouped(score, cover)
    if not is_call(grouped, *RESHAPE) or grouped.args[0] is not base or len(shape_of(grouped)) != 3:
        raise Miss("the groups of %{} are not those of its choices", choice, choice, stage=NEARLY)
    count, kept_count = shape_of(grouped)[1], best.args[1]
    if not isinstance(count, int) or not isinstance(kept_count, int):
        raise Miss("the number of groups of %{} is a symbol", choice, choice, stage=NEARLY)
    cover.take(grouped)
    return Groups(base, count, kept_count, pairs)


def _is_not(mask: fx.Node) -> bool:
    """Whether ``mask`` holds where its operand is zero."""
    return is_call(mask, *_NOT) or (is_call(mask, aten.eq.Scalar) and scalar(mask.args[1]) == 0)


def _best(scattered: fx.Node, choice: fx.Node, cover: Cover) -> fx.Node:
    """The ``topk`` of groups whose indices are set in a mask of zeros."""
    if not is_call(scattered, *_SCATTER) or scattered.args[1] != 1 or scalar(scattered.args[3]) != 1:
        raise something_else(choice)
    zeros, ids = scattered.args[0], scattered.args[2]
    if not is_call(zeros, aten.full.default) or zeros.args[1] != 0 or not is_getitem(ids, 1):
        raise something_else(choice)
    best = ids.args[0]
    if not is_call(best, aten.topk.default):
        raise something_else(choice)
    cover.take(scattered, ids, best)
    cover.share(zeros)
    return best


def _grouped(score: object, cover: Cover) -> tuple[object, bool]:
    """The choices by groups of which ``score`` is the rule, and whether it is the sum of two."""
    if is_call(score, aten.amax.default) and score.args[1] in ([-1], [2]):
        cover.take(score)
        return score.args[0], False
    values = score.args[0] if is_call(score, SUM) and score.args[1] in ([-1], [2]) else score
    best = values.args[0] if is_getitem(values, 0) else None
    if is_call(best, aten.max.dim) and best.args[1] in (-1, 2) and values is score:
        cover.take(values, best)  # type: ignore[arg-type]
        return best.args[0], False
    if is_call(best, aten.topk.default) and best.args[1] == 2 and argument(best, 2, "dim", -1) in (-1, 2):
        cover.take(score, values, best)  # type: ignore[arg-type]
        return best.args[0], True
    assert isinstance(score, fx.Node)
    raise Miss("%{} is neither the largest choice of a group nor the sum of two", score, score, stage=NEARLY)
