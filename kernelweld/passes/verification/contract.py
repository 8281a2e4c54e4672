"""The numerics contract: a weld is at most as wrong as the nodes it replaces, plus one unit in the
last place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ErrorReport:
    """The largest absolute errors of one output against float64: of the weld's kernel, of the original
    nodes, and what is allowed.
    """

    output: str
    weld: float
    original: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.weld <= self.allowed


def compare(output: str, weld: torch.Tensor, original: torch.Tensor, truth: torch.Tensor) -> ErrorReport:
    """Judges one output. Elements that are not finite must be so in the same way."""
    dtype, weld, original = weld.dtype, weld.double(), original.double()
    finite = torch.isfinite(truth) & torch.isfinite(original)
    same = torch.equal(weld[~finite].nan_to_num(), original[~finite].nan_to_num())
    if not same or not torch.isfinite(weld[finite]).all():
        return ErrorReport(output, float("inf"), 0.0, 0.0)
    if not finite.any():
        return ErrorReport(output, 0.0, 0.0, 0.0)
    wrong = (weld - truth).abs()[finite]
    own = (original - truth).abs()[finite]
    excess = (wrong - unit_in_last_place(truth[finite], dtype)).max()
    worst = float(own.max())
    return ErrorReport(output, float(wrong.max()), worst, float(wrong.max()) if excess <= worst else worst)


def unit_in_last_place(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring values of ``dtype`` at the magnitude of ``x``."""
    if not dtype.is_floating_point:
        return torch.ones_like(x)
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp_min(info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(x, info.eps), exponent)
