"""Activations by name, in float32, in the spellings that eager torch computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"silu": silu, "sigmoid": torch.sigmoid, "gelu_tanh": gelu_tanh}
)
