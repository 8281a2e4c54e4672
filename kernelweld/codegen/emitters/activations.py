"""Activations by name, in the spellings of ``kernelweld.ir.activations``."""

from __future__ import annotations

import math
from dataclasses import replace

from kernelweld.codegen.refusal import Refused
from kernelweld.codegen.spelling import sigmoid, silu
from kernelweld.codegen.tile import Tile


def activation(name: str, x: Tile) -> Tile:
    """The float32 expression of activation ``name`` of the named tile ``x``."""
    return replace(x, text=_spelling(name, x.text), clean=False)


def _spelling(name: str, x: str) -> str:
    if name == "silu":
        return silu(x)
    if name == "sigmoid":
        return sigmoid(x)
    if name == "gelu_tanh":
        inner = f"{math.sqrt(2 / math.pi)!r} * ({x} + 0.044715 * {x} * {x} * {x})"
        return f"0.5 * {x} * (1.0 + tanh_fp32({inner}))"
    raise Refused(f"activation `{name}` is not generated")
