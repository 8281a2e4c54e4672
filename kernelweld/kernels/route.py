"""``route``: a router's GEMM and the choice of experts, in one launch for few rows.

``route(x, weight, bias)`` is ``expert_topk(router_scores(x, weight), bias)``: weights [M, k] float32 and ids
[M, k] int64 for x [M, D] and weight [E, D], both bfloat16 or float32, bias [E] of any float dtype. Those
words say what is computed, how ties and NaN are ordered, and which errors there are; ``logits`` is the dtype
that the logits are rounded to, float32 if not given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.expert_topk import ExpertTopK
from kernelweld.ir.operands import check_dtype
from kernelweld.ir.router_scores import RouterScores
from kernelweld.kernels.operator import define

DTYPES = (torch.bfloat16, torch.float32)

#: What is added to a sum of weights before it divides them.
EPS = 1e-20

Routed = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """The operator's parameters: how experts are chosen."""

    k: int
    groups: int
    top_groups: int
    scoring: str
    renormalise: bool
    scale: float
    logits: torch.dtype | None = None

    @property
    def scores(self) -> RouterScores:
        """The word for the first half."""
        return RouterScores(self.scoring, self.logits or torch.float32)

    @property
    def choice(self) -> ExpertTopK:
        """The word for the second half."""
        return ExpertTopK(self.k, self.groups, self.top_groups, self.renormalise, EPS, self.scale)


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **rule: object
) -> Routed:
    """In plain torch, on any device. Raises BadOperand."""
    known = _checked(x, weight, bias, Rule(**rule))  # type: ignore[arg-type]
    return known.choice.reference(known.scores.reference(x, weight), bias)


def kernel(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **rule: object) -> Routed:
    """On a GPU: one launch for few rows, the library's GEMM and a choice for more. Raises BadOperand.

    The arithmetic of a row depends on how many there are, as with a library's GEMM; for one number of rows
    the bits are the same every time.
    """
    from kernelweld.kernels.route_launch import launch

    return launch(x, weight, bias, _checked(x, weight, bias, Rule(**rule)))  # type: ignore[arg-type]


def _checked(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rule: Rule) -> Rule:
    """``rule``, if it and the operands make a router."""
    rule.scores.check(x, weight)
    for name, operand in (("x", x), ("weight", weight)):
        check_dtype("route", name, operand, DTYPES)
    scores = x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device="meta")
    rule.choice.check(scores, bias)
    return rule


route = define(
    "route(Tensor x, Tensor weight, Tensor? bias=None, *, int k, int groups, int top_groups, str scoring, "
    "bool renormalise, float scale, ScalarType? logits=None) -> (Tensor, Tensor)",
    reference,
    kernel,
)
