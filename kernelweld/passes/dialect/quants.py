"""Quantization to e4m3: with a given scale, a scale a token, a scale a group.

Kernels clamp with ``fmin`` and ``fmax``, which drop NaN; the words keep NaN. Nothing else differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import Quant, QuantScale
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import FLOATS, dtype_name, dtype_of, shape_of, shape_text, value_of
from kernelweld.patterns.reading import Miss

#: The largest code.
_LIMIT = 448.0
#: The smallest scale a token: 1 / (448 * 512) in float32.
_SMALLEST = float(torch.tensor(1.0) / (_LIMIT * 512.0))
#: The smallest scale that is raised to a power of two.
_SMALLEST_UE8M0 = float(torch.tensor(1e-10))


def static_scaled_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``static_scaled_fp8_quant(result!, input, scale, group_shape?)``: one scale for all."""
    out, x, scale = cast("tuple[fx.Node, ...]", call.values[:3])
    return [codes_of(build, x, scale, out)]


def dynamic_per_token_scaled_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``dynamic_per_token_scaled_fp8_quant(result!, input, scale!, scale_ub?)``."""
    out, x, scale, upper = cast("tuple[fx.Node, fx.Node, fx.Node, fx.Node | None]", call.values)
    found = token_scale(build, x, upper, scale)
    return [codes_of(build, x, found, out, "divide"), build.reshaped(found, shape_of(scale))]


def per_token_group_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``per_token_group_fp8_quant(input, output_q!, output_s!, group_size, eps, fp8_min, fp8_max,
    scale_ue8m0, …)``: a scale for each group of a row, the scales of a row side by side.
    """
    x, out, scales = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values[:3])
    group, eps, low, high, ue8m0 = cast("tuple[int, float, float, float, bool]", call.values[3:8])
    width = shape_of(x)[-1]
    _check(x, out)
    if dtype_of(scales) != torch.float32:
        raise Miss("the scales %{} are packed, {}", scales, scales, dtype_name(dtype_of(scales)))
    if not _is_row_major(scales):
        raise Miss("the scales %{} are column-major", scales, scales)
    if not isinstance(width, int) or width % group:
        raise Miss("groups of {} do not divide %{} of shape {}", x, group, x, shape_text(shape_of(x)))
    groups = build.reshaped(x, (*shape_of(x)[:-1], width // group, group))
    scale = build.word(_group_scale(high, eps, ue8m0), groups, None)
    codes = build.word(Quant(low, high, "divide"), groups, scale)
    return [build.reshaped(codes, shape_of(x)), build.reshaped(scale, shape_of(scales))]


def _group_scale(limit: float, eps: float, ue8m0: bool) -> QuantScale:
    """The word of ``max(amax, eps) / limit``, or of ``max(that, 1e-10)`` raised to a power of two.

    Of two lower bounds the larger one decides: both are of one increasing function of ``amax``.
    """
    eps = float(torch.tensor(eps))
    if not ue8m0:
        return QuantScale(limit, eps, "amax")
    if float(torch.tensor(eps) / limit) <= _SMALLEST_UE8M0:
        return QuantScale(limit, _SMALLEST_UE8M0, "scale", format="ue8m0")
    return QuantScale(limit, eps, "amax", format="ue8m0")


def token_scale(build: Builder, x: fx.Node, upper: fx.Node | None, scale: fx.Node) -> fx.Node:
    """The scale of each row of ``x``: ``max(min(amax, upper) / 448, smallest)``."""
    if dtype_of(scale) != torch.float32 or not _is_row_major(scale):
        raise Miss("the scales %{} are not float32, one after the other", scale, scale)
    return build.word(QuantScale(_LIMIT, _SMALLEST, "scale"), x, upper)


def codes_of(
    build: Builder, x: fx.Node, scale: fx.Node, out: fx.Node, operation: str = "reciprocal"
) -> fx.Node:
    """e4m3 codes of ``x``. With ``reciprocal`` the scale is one element, whose inverse is multiplied."""
    _check(x, out)
    if operation == "reciprocal":
        check_single(scale)
    return build.word(Quant(-_LIMIT, _LIMIT, operation), x, scale)


def _check(x: fx.Node, out: fx.Node) -> None:
    if dtype_of(out) != torch.float8_e4m3fn:
        raise Miss("the codes %{} are {}, not float8_e4m3fn", out, out, dtype_name(dtype_of(out)))
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)))
    if not _is_row_major(out):
        raise Miss("the codes %{} are not written row by row", out, out)


def check_single(scale: fx.Node) -> None:
    """Checks that ``scale`` is one float32 number."""
    if any(not same_size(size, 1) for size in shape_of(scale)) or dtype_of(scale) != torch.float32:
        raise Miss("the scale %{} of shape {} is not one element", scale, scale, shape_text(shape_of(scale)))


def _is_row_major(node: fx.Node) -> bool:
    value = value_of(node)
    return value is not None and value.is_contiguous()
