"""``layer_norm``: normalisation by mean and variance over the last dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.word import Word, rounded


@dataclass(frozen=True)
class LayerNorm(Word):
    """LayerNorm over the last dimension, with optional weight and bias.

    Formula, in float32::

        n = (x - mean(x)) * rsqrt(var(x) + eps)     population variance; rounded to normed_dtype
        s = n * weight                              rounded to scaled_dtype
        y = s + bias                                rounded to dtype

    Shapes: ``x [..., N]``, ``weight`` and ``bias`` ``[N]`` or absent.
    Rounding: float32 stage dtypes mean no rounding there; torch's own LayerNorm rounds once, at the end.
    Source: Ba et al. 2016, arXiv 1607.06450.
    """

    kind = "layer_norm"
    operands = ("x", "weight?", "bias?")

    eps: float
    normed_dtype: torch.dtype = torch.float32
    scaled_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, weight, bias = tensors
        assert x is not None
        h = x.float()
        var, mean = torch.var_mean(h, -1, correction=0, keepdim=True)
        y = rounded((h - mean) * torch.rsqrt(var + self.eps), self.normed_dtype)
        y = rounded(y * weight.float() if weight is not None else y, self.scaled_dtype)
        return (y + bias.float() if bias is not None else y).to(self.dtype)
