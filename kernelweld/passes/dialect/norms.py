"""``_C.rms_norm`` and its forms with a residual sum and with codes.

Kernels compute in float32 and differ in where they round, from release to release. A schema that takes None
for the weight belongs to kernels that round once, after the product with the weight; the others round the
normalised value first. The kernel with codes of a given scale rounds as ``_C.rms_norm`` beside it does;
those with codes a token or a group always round first, and their sum with the residual is not rounded before
it is normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import fx

from kernelweld.ir import ResidualAdd, RMSNorm
from kernelweld.passes.dialect.builder import Builder
from kernelweld.passes.dialect.call import Call
from kernelweld.passes.dialect.quants import check_transposed, codes_of, quantized, token_codes
from kernelweld.patterns.dims import same_shape
from kernelweld.patterns.ops import FLOATS, dtype_name, dtype_of, shape_of
from kernelweld.patterns.reading import Miss


def rms_norm(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``rms_norm(result!, input, weight, epsilon)``."""
    _, x, weight, eps = cast("tuple[fx.Node, fx.Node, fx.Node | None, float]", call.values)
    return [_norm(build, x, weight, eps, once=call.takes_none("weight"))]


def fused_add_rms_norm(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``fused_add_rms_norm(input!, residual!, weight, epsilon)``: the norm of the sum over the input, the
    sum, rounded, over the residual.
    """
    x, residual, weight, eps = cast("tuple[fx.Node, fx.Node, fx.Node | None, float]", call.values)
    total = _sum(build, x, residual, _dtype(x))
    return [_norm(build, total, weight, eps, once=call.takes_none("weight")), total]


def rms_norm_static_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``rms_norm_static_fp8_quant(result!, input, weight, scale, epsilon)``."""
    out, x, weight, scale, eps = cast("tuple[fx.Node, fx.Node, fx.Node, fx.Node, float]", call.values)
    return [codes_of(build, _norm(build, x, weight, eps, once=_once(call)), scale, out)]


def fused_add_rms_norm_static_fp8_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``fused_add_rms_norm_static_fp8_quant(result!, input, residual!, weight, scale, epsilon)``."""
    values = cast("tuple[fx.Node, fx.Node, fx.Node, fx.Node, fx.Node, float]", call.values)
    out, x, residual, weight, scale, eps = values
    total = _sum(build, x, residual, _dtype(x))
    return [codes_of(build, _norm(build, total, weight, eps, once=_once(call)), scale, out), total]


def rms_norm_dynamic_per_token_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``rms_norm_dynamic_per_token_quant(result!, input, weight, scale!, epsilon, scale_ub, residual!?)``."""
    values = cast(
        "tuple[fx.Node, fx.Node, fx.Node, fx.Node, float, fx.Node | None, fx.Node | None]", call.values
    )
    out, x, weight, scale, eps, upper, residual = values
    normed, total = _norm_before_codes(build, x, weight, eps, residual)
    return [*token_codes(build, normed, upper, out, scale), *total]


def rms_norm_per_block_quant(call: Call, build: Builder) -> Sequence[fx.Node]:
    """``rms_norm_per_block_quant(result!, input, weight, scale!, epsilon, scale_ub, residual!?, group_size,
    is_scale_transposed)``: as the one with a scale a token, with one a group.
    """
    values = cast(
        "tuple[fx.Node, fx.Node, fx.Node, fx.Node, float, fx.Node | None, fx.Node | None]", call.values[:7]
    )
    out, x, weight, scale, eps, upper, residual = values
    normed, total = _norm_before_codes(build, x, weight, eps, residual)
    check_transposed(scale, call.values[8])
    return [*quantized(build, normed, upper, out, scale, cast(int, call.values[7])), *total]


def _norm_before_codes(
    build: Builder, x: fx.Node, weight: fx.Node, eps: float, residual: fx.Node | None
) -> tuple[fx.Node, list[fx.Node]]:
    """The norm that is quantized, and the sum with the residual, if there is one."""
    dtype = _dtype(x)
    total = x if residual is None else _sum(build, x, residual, torch.float32)
    normed = _norm(build, total, weight, eps, once=False, dtype=dtype)
    return normed, [] if residual is None else [build.cast(total, dtype)]


def _once(call: Call) -> bool:
    """Whether ``rms_norm`` of the library that ``call`` belongs to rounds once."""
    library = getattr(torch.ops, call.operator.namespace)
    plain = getattr(library, "rms_norm", None)
    return plain is not None and Call(call.node, plain.default, ()).takes_none("weight")


def _dtype(x: fx.Node) -> torch.dtype:
    dtype = dtype_of(x)
    if dtype is None or dtype not in FLOATS:
        raise Miss("the input %{} is {}", x, x, dtype_name(dtype))
    return dtype


def _sum(build: Builder, x: fx.Node, residual: fx.Node, dtype: torch.dtype) -> fx.Node:
    if dtype_of(residual) != dtype_of(x) or not same_shape(shape_of(residual), shape_of(x)):
        raise Miss("the residual %{} has another dtype or shape than the input %{}", residual, residual, x)
    return build.word(ResidualAdd(dtype), x, residual)


def _norm(
    build: Builder,
    x: fx.Node,
    weight: fx.Node | None,
    eps: float,
    *,
    once: bool,
    dtype: torch.dtype | None = None,
) -> fx.Node:
    dtype = dtype or _dtype(x)
    if weight is not None and dtype_of(weight) != dtype:
        names = dtype_name(dtype_of(weight)), dtype_name(dtype)
        raise Miss("the weight %{} is {}, the input {}", weight, weight, *names)
    if weight is not None and not same_shape(shape_of(weight), shape_of(x)[-1:]):
        raise Miss("the weight %{} is not one row", weight, weight)
    normed = torch.float32 if once or weight is None else dtype
    word = RMSNorm(eps, "none" if weight is None else "w", normed_dtype=normed, dtype=dtype)
    return build.word(word, x, weight, None)
