"""Linear layers: of plain weights, and of blocks of e4m3 codes."""

from __future__ import annotations

import torch
from torch import nn

from kernelweld.kernels.block_linear import block_linear
from kernelweld.models.config import Config
from kernelweld.models.quant import BLOCK, E4M3, quantize_groups


class BlockLinear(nn.Module):
    """``x @ weight.T`` of a weight ``[N, K]`` of e4m3 codes, with ``weight_scale_inv [ceil(N / 128), ceil(K /
    128)]`` float32: a scale in spite of its name, which is DeepSeek's. The input becomes codes with a scale
    for each token and 128 values.
    """

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, ue8m0: bool) -> None:
        super().__init__()
        self.dtype, self.ue8m0 = dtype, ue8m0
        blocks = -(-outputs // BLOCK), -(-inputs // BLOCK)
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, dtype=E4M3), requires_grad=False)
        self.weight_scale_inv = nn.Parameter(torch.ones(blocks), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [T, K]``; out ``[T, N]`` of the model's dtype."""
        codes, scales = quantize_groups(x, ue8m0=self.ue8m0)
        out = block_linear(codes, scales, self.weight, self.weight_scale_inv, dtype=self.dtype)
        assert isinstance(out, torch.Tensor)
        return out


def linear(config: Config, inputs: int, outputs: int, dtype: torch.dtype) -> nn.Module:
    """A linear layer without bias, as the checkpoint holds it."""
    if config.fp8:
        return BlockLinear(inputs, outputs, dtype, config.ue8m0)
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype)
