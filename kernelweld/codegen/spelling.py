"""How scalar operations are written in Triton so that float32 results equal eager torch's."""

from __future__ import annotations

import math

import torch

from kernelweld.codegen.refusal import Refused

_TRITON_DTYPES = {
    torch.float32: "tl.float32",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
}


def triton_dtype(dtype: torch.dtype) -> str:
    """The Triton name of ``dtype``."""
    if dtype not in _TRITON_DTYPES:
        raise Refused(f"dtype {str(dtype).removeprefix('torch.')} is not generated")
    return _TRITON_DTYPES[dtype]


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def grouped(text: str) -> str:
    """``text`` safe to put before ``.`` or beside an operator."""
    return f"({text})" if text.startswith("-") or _has_open_space(text) else text


def _has_open_space(text: str) -> bool:
    """Whether ``text`` has a space outside all brackets, that is, an operator of its own."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == " " and depth == 0:
            return True
    return False


_ROUNDINGS = {torch.bfloat16: "round_bf16", torch.float16: "round_fp16"}


def rounded(text: str, dtype: torch.dtype) -> str:
    """A float32 expression rounded to ``dtype`` and widened again; unchanged for float32."""
    if dtype == torch.float32:
        return text
    if dtype not in _ROUNDINGS:
        raise Refused(f"rounding to {str(dtype).removeprefix('torch.')} is not generated")
    return f"{_ROUNDINGS[dtype]}({text})"


def literal(value: float | int) -> str:
    """A Python number as source text."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def silu(x: str) -> str:
    """x / (1 + exp(-x)). The quotient is at most two units in the last place off, less than the exponential
    is: an IEEE division would take longer than the rest of a gate.
    """
    return f"({x} / (1.0 + tl.exp(-{x})))"


def sigmoid(x: str) -> str:
    """1 / (1 + exp(-x)), as close as ``silu``."""
    return f"(1.0 / (1.0 + tl.exp(-{x})))"
