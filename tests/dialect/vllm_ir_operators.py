"""``vllm_ir`` norms on a CPU, defined as releases define them and as one that no word rounds as."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Norm = Callable[..., Tensor]


def _unit(x: Tensor, epsilon: float) -> Tensor:
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)


def rounds_first(x: Tensor, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    normed = _unit(x, epsilon).to(dtype)
    return normed if weight is None else (normed * weight).to(dtype)


def rounds_to_weight(x: Tensor, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    """As release 0.26 defines it: the normalised value in the dtype of the weight."""
    normed = _unit(x, epsilon)
    return (normed if weight is None else normed.to(weight.dtype) * weight).to(dtype)


def rounds_once(x: Tensor, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    normed = _unit(x, epsilon)
    return (normed if weight is None else normed * weight.float()).to(dtype)


def in_halves(x: Tensor, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Rounds each square as well: no word does."""
    h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    return h if weight is None else h * weight


def define(library: torch.library.Library, norm: Norm, rounded_sum: bool) -> None:
    """The operators, defined by ``norm``; the sum is rounded before it is normalised, or not."""

    def rms_norm(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return norm(x, weight, epsilon, x.dtype)

    def add(
        x: Tensor, r: Tensor, w: Tensor | None, epsilon: float, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        total = x + r if rounded_sum else x.float() + r.float()
        return norm(total, w, epsilon, x.dtype), total.to(x.dtype)

    rest = "Tensor? weight, float epsilon, int? variance_size=None"
    library.define(f"rms_norm(Tensor x, {rest}) -> Tensor")
    library.define(f"fused_add_rms_norm(Tensor x, Tensor x_residual, {rest}) -> (Tensor, Tensor)")
    for name, reference in (("rms_norm", rms_norm), ("fused_add_rms_norm", add)):
        library.impl(name, reference, "CPU")
    torch.library.register_fake("vllm_ir::rms_norm", lambda x, *a: torch.empty_like(x), lib=library)
    both = lambda x, *a: (torch.empty_like(x), torch.empty_like(x))  # noqa: E731
    torch.library.register_fake("vllm_ir::fused_add_rms_norm", both, lib=library)
