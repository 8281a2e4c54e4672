"""Codes of e4m3 with their scales, as the model's linear layers and caches use them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

E4M3 = torch.float8_e4m3fn
LIMIT = 448.0  # the largest number of e4m3
BLOCK = 128


def quantize(x: torch.Tensor, *, floor: float, ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[..., N]`` and scales ``[..., 1]`` float32 of ``x [..., N]``, one scale a row.

    ``floor`` is the smallest largest magnitude, so that rows of zeros divide by no zero; ``ue8m0`` rounds
    scales up to powers of two.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(floor) / LIMIT
    if ue8m0:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return (x / scale).clamp(-LIMIT, LIMIT).to(E4M3), scale


def quantize_groups(x: torch.Tensor, *, ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[M, K]`` and scales ``[M, ceil(K / 128)]`` of ``x [M, K]``, one scale for each 128 values."""
    rows, width = x.shape
    groups = -(-width // BLOCK)
    padded = F.pad(x, (0, groups * BLOCK - width)) if width % BLOCK else x
    codes, scales = quantize(padded.view(rows, groups, BLOCK), floor=1e-10, ue8m0=ue8m0)
    return codes.view(rows, groups * BLOCK)[:, :width], scales.view(rows, groups)


def dequantize_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 weight of ``codes [N, K]`` with a scale for each block of 128 x 128."""
    n, k = codes.shape
    return codes.float() * scales.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
