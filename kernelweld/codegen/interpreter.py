"""Triton's interpreter with casts that round as hardware and torch do.

The interpreter truncates float32 to bfloat16 where hardware rounds to nearest even. Generated kernels
compute in float32 and only cast, so replacing the cast makes interpretation exact. It also multiplies the
bits of bfloat16 matrices as if they were integers; replaced too. Interpreting is chosen by
``TRITON_INTERPRET=1`` before triton is imported and holds for the whole process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from triton.runtime.interpreter import TensorHandle

_FLOATS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
_E4M3_MAX = 448.0


def interpreting() -> bool:
    """Whether this process runs Triton kernels in the interpreter."""
    return not isinstance(tl.cdiv, triton.JITFunction)


@contextmanager
def exact_casts() -> Iterator[None]:
    """Rounds casts between float types to nearest even and multiplies matrices of narrow floats exactly while
    interpreting; does nothing when kernels are compiled.
    """
    if not interpreting():
        yield
        return
    from triton.runtime import interpreter

    original, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert(values: npt.NDArray[np.generic], source: tl.dtype, target: tl.dtype, mode: object) -> object:
        if source.name in _FLOATS and target.name in _FLOATS:
            return _cast(values, _FLOATS[source.name], _FLOATS[target.name])
        return original(values, source, target, mode)

    def wide_dot(builder: object, a: TensorHandle, b: TensorHandle, *rest: object) -> TensorHandle:
        narrow = a.dtype.scalar.name in _FLOATS and b.dtype.scalar.name in _FLOATS
        return dot(builder, *((_wide(a), _wide(b)) if narrow else (a, b)), *rest)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = wide_dot
    try:
        yield
    finally:
        interpreter._convert_float = original
        interpreter.InterpreterBuilder.create_dot = dot


def _wide(handle: TensorHandle) -> TensorHandle:
    """The interpreter's matrix of floats in float32, which is exact."""
    values = _cast(handle.data, _FLOATS[handle.dtype.scalar.name], torch.float32).view(np.float32)
    return type(handle)(values, tl.float32)


def _cast(
    values: npt.NDArray[np.generic], source: torch.dtype, target: torch.dtype
) -> npt.NDArray[np.generic]:
    """The bits of ``values`` (bits of ``source``) as ``target``; e4m3 saturates, as the hardware
    conversion does.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    tensor = tensor if tensor.dtype == source else tensor.view(source)
    if target == torch.float8_e4m3fn:
        wide = tensor.float()
        tensor = torch.where(wide.isnan(), wide, wide.clamp(-_E4M3_MAX, _E4M3_MAX))
    size = target.itemsize
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    bits: npt.NDArray[np.generic] = tensor.to(target).view(integers).numpy().view(f"uint{8 * size}")
    return bits.reshape(values.shape)
