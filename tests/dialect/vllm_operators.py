"""vLLM's operators on a CPU: the schemas of its library, and references after the arithmetic of its kernels.

Schemas and rounding points are those of the releases that take no weight (``Tensor? weight``) and turn a
part of a head (``rope_dim_offset``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm_caches import CACHE_SCHEMAS

E4M3, LIMIT = torch.float8_e4m3fn, 448.0

_LIBRARIES: list[torch.library.Library] = []


def rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    result.copy_(_norm(input.float(), weight, epsilon).to(input.dtype))


def fused_add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    residual.copy_(input + residual)
    rms_norm(input, residual.clone(), weight, epsilon)


def rms_norm_static_fp8_quant(
    result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    normed = torch.empty_like(input)
    rms_norm(normed, input, weight, epsilon)
    static_scaled_fp8_quant(result, normed, scale)


def fused_add_rms_norm_static_fp8_quant(
    result: Tensor, input: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    normed = input.clone()
    fused_add_rms_norm(normed, residual, weight, epsilon)
    static_scaled_fp8_quant(result, normed, scale)


def rms_norm_dynamic_per_token_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
) -> None:
    total = input.float() if residual is None else input.float() + residual.float()
    if residual is not None:
        residual.copy_(total)
    normed = _norm(total, None, epsilon).to(input.dtype) * weight
    _quantize(result, normed, scale, scale_ub)


def rms_norm_per_block_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
    group_size: int,
    is_scale_transposed: bool,
) -> None:
    total = input.float() if residual is None else input.float() + residual.float()
    if residual is not None:
        residual.copy_(total)
    normed = _norm(total, None, epsilon).to(input.dtype) * weight
    groups = [x.unflatten(-1, (-1, group_size)) for x in (result, normed)]
    _quantize(*groups, scale.unsqueeze(-1), scale_ub)


def static_scaled_fp8_quant(
    result: Tensor, input: Tensor, scale: Tensor, group_shape: list[int] | None = None
) -> None:
    result.copy_(_codes(input.float() * (1.0 / scale.reshape(()))))


def dynamic_per_token_scaled_fp8_quant(
    result: Tensor, input: Tensor, scale: Tensor, scale_ub: Tensor | None
) -> None:
    amax = input.float().abs().amax(-1, keepdim=True)
    if scale_ub is not None:
        amax = torch.minimum(amax, scale_ub.reshape(()))
    scale.copy_((amax / torch.tensor(LIMIT)).clamp(min=1.0 / (LIMIT * 512.0)))
    result.copy_(_codes(input.float() / scale))


def static_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None) -> None:
    result.copy_(_whole(input.float() / scale.reshape(())))


def dynamic_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None) -> None:
    amax = input.float().abs().amax(-1, keepdim=True)
    scale.copy_(amax / 127.0)
    result.copy_(_whole(input.float() * (127.0 / amax)))


def per_token_group_quant_int8(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    int8_min: float,
    int8_max: float,
) -> None:
    groups = input.float().unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=eps) / int8_max
    output_s.copy_(scale.squeeze(-1))
    output_q.copy_((groups / scale).clamp(int8_min, int8_max).trunc().flatten(-2))


def per_token_group_fp8_quant_packed(
    input: Tensor,
    output_q: Tensor,
    output_s_packed: Tensor,
    group_size: int,
    eps: float,
    fp8_min: float,
    fp8_max: float,
) -> None:
    scales = torch.empty(input.shape[0], input.shape[1] // group_size)
    how = (group_size, eps, fp8_min, fp8_max, True, False, False)
    per_token_group_fp8_quant(input, output_q, scales, *how)
    output_s_packed.copy_((scales.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32))


def per_token_group_fp8_quant(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_min: float,
    fp8_max: float,
    scale_ue8m0: bool,
    dummy_is_scale_transposed: bool,
    dummy_is_tma_aligned: bool,
) -> None:
    groups = input.float().unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=eps) / torch.tensor(fp8_max)
    if scale_ue8m0:
        scale = torch.exp2(torch.ceil(torch.log2(scale.clamp(min=1e-10))))
    output_s.copy_(scale.squeeze(-1))
    output_q.copy_((groups / scale).clamp(fp8_min, fp8_max).to(E4M3).flatten(-2))


def silu_and_mul(result: Tensor, input: Tensor) -> None:
    gate, up = input.chunk(2, -1)
    active = gate.float() / (1.0 + torch.exp(-gate.float()))
    result.copy_((active.to(input.dtype).float() * up.float()).to(input.dtype))


def silu_and_mul_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    gated = input.new_empty(*input.shape[:-1], input.shape[-1] // 2)
    silu_and_mul(gated, input)
    static_scaled_fp8_quant(result, gated, scale)


def scaled_fp4_quant(
    output: Tensor, input: Tensor, output_scale: Tensor, input_scale: Tensor, is_sf_swizzled_layout: bool
) -> None:
    """With divisions in place of approximate reciprocals, as in the library's own reference."""
    rows, width = input.shape
    blocks = input.float().view(rows, width // 16, 16)
    scale = input_scale * (blocks.abs().amax(-1, keepdim=True) * (1.0 / 6.0))
    numbers = scale.clamp(-LIMIT, LIMIT).to(E4M3)
    factor = _inverse(numbers.float() * _inverse(input_scale))
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    y = (blocks * factor).view(rows, width)
    up, down = (torch.bucketize(y.abs(), bounds, right=right) for right in (True, False))
    code = torch.where(up % 2 == 0, up, down) + 8 * torch.signbit(y)
    output.copy_(code[:, ::2] + 16 * code[:, 1::2])
    numbers = numbers.view(torch.uint8).view(rows, width // 16)
    if is_sf_swizzled_layout:
        m, k = torch.meshgrid(torch.arange(rows), torch.arange(width // 16), indexing="ij")
        columns = (width // 16 + 3) // 4
        place = (m // 128 * columns + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
        output_scale.view(torch.uint8).view(-1)[place] = numbers
    else:
        output_scale.view(torch.uint8).copy_(numbers)


def scaled_fp4_quant_out(
    input: Tensor, input_scale: Tensor, is_sf_swizzled_layout: bool, *, output: Tensor, output_scale: Tensor
) -> None:
    scaled_fp4_quant(output, input, output_scale, input_scale, is_sf_swizzled_layout)


def silu_and_mul_nvfp4_quant(
    result: Tensor, result_block_scale: Tensor, input: Tensor, input_global_scale: Tensor
) -> None:
    gate, up = input.float().chunk(2, -1)
    gated = (gate / (1.0 + torch.exp(-gate)) * up).to(input.dtype)
    scaled_fp4_quant(result, gated, result_block_scale, input_global_scale, True)


def silu_and_mul_per_block_quant(
    out: Tensor,
    input: Tensor,
    scales: Tensor,
    group_size: int,
    scale_ub: Tensor | None = None,
    is_scale_transposed: bool = False,
) -> None:
    gate, up = input.float().chunk(2, -1)
    groups = (gate / (1.0 + torch.exp(-gate)) * up).unflatten(-1, (-1, group_size))
    limit, smallest = (127.0, 2.0**-23) if out.dtype == torch.int8 else (LIMIT, 1.0 / (LIMIT * 512.0))
    scale = groups.abs().amax(-1, keepdim=True) / torch.tensor(limit)
    scale = (scale if scale_ub is None else torch.minimum(scale, scale_ub)).clamp(min=smallest)
    scales.copy_(scale.squeeze(-1))
    out.copy_((_whole if out.dtype == torch.int8 else _codes)(groups / scale).flatten(-2))


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    cos, sin = cos_sin_cache[positions].float()[:, None].chunk(2, -1)
    sin = -sin if inverse else sin
    width = cos_sin_cache.shape[1]
    for x in (query, key):
        if x is None:
            continue
        heads = x.reshape(x.shape[0], -1, head_size).clone()
        part = heads[..., rope_dim_offset : rope_dim_offset + width]
        first, second = (slice(0, width // 2), slice(width // 2, width))
        if not is_neox:
            first, second = slice(0, width, 2), slice(1, width, 2)
        a, b = part[..., first].float(), part[..., second].float()
        part[..., first], part[..., second] = a * cos - b * sin, b * cos + a * sin
        x.copy_(heads.reshape(x.shape))


def _norm(h: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    normed = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)
    return normed if weight is None else normed * weight.float()


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, 1.0 / x)


def _quantize(result: Tensor, x: Tensor, scale: Tensor, upper: Tensor | None) -> None:
    """Codes of the rows of ``x`` and their scales, as behind a norm."""
    amax = x.float().abs().amax(-1, keepdim=True)
    if upper is not None:
        amax = torch.minimum(amax, upper.reshape(()))
    if result.dtype == torch.int8:
        scale.copy_((amax / torch.tensor(127.0)).clamp(min=2.0**-23))
        result.copy_(_whole(x.float() * (1.0 / scale)))
    else:
        scale.copy_((amax / torch.tensor(LIMIT)).clamp(min=1.0 / (LIMIT * 512.0)))
        result.copy_(_codes(x.float() / scale))


def _codes(x: Tensor) -> Tensor:
    return x.clamp(-LIMIT, LIMIT).to(E4M3)


def _whole(x: Tensor) -> Tensor:
    return torch.round(x).clamp(-128.0, 127.0).to(torch.int8)


SCHEMAS = {
    "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()": rms_norm,
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()": (
        fused_add_rms_norm
    ),
    "rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor weight, Tensor scale, "
    "float epsilon) -> ()": (rms_norm_static_fp8_quant),
    "fused_add_rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor! residual, Tensor weight, "
    "Tensor scale, float epsilon) -> ()": fused_add_rms_norm_static_fp8_quant,
    "rms_norm_dynamic_per_token_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, "
    "float epsilon, Tensor? scale_ub, Tensor!? residual) -> ()": rms_norm_dynamic_per_token_quant,
    "rms_norm_per_block_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, "
    "Tensor? scale_ub, Tensor!? residual, int group_size, bool is_scale_transposed) -> ()": (
        rms_norm_per_block_quant
    ),
    "static_scaled_int8_quant(Tensor! result, Tensor input, Tensor scale, Tensor? azp) -> ()": (
        static_scaled_int8_quant
    ),
    "dynamic_scaled_int8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor!? azp) -> ()": (
        dynamic_scaled_int8_quant
    ),
    "per_token_group_quant_int8(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, "
    "float int8_min, float int8_max) -> ()": per_token_group_quant_int8,
    "per_token_group_fp8_quant_packed(Tensor input, Tensor! output_q, Tensor! output_s_packed, "
    "int group_size, float eps, float fp8_min, float fp8_max) -> ()": per_token_group_fp8_quant_packed,
    "silu_and_mul_per_block_quant(Tensor! out, Tensor input, Tensor! scales, int group_size, "
    "Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()": silu_and_mul_per_block_quant,
    "static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()": (
        static_scaled_fp8_quant
    ),
    "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, "
    "Tensor? scale_ub) -> ()": (dynamic_per_token_scaled_fp8_quant),
    "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, "
    "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, "
    "bool dummy_is_tma_aligned) -> ()": per_token_group_fp8_quant,
    "silu_and_mul(Tensor! result, Tensor input) -> ()": silu_and_mul,
    "silu_and_mul_quant(Tensor! result, Tensor input, Tensor scale) -> ()": silu_and_mul_quant,
    "scaled_fp4_quant(Tensor! output, Tensor input, Tensor! output_scale, Tensor input_scale, "
    "bool is_sf_swizzled_layout) -> ()": scaled_fp4_quant,
    "scaled_fp4_quant.out(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout, *, "
    "Tensor(a!) output, Tensor(b!) output_scale) -> ()": scaled_fp4_quant_out,
    "silu_and_mul_nvfp4_quant(Tensor! result, Tensor! result_block_scale, Tensor input, "
    "Tensor input_global_scale) -> ()": silu_and_mul_nvfp4_quant,
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()": rotary_embedding,
}


def _nothing(*args: object, **kwargs: object) -> None:
    """Operators that write into their arguments have no result to describe."""


def define() -> None:
    """Defines the operators, once a process; the real library, if it is loaded, stays as it is."""
    if _LIBRARIES or hasattr(torch.ops._C, "rms_norm"):
        return
    for namespace, schemas in (("_C", SCHEMAS), ("_C_cache_ops", CACHE_SCHEMAS)):
        library = torch.library.Library(namespace, "FRAGMENT")
        _LIBRARIES.append(library)
        for schema, reference in schemas.items():
            name = schema.partition("(")[0]
            library.define(schema)
            library.impl(name, reference, "CPU")
            torch.library.register_fake(f"{namespace}::{name}", _nothing, lib=library)
