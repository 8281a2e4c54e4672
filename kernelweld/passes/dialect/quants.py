"""Quantization to e4m3 and int8: with a given scale, a scale a token, a scale a group.

Kernels clamp with ``fmin`` and ``fmax``, which drop NaN; the words keep NaN. Nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import torch
from torch import fx

from kernelweld.ir import E8M0, Quant, QuantScale
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.example_inputs import concrete
from kernelweld.patterns.aliasing import VIEWS
from kernelweld.patterns.dims import same_size
from kernelweld.patterns.ops import FLOATS, Size, dtype_name, dtype_of, shape_of, shape_text, value_of
from kernelweld.patterns.reading import Miss

E4M3 = torch.float8_e4m3fn
#: The largest e4m3 code.
LIMIT = 448.0
#: The smallest scale that is raised to a power of two.
_SMALLEST_UE8M0 = float(torch.tensor(1e-10))


@dataclass(frozen=True)
class Format:
    """Codes of one dtype: their range, the largest of a dynamic scale, and the smallest scale. Dynamic
    scales of norms divide values of e4m3, and their inverse is multiplied for int8.
    """

    low: float
    high: float
    smallest: float
    operation: str


FORMATS: Mapping[torch.dtype | None, Format] = MappingProxyType(
    {
        E4M3: Format(-LIMIT, LIMIT, float(torch.tensor(1.0) / (LIMIT * 512.0)), "divide"),
        torch.int8: Format(-128.0, 127.0, float(torch.finfo(torch.float32).eps), "reciprocal"),
    }
)


def static_scaled_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``static_scaled_fp8_quant(result!, input, scale, group_shape?)``: one scale for all."""
    out, x, scale = cast("tuple[fx.Node, ...]", call.values[:3])
    return [codes_of(build, x, scale, out)]


def static_scaled_int8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``static_scaled_int8_quant(result!, input, scale, azp?)``: one scale for all, which divides."""
    out, x, scale, azp = cast("tuple[fx.Node, fx.Node, fx.Node, fx.Node | None]", call.values)
    if azp is not None:
        raise Miss("the codes %{} have a zero point, %{}", out, out, azp)
    check_single(scale)
    return [coded(build, x, scale, out, "divide", torch.int8)]


def dynamic_scaled_int8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``dynamic_scaled_int8_quant(result!, input, scale!, azp!?)``. Its kernel multiplies with
    ``127 / amax``, which is not the inverse of the scale ``amax / 127`` that it leaves.
    """
    raise Miss("the codes are products with 127 / amax, not quotients by the scale amax / 127", call.node)


def per_token_group_quant_int8(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``per_token_group_quant_int8(input, output_q!, output_s!, group_size, eps, int8_min, int8_max)``. Its
    kernel truncates.
    """
    raise Miss("the codes are quotients without their fraction, not the nearest whole numbers", call.node)


def dynamic_per_token_scaled_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``dynamic_per_token_scaled_fp8_quant(result!, input, scale!, scale_ub?)``."""
    out, x, scale, upper = cast("tuple[fx.Node, fx.Node, fx.Node, fx.Node | None]", call.values)
    found = token_scale(build, x, upper, scale, E4M3)
    return [coded(build, x, found, out, "divide"), build.reshaped(found, shape_of(scale))]


def per_token_group_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``per_token_group_fp8_quant(input, output_q!, output_s!, group_size, eps, fp8_min, fp8_max,
    scale_ue8m0, …)``: a scale for each group of a row, the scales of a row or of a column side by side.
    """
    x, out, scales = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values[:3])
    group, eps, low, high, ue8m0 = cast("tuple[int, float, float, float, bool]", call.values[3:8])
    _check(x, out)
    groups = in_groups(build, x, group)
    scale = build.word(group_scale(high, eps, ue8m0), groups, None)
    codes = build.word(Quant(low, high, "divide"), groups, scale)
    return [build.reshaped(codes, shape_of(x)), laid(build, scale, scales)]


def per_token_group_fp8_quant_packed(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``per_token_group_fp8_quant_packed(input, output_q!, output_s_packed!, group_size, eps, fp8_min,
    fp8_max)``: scales as bytes, four groups of a row in an integer, the integers of a column side by side.
    """
    x, out, packed = cast("tuple[fx.Node, fx.Node, fx.Node]", call.values[:3])
    group, eps, low, high = cast("tuple[int, float, float, float]", call.values[3:7])
    _check(x, out)
    if not same_size(shape_of(out)[0], shape_of(x)[0]):
        raise Miss("the codes %{} have rows that %{} has not", out, out, x)
    groups = in_groups(build, x, group)
    rows, count = shape_of(groups)[:-2], shape_of(groups)[-2]
    if not isinstance(count, int) or count % 4:
        raise Miss("the {} scales of a row of %{} do not fill whole integers", packed, count, packed)
    scale = build.word(group_scale(high, eps, True), groups, None)
    codes = build.word(Quant(low, high, "divide"), groups, scale)
    bytes_ = build.reshaped(build.word(E8M0(), scale), (*rows, count))
    return [build.reshaped(codes, shape_of(x)), laid(build, build.bits(bytes_, torch.int32), packed)]


def in_groups(build: Builder, x: fx.Node, group: int) -> fx.Node:
    """The rows of ``x`` in groups: ``[..., groups, group]``."""
    width = shape_of(x)[-1]
    if not isinstance(width, int) or width % group:
        raise Miss("groups of {} do not divide %{} of shape {}", x, group, x, shape_text(shape_of(x)))
    return build.reshaped(x, (*shape_of(x)[:-1], width // group, group))


def group_scale(limit: float, eps: float, ue8m0: bool) -> QuantScale:
    """The word of ``max(amax, eps) / limit``, or of ``max(that, 1e-10)`` raised to a power of two.

    Of two lower bounds the larger one decides: both are of one increasing function of ``amax``.
    """
    eps = float(torch.tensor(eps))
    if not ue8m0:
        return QuantScale(limit, eps, "amax")
    if float(torch.tensor(eps) / limit) <= _SMALLEST_UE8M0:
        return QuantScale(limit, _SMALLEST_UE8M0, "scale", format="ue8m0")
    return QuantScale(limit, eps, "amax", format="ue8m0")


def quantized(
    build: Builder,
    x: fx.Node,
    upper: fx.Node | None,
    out: fx.Node,
    scales: fx.Node,
    group: int,
    operation: str = "",
) -> list[fx.Node]:
    """Codes of ``x`` in groups of a row, and their scales, as the kernels behind a norm or a gate compute
    both: those behind a norm use the operation of the format.
    """
    format = _format(out)
    groups = in_groups(build, x, group)
    scale = build.word(QuantScale(format.high, format.smallest, "scale"), groups, upper)
    codes = coded(build, groups, scale, out, operation or format.operation, dtype_of(out))
    return [build.reshaped(codes, shape_of(x)), laid(build, scale, scales)]


def token_scale(
    build: Builder, x: fx.Node, upper: fx.Node | None, scale: fx.Node, dtype: torch.dtype | None
) -> fx.Node:
    """The scale of each row of ``x``: ``max(min(amax, upper) / largest code, smallest)``."""
    if dtype_of(scale) != torch.float32 or not is_row_major(scale):
        raise Miss("the scales %{} are not float32, one after the other", scale, scale)
    format = FORMATS[dtype]
    return build.word(QuantScale(format.high, format.smallest, "scale"), x, upper)


def token_codes(
    build: Builder, x: fx.Node, upper: fx.Node | None, out: fx.Node, scale: fx.Node
) -> list[fx.Node]:
    """Codes of ``x``, and the scale of each row, as the kernels behind a norm compute both."""
    format = _format(out)
    found = token_scale(build, x, upper, scale, dtype_of(out))
    codes = coded(build, x, found, out, format.operation, dtype_of(out))
    return [codes, build.reshaped(found, shape_of(scale))]


def codes_of(build: Builder, x: fx.Node, scale: fx.Node, out: fx.Node) -> fx.Node:
    """e4m3 codes of ``x`` times the inverse of ``scale``, one element."""
    check_single(scale)
    return coded(build, x, scale, out, "reciprocal")


def coded(
    build: Builder,
    x: fx.Node,
    scale: fx.Node,
    out: fx.Node,
    operation: str,
    dtype: torch.dtype | None = E4M3,
) -> fx.Node:
    """Codes of ``x`` by ``scale``, of the dtype that ``out`` must have."""
    _check(x, out, dtype)
    format = _format(out)
    return build.word(Quant(format.low, format.high, operation, dtype or E4M3), x, scale)


def laid(build: Builder, scale: fx.Node, scales: fx.Node) -> fx.Node:
    """``scale`` as it lies in ``scales``: row by row, or column by column, with gaps or without."""
    dtype, found = dtype_of(scale), build.reshaped(scale, shape_of(scales))
    if dtype_of(scales) != dtype:
        names = dtype_name(dtype_of(scales)), dtype_name(dtype)
        raise Miss("the scales %{} are packed, {}, not {}", scales, scales, *names)
    if has_gaps(scales):
        _check_own(scales, build.call.node)
        return build.strided(found, _strides(scales))
    if is_row_major(scales):
        return found
    if len(shape_of(scales)) != 2 or not _is_column_major(scales):
        strides = shape_text(_strides(scales))
        raise Miss(
            "the scales %{} lie neither in rows without gaps nor in columns, {}", scales, scales, strides
        )
    return build.column_major(found)


def has_gaps(scales: fx.Node) -> bool:
    """Whether ``scales`` lie in columns that are further apart than they are long, as TMA asks for."""
    rows, *columns = shape_of(scales)
    strides = _strides(scales)
    if len(columns) != 1 or not same_size(strides[0], 1) or same_size(strides[1], rows):
        return False
    return concrete(strides[1]) >= concrete(rows)


def check_without_gaps(scales: fx.Node) -> None:
    """Checks that ``scales`` lie as a kernel that does not ask for their strides writes them."""
    if has_gaps(scales):
        strides = shape_text(_strides(scales))
        raise Miss(
            "the scales %{} have gaps between columns, {}, but are written without", scales, scales, strides
        )


def _check_own(buffer: fx.Node, call: fx.Node) -> None:
    """Checks that nothing besides ``call`` uses the memory that ``buffer`` is a slice of, as one does that
    is written back and leaves the graph.
    """
    node, user = buffer, call
    while True:
        other = next((other for other in node.users if other is not user), None)
        if other is not None:
            raise Miss("the scales %{} are a part of %{}, which %{} uses too", buffer, buffer, node, other)
        if node.target not in VIEWS or not isinstance(node.args[0], fx.Node):
            return
        node, user = node.args[0], node


def _strides(node: fx.Node) -> Sequence[Size]:
    value = value_of(node)
    return () if value is None else value.stride()


def check_transposed(scales: fx.Node, transposed: object) -> None:
    """Checks that ``scales`` lie as the kernel, which is told whether by columns, writes them."""
    if has_gaps(scales) and transposed:
        return
    narrow = any(same_size(size, 1) for size in shape_of(scales))
    if has_gaps(scales) or (not narrow and bool(transposed) == is_row_major(scales)):
        order = "column by column" if transposed else "row by row"
        raise Miss("the scales %{} do not lie {}, as they are written", scales, scales, order)


def _format(out: fx.Node) -> Format:
    if dtype_of(out) not in FORMATS:
        name = dtype_name(dtype_of(out))
        raise Miss("the codes %{} are {}, neither float8_e4m3fn nor int8", out, out, name)
    return FORMATS[dtype_of(out)]


def _check(x: fx.Node, out: fx.Node, dtype: torch.dtype | None = E4M3) -> None:
    if dtype_of(out) != dtype:
        names = dtype_name(dtype_of(out)), dtype_name(dtype)
        raise Miss("the codes %{} are {}, not {}", out, out, *names)
    if dtype_of(x) not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype_of(x)))
    if not is_row_major(out):
        raise Miss("the codes %{} are not written row by row", out, out)


def check_single(scale: fx.Node) -> None:
    """Checks that ``scale`` is one float32 number."""
    single = len(shape_of(scale)) < 2 and all(same_size(size, 1) for size in shape_of(scale))
    if not single or dtype_of(scale) != torch.float32:
        raise Miss("the scale %{} of shape {} is not one element", scale, scale, shape_text(shape_of(scale)))


def is_row_major(node: fx.Node) -> bool:
    """Whether ``node`` is contiguous."""
    value = value_of(node)
    return value is not None and value.is_contiguous()


def _is_column_major(node: fx.Node) -> bool:
    value = value_of(node)
    return value is not None and value.t().is_contiguous()
