"""``quant_scale``: the scale with which a row is quantized, from its largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernelweld.ir.operands import FLOATS, check_dtype, check_shape
from kernelweld.ir.word import Word

EPS_PLACES = ("none", "amax", "scale")
FORMATS = ("fp32", "ue8m0", "ue8m0_floor", "e4m3")
TENSOR_SCALES = ("multiply", "divide")


@dataclass(frozen=True)
class QuantScale(Word):
    """The dynamic scale of each row of the last dimension; a group of a wider row is a row of its view.

    Formula, in float32::

        a = max(abs(x))                      NaN where the row holds one
        a = min(a, upper)                    if there is an upper bound
        a = max(a, eps)                      if eps_place is "amax"
        s = a / limit                        a * (1 / limit), rounded once, if ``inverse_limit``
        s = max(s, eps)                      if eps_place is "scale"
        s = s * tensor_scale                 or s / tensor_scale, if there is one, by ``apply``
        s = 2 ** ceil(log2(s))               if format is "ue8m0": the next power of two, exactly
        s = 2 ** floor(log2(s))              if format is "ue8m0_floor": the one before
        s = min(max(s, low), high)           if ``high`` is not 0: two powers of two, or numbers of e4m3
        s = e4m3(s)                          if format is "e4m3", in float32 again

    ``limit`` is the largest code: 448 for e4m3, 127 for int8, 6 for e2m1; MX formats divide by a power of
    two, or not at all (1), and round down.

    Shapes: ``x [..., N]``, ``upper`` and ``tensor_scale`` one element, out ``[..., 1]`` in float32, ``[...]``
    without ``keepdim``.
    Rounding: none but float32's, and that to e4m3.
    Source: the per-token and per-group quantization of vLLM and DeepSeek-V3; OCP Microscaling Formats (MX)
    Specification 1.0, section 6.3; NVFP4 of vLLM and FlashInfer.
    """

    kind = "quant_scale"
    operands = ("x", "upper?", "tensor_scale?")

    limit: float
    eps: float = 0.0
    eps_place: str = "none"
    inverse_limit: bool = False
    format: str = "fp32"
    low: float = 0.0
    high: float = 0.0
    keepdim: bool = True
    apply: str = "multiply"

    def check(self, *tensors: torch.Tensor | None) -> None:
        x, upper, whole = (*tensors, None)[:3]
        assert x is not None
        check_dtype(self.kind, "x", x, FLOATS)
        for name, one in (("upper", upper), ("tensor_scale", whole)):
            if one is not None and one.shape != ():
                check_shape(self.kind, name, one, (1,), "one element")
        if whole is not None:
            check_dtype(self.kind, "tensor_scale", whole, (torch.float32,))

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, upper, whole = (*tensors, None)[:3]
        assert x is not None
        amax = x.float().abs().amax(-1, keepdim=self.keepdim)
        if upper is not None:
            amax = torch.minimum(amax, upper.float().reshape(()))
        if self.eps_place == "amax":
            amax = amax.clamp_min(self.eps)
        scale = amax * inverse(self.limit) if self.inverse_limit else amax / torch.full_like(amax, self.limit)
        if self.eps_place == "scale":
            scale = scale.clamp_min(self.eps)
        if whole is not None:
            whole = whole.reshape(())
            scale = scale * whole if self.apply == "multiply" else scale / whole
        if self.format == "e4m3":
            return scale.clamp(self.low, self.high).to(torch.float8_e4m3fn).float()
        return scale if self.format == "fp32" else self._power(scale)

    def _power(self, scale: torch.Tensor) -> torch.Tensor:
        power = next_power_of_two(scale) if self.format == "ue8m0" else power_of_two_below(scale)
        if not self.high:
            return power
        return torch.where(scale <= self.low, self.low, power).clamp(self.low, self.high)


def inverse(limit: float) -> float:
    """``1 / limit`` in float32: no tensor, which tracing would put into a graph."""
    return float(np.float32(1.0) / np.float32(limit))


def next_power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """``2 ** ceil(log2(scale))`` without the rounding of a logarithm, by the bits of float32.

    A mantissa carries into the exponent. Zero stays zero, infinity and NaN are kept; a subnormal becomes the
    smallest normal number.
    """
    bits = scale.view(torch.int32)
    raised = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isfinite(scale), raised, scale)


def power_of_two_below(scale: torch.Tensor) -> torch.Tensor:
    """``2 ** floor(log2(scale))`` by the bits of float32: the exponent alone.

    Zero stays zero, infinity and NaN are kept; a subnormal becomes zero.
    """
    power = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isfinite(scale), power, scale)
