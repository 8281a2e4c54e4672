"""``e2m1``: codes of four bits with a scale for each block, two of them in a byte."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelweld.errors import BadOperand
from kernelweld.ir.operands import FLOATS, check_dtype, check_shape, differ
from kernelweld.ir.word import Word

OPERATIONS = ("divide", "multiply", "reciprocals", "quotient")
ZEROS = ("signed", "negative", "plain")

#: Where the next code begins, and whether it has the number between both: that with an even code has it.
_BOUNDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
#: The code of the largest number, 6; NaN has it too.
_LARGEST = 7


@dataclass(frozen=True)
class E2M1(Word):
    """Codes of e2m1, the numbers 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign, for ``x`` in blocks of ``block``.

    Formula, in float32, by ``operation``::

        divide        y = x / scale
        multiply      y = x * scale                          ``scale`` is the inverse one
        reciprocals   y = x * r(scale * r(tensor_scale))     r(a) = 1 / a, and 0 for 0
        quotient      y = x * (1 / tensor_scale / scale)
        code = e2m1(min(max(y, -6), 6))                      half to the even code; NaN has the code of 6
        byte = code[0] | code[1] << 4

    ``zeros``: the code of what is rounded to zero. ``"signed"`` has its sign, ``"negative"`` too, except that
    -0 is no negative number, ``"plain"`` has none.

    Shapes: ``x [..., N]``, ``scale`` one for each block, in their order, in any shape, ``tensor_scale`` one
    element, out ``[..., N / 2]`` in uint8.
    Source: NVFP4 of vLLM, FlashInfer and torchao; OCP Microscaling Formats (MX) Specification 1.0 (MXFP4).
    """

    kind = "e2m1"
    operands = ("x", "scale", "tensor_scale?")

    operation: str = "reciprocals"
    block: int = 16
    zeros: str = "signed"

    @property
    def reads_tensor_scale(self) -> bool:
        """Whether the formula has a scale of the whole tensor."""
        return self.operation in ("reciprocals", "quotient")

    def check(self, *tensors: torch.Tensor | None) -> None:
        x, scale, whole = (*tensors, None)[:3]
        assert x is not None and scale is not None
        check_dtype(self.kind, "x", x, FLOATS)
        check_dtype(self.kind, "scale", scale, (torch.float32,))
        if x.dim() == 0 or self.block % 2 or _is_rest(x.shape[-1], self.block):
            shape = f"shape [{', '.join(map(str, x.shape))}]"
            raise BadOperand(self.kind, "x", shape, f"rows of whole blocks of {self.block}, an even number")
        if differ(scale.numel() * self.block, x.numel()):
            shape = f"shape [{', '.join(map(str, scale.shape))}]"
            wanted = f"one scale for each {self.block} elements of x {list(x.shape)}"
            raise BadOperand(self.kind, "scale", shape, wanted)
        self._check_whole(whole)

    def _check_whole(self, whole: torch.Tensor | None) -> None:
        if (whole is not None) != self.reads_tensor_scale:
            got, wanted = ("None", "a tensor") if whole is None else ("a tensor", "None")
            raise BadOperand(self.kind, "tensor_scale", got, f"{wanted} to {self.operation}")
        if whole is not None:
            check_dtype(self.kind, "tensor_scale", whole, (torch.float32,))
            if whole.shape != ():
                check_shape(self.kind, "tensor_scale", whole, (1,), "one element")

    def reference(self, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, scale, whole = (*tensors, None)[:3]
        assert x is not None and scale is not None
        blocks = x.float().unflatten(-1, (-1, self.block))
        y = self._scaled(blocks, scale.reshape(*blocks.shape[:-1], 1), whole)
        codes = code_of(y, self.zeros).reshape(x.shape)
        return codes[..., ::2] | (codes[..., 1::2] << 4)

    def _scaled(self, x: torch.Tensor, scale: torch.Tensor, whole: torch.Tensor | None) -> torch.Tensor:
        if self.operation == "divide":
            return x / scale
        if self.operation == "multiply":
            return x * scale
        assert whole is not None
        if self.operation == "quotient":
            return x * (torch.reciprocal(whole) / scale)
        return x * reciprocal_or_zero(scale * reciprocal_or_zero(whole))


def _is_rest(size: object, block: int) -> bool:
    """Whether blocks are known to leave a rest of ``size``; a symbol may be any number."""
    return isinstance(size, int) and size % block != 0


def reciprocal_or_zero(x: torch.Tensor) -> torch.Tensor:
    """``1 / x``, and 0 for 0."""
    return torch.where(x == 0.0, torch.zeros_like(x), torch.reciprocal(x))


def code_of(y: torch.Tensor, zeros: str = "signed") -> torch.Tensor:
    """The code of each number, in uint8."""
    magnitude = y.abs()
    code = magnitude.isnan().to(torch.uint8) * _LARGEST
    for bound, even in _BOUNDS:
        code = code + (magnitude >= bound if even else magnitude > bound).to(torch.uint8)
    sign = (torch.signbit(y) & ~y.isnan()) if zeros == "signed" else y < 0
    if zeros == "plain":
        sign = sign & (code != 0)
    return code | (sign.to(torch.uint8) << 3)
