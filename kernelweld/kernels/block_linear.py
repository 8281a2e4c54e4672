"""``block_linear``: a stand-in of the operator, in plain torch only."""

from __future__ import annotations

import torch

from kernelweld.kernels.operator import define


def reference(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``[M, N]``: both sides scaled by their blocks of 128, in float32."""
    n, k = weight.shape
    x = codes.float() * scales.repeat_interleave(128, 1)[:, :k]
    w = weight.float() * weight_scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return (x @ w.T).to(dtype)


def kernel(*_: object, **__: object) -> torch.Tensor:
    """Not here yet."""
    raise NotImplementedError


block_linear = define(
    "block_linear(Tensor codes, Tensor scales, Tensor weight, Tensor weight_scales, *, ScalarType dtype)"
    " -> Tensor",
    reference,
    kernel,
)
