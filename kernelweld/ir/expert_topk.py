"""``expert_topk``: the experts of each token and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import FLOATS, check_dtype, check_shape
from kernelweld.ir.word import Word


@dataclass(frozen=True)
class ExpertTopK(Word):
    """The ``k`` experts of largest choice in each row, and their scores as weights.

    ``choice = scores [+ bias]``; the bias counts for the choice only. With fewer ``top_groups`` than
    ``groups``, experts outside the best groups are no choice (-inf); a group is as good as the sum of its two
    largest choices with a bias, as its largest without. ``weights = scores[ids]``, divided by
    ``their sum + eps`` with ``renormalise``, times ``scale``.

    Ids are listed by falling choice, of equal choices the lowest first; NaN is the largest, so that rows of
    NaN, the padding of a batch, give valid and distinct ids.

    Shapes: ``scores [M, E]`` float32, ``bias [E]`` of any float dtype; out weights ``[M, k]`` float32 and
    ids ``[M, k]`` int64. No rounding. Errors: BadOperand for other shapes and dtypes, unequal groups, too few
    experts.
    Source: DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
    """

    kind = "expert_topk"
    operands = ("scores", "bias?")
    results = 2
    is_row: ClassVar[bool] = False

    k: int
    groups: int = 1
    top_groups: int = 1
    renormalise: bool = True
    eps: float = 1e-20
    scale: float = 1.0

    def check(self, *tensors: torch.Tensor | None) -> None:
        scores, bias = tensors
        assert scores is not None
        check_dtype(self.kind, "scores", scores, (torch.float32,))
        if scores.dim() != 2:
            raise BadOperand(self.kind, "scores", f"{scores.dim()} dimensions", "a row for each token")
        experts = scores.shape[1]
        if bias is not None:
            check_dtype(self.kind, "bias", bias, FLOATS)
            check_shape(self.kind, "bias", bias, (experts,))
        self._check_counts(experts, pairs=bias is not None)

    def _check_counts(self, experts: int, *, pairs: bool) -> None:
        if self.groups < 1 or experts % self.groups or not 0 < self.top_groups <= self.groups:
            got = f"{self.top_groups} of {self.groups} groups of {experts} experts"
            raise BadOperand(self.kind, "groups", got, "some of several equal groups")
        size = experts // self.groups
        if not 0 < self.k <= self.top_groups * size:
            got = f"{self.k} of {self.top_groups * size} experts"
            raise BadOperand(self.kind, "k", got, "one expert or more of those there are")
        if pairs and self.top_groups < self.groups and size < 2:
            raise BadOperand(self.kind, "groups", "groups of one expert", "groups of two or more")

    def reference(self, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        scores, bias = tensors
        assert scores is not None
        choice = scores if bias is None else scores + bias
        if self.top_groups < self.groups:
            choice = choice.masked_fill(~self._kept(choice, pairs=bias is not None), -torch.inf)
        ids = _largest(choice, self.k)
        weights = scores.gather(1, ids)
        if self.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + self.eps)
        return (weights * self.scale if self.scale != 1.0 else weights), ids

    def _kept(self, choice: torch.Tensor, *, pairs: bool) -> torch.Tensor:
        """Which experts, [M, E], are in one of the best groups."""
        grouped = choice.unflatten(1, (self.groups, -1))
        best = _largest(grouped.topk(2 if pairs else 1).values.sum(-1), self.top_groups)
        kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, True)
        return kept[..., None].expand_as(grouped).flatten(1)


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """The indices of the ``k`` largest of each row, falling; of equal values the lowest first."""
    return values.sort(stable=True, dim=-1, descending=True).indices[:, :k].contiguous()
