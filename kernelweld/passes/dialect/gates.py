"""``_C.silu_and_mul``, plain and with codes. The activation is rounded, then the product; the kernel with a
scale a group rounds neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import GateMul
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.dialect.quants import check_transposed, check_without_gaps, codes_of, quantized
from kernelweld.patterns.ops import FLOATS, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss


def silu_and_mul(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``silu_and_mul(result!, input)``: the first half of a row gates the second."""
    return [gated(build, cast(fx.Node, call.values[1]))]


def silu_and_mul_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``silu_and_mul_quant(result!, input, scale)``."""
    out, x, scale = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values)
    return [codes_of(build, gated(build, x), scale, out)]


def silu_and_mul_per_block_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``silu_and_mul_per_block_quant(out!, input, scales!, group_size, scale_ub?, is_scale_transposed)``:
    codes of a group divided by its scale.
    """
    out, x, scales = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values[:3])
    group, upper, transposed = cast("tuple[int, fx.Node | None, bool]", call.values[3:6])
    if upper is not None:
        raise Miss(
            "the scales have an upper bound, %{}, themselves, not their largest magnitude", upper, upper
        )
    check_without_gaps(scales)
    check_transposed(scales, transposed)
    return quantized(build, gated(build, x, torch.float32, torch.float32), None, out, scales, group, "divide")


def gated(
    build: Builder, x: fx.Node, act_dtype: torch.dtype | None = None, rounded: torch.dtype | None = None
) -> fx.Node:
    """The product, rounded to ``rounded``, of the activation, rounded to ``act_dtype``; both are the dtype of
    ``x`` by default.
    """
    width, dtype = shape_of(x)[-1], dtype_of(x)
    if dtype is None or dtype not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype))
    if not isinstance(width, int):
        raise Miss("the width of %{} is a symbol", x, x)
    halves = build.part(x, 0, width // 2), build.part(x, width // 2, width)
    return build.word(GateMul("silu", act_dtype or dtype, rounded or dtype), *halves)
