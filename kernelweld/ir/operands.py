"""Checks of the tensors that a word is called with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from kernelweld.errors import BadOperand

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_dtype(word: str, operand: str, x: torch.Tensor, wanted: Collection[torch.dtype]) -> None:
    """Raises BadOperand for a tensor of another dtype than ``wanted``."""
    if x.dtype not in wanted:
        raise BadOperand(word, operand, name(x.dtype), " or ".join(map(name, wanted)))


def check_shape(word: str, operand: str, x: torch.Tensor, wanted: Sequence[object], what: str = "") -> None:
    """Raises BadOperand for a tensor that is known to have another shape than ``wanted``."""
    if x.dim() != len(wanted) or any(map(differ, x.shape, wanted)):
        shape = f"[{', '.join(map(str, wanted))}]"
        got = f"shape [{', '.join(map(str, x.shape))}]"
        raise BadOperand(word, operand, got, what or f"shape {shape}")


def differ(left: object, right: object) -> bool:
    """Whether two sizes are numbers and not the same; a symbol may be any number."""
    return isinstance(left, int) and isinstance(right, int) and left != right
