"""``quant``: codes of a given scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import FLOATS, check_dtype, check_shape
from kernelweld.ir.word import Word

OPERATIONS = ("divide", "reciprocal", "multiply")


@dataclass(frozen=True)
class Quant(Word):
    """Quantization to ``dtype`` (``float8_e4m3fn`` or ``int8``) with a scale for each row, one for all, or
    the ``number`` that the source names.

    Formula, in float32, by ``operation``::

        divide       y = x / scale
        reciprocal   y = x * (1 / scale)       the reciprocal rounded to float32 first
        multiply     y = x * scale             ``scale`` is the inverse one
        code = to_dtype(clamp(y, low, high))   int8 rounds half to even; NaN stays NaN in e4m3

    Static quantization gives a constant scale, dynamic quantization that of ``quant_scale``; a group of a
    wider row is a row of its view.

    Shapes: ``x [..., N]``, ``scale [..., 1]`` or one element (None for a ``number``), out ``[..., N]``.
    """

    kind = "quant"
    operands = ("x", "scale?")

    low: float
    high: float
    operation: str = "divide"
    dtype: torch.dtype = torch.float8_e4m3fn
    number: float = 0.0

    def check(self, *tensors: torch.Tensor | None) -> None:
        x, scale = tensors
        assert x is not None
        check_dtype(self.kind, "x", x, FLOATS)
        if scale is None:
            if not self.number:
                raise BadOperand(self.kind, "scale", "None", "a tensor, or the parameter `number`")
            return
        check_dtype(self.kind, "scale", scale, (torch.float32,))
        if scale.dim() > 1 or scale.shape not in ((), (1,)):
            check_shape(
                self.kind,
                "scale",
                scale,
                (*x.shape[:-1], 1),
                f"[1], or one for each row of x {list(x.shape)}",
            )

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, scale = tensors
        assert x is not None
        y = x.float()
        factor = torch.full((), self.number, device=x.device) if scale is None else scale.float()
        if self.operation == "divide":
            y = y / factor
        else:
            y = y * (torch.reciprocal(factor) if self.operation == "reciprocal" else factor)
        if not self.dtype.is_floating_point:
            y = torch.round(y)
        return y.clamp(self.low, self.high).to(self.dtype)
