"""``l2_norm``: division by the Euclidean norm of the last dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.word import Word, rounded

EPS_PLACES = ("inside", "outside", "clamp")


@dataclass(frozen=True)
class L2Norm(Word):
    """L2 normalisation over the last dimension.

    Formula, in float32, by ``eps_place``::

        inside   y = x * rsqrt(sum(x * x) + eps)
        outside  y = x / (sqrt(sum(x * x)) + eps)
        clamp    y = x / max(sqrt(sum(x * x)), eps)          F.normalize

    Shapes: ``x [..., N]``, same shape out. Rounding: for ``outside`` and ``clamp`` the norm is rounded to
    ``norm_dtype`` before eps is applied; the result to ``dtype``.
    """

    kind = "l2_norm"
    operands = ("x",)

    eps: float
    eps_place: str = "inside"
    norm_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        (x,) = tensors
        assert x is not None
        h = x.float()
        total = torch.sum(h * h, -1, keepdim=True)
        if self.eps_place == "inside":
            return (h * torch.rsqrt(total + self.eps)).to(self.dtype)
        norm = rounded(torch.sqrt(total), self.norm_dtype)
        norm = norm + self.eps if self.eps_place == "outside" else norm.clamp_min(self.eps)
        return (h / rounded(norm, self.norm_dtype)).to(self.dtype)
