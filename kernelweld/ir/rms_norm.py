"""``rms_norm``: root-mean-square normalisation over the last dimension, scaled and gated."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.ir.activations import ACTIVATIONS
from kernelweld.ir.word import Word, rounded

SCALES = ("none", "w", "1+w")
GATES = ("none", "silu", "sigmoid")


@dataclass(frozen=True)
class RMSNorm(Word):
    """RMSNorm over the last dimension; "per head" and "whole row" are this word on differently shaped views.

    Formula, in float32::

        h = float(x) [* act(float(gate))     gate_first]
        n = h * rsqrt(mean(h * h) + eps)     rounded to normed_dtype
        s = n | n * w | n * (1 + w)          rounded to scaled_dtype
        y = s [* act(float(gate))            not gate_first]   rounded to dtype

    Shapes: ``x [..., N]``; ``weight`` and ``gate`` broadcast against it (a weight is usually ``[N]``).
    Any float dtype up to 32 bits. Rounding: ``normed_dtype=float32`` means no rounding there. Llama-like
    models round the normalised value to bfloat16 and then scale; Gemma, Qwen3.5 and OLMo2 scale in
    float32 and round once. Errors: a dtype of more than 32 bits is refused by the patterns; nothing is
    raised here. Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    kind = "rms_norm"
    operands = ("x", "weight?", "gate?")

    eps: float
    scale: str = "w"
    gate: str = "none"
    gate_first: bool = False
    normed_dtype: torch.dtype = torch.float32
    scaled_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, weight, gate = tensors
        assert x is not None
        h = x.float()
        if gate is not None and self.gate_first:
            h = h * ACTIVATIONS[self.gate](gate.float())
        n = rounded(h * torch.rsqrt(torch.mean(h * h, -1, keepdim=True) + self.eps), self.normed_dtype)
        s = rounded(n * self._factor(weight) if weight is not None else n, self.scaled_dtype)
        if gate is not None and not self.gate_first:
            s = s * ACTIVATIONS[self.gate](gate.float())
        return s.to(self.dtype)

    def _factor(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.float() + 1.0 if self.scale == "1+w" else weight.float()
