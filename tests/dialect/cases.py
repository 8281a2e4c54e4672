"""Calls of vLLM's operators and the words that they become: quantization a group, whole numbers, caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from graphs import E4M3, bf16, rand
from torch import Tensor

from kernelweld.ir import E8M0, CacheWrite, GateMul, Quant, QuantScale, ResidualAdd, RMSNorm, Word

EPS, LIMIT = 1e-6, 448.0
T, N, GROUP, D, KV_HEADS = 5, 256, 128, 16, 2
f32, u8, i8 = torch.float32, torch.uint8, torch.int8

NORM_FIRST = RMSNorm(EPS, normed_dtype=bf16, dtype=bf16)
DIVIDED = Quant(-LIMIT, LIMIT, "divide")
WHOLE = Quant(-128.0, 127.0, "reciprocal", i8)
TOKEN = QuantScale(LIMIT, float(torch.tensor(1.0 / (LIMIT * 512.0))), "scale")
TOKEN_INT8 = QuantScale(127.0, 2.0**-23, "scale")
GROUPS = QuantScale(LIMIT, float(torch.tensor(1e-10)), "amax")
POWERS = replace(GROUPS, eps_place="scale", format="ue8m0")
KEY = QuantScale(LIMIT, float(torch.tensor(1e-4)), "amax")
TILES = QuantScale(LIMIT, float(torch.finfo(f32).tiny), "scale")
WRITE = CacheWrite((0, 1), negative="nowhere")
SLOTS = torch.tensor([27, -1, 9, 0, 14])


@dataclass(frozen=True)
class Case:
    """A call, its inputs, and its words."""

    fn: Callable[..., object]
    inputs: Sequence[Tensor]
    words: Sequence[Word]


def columns(x: Tensor, group: int = GROUP) -> Tensor:
    """An empty buffer for scales of ``x`` that lie column by column."""
    return torch.empty(x.shape[1] // group, x.shape[0]).t()


def rows(x: Tensor, group: int = GROUP) -> Tensor:
    """An empty buffer for scales of ``x`` that lie row by row."""
    return torch.empty(x.shape[0], x.shape[1] // group)


def group_quant_in_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), columns(x)
    how = (GROUP, 1e-10, -LIMIT, LIMIT, False, True, False)
    torch.ops._C.per_token_group_fp8_quant(x, out, scales, *how)
    return out, scales


def group_quant_packed(x: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=E4M3)
    packed = torch.empty(x.shape[1] // GROUP // 4, x.shape[0], dtype=torch.int32).t()
    torch.ops._C.per_token_group_fp8_quant_packed(x, out, packed, GROUP, 1e-10, -LIMIT, LIMIT)
    return out, packed


def aligned(x: Tensor, columns: int, dtype: torch.dtype = f32) -> Tensor:
    """An empty buffer for scales in columns that begin at multiples of four, as TMA reads them."""
    return torch.empty_strided((x.shape[0], columns), (1, -(x.shape[0] // -4) * 4), dtype=dtype)


def aligned_slice(x: Tensor, columns: int) -> Tensor:
    """The same, as a slice of a longer buffer."""
    return torch.empty(columns, (x.shape[0] + 3) // 4 * 4).t()[: x.shape[0]]


def group_quant_aligned(x: Tensor, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), aligned(x, x.shape[1] // GROUP)
    torch.ops._C.per_token_group_fp8_quant(x, out, scales, GROUP, 1e-10, -LIMIT, LIMIT, ue8m0, True, True)
    return out, scales


def group_quant_aligned_slice(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), aligned_slice(x, x.shape[1] // GROUP)
    torch.ops._C.per_token_group_fp8_quant(x, out, scales, GROUP, 1e-10, -LIMIT, LIMIT, False, True, True)
    return out, scales


def group_quant_packed_aligned(x: Tensor) -> tuple[Tensor, Tensor]:
    out, packed = torch.empty(x.shape, dtype=E4M3), aligned(x, x.shape[1] // GROUP // 4, torch.int32)
    torch.ops._C.per_token_group_fp8_quant_packed(x, out, packed, GROUP, 1e-10, -LIMIT, LIMIT)
    return out, packed


def norm_block_quant_aligned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), aligned(x, x.shape[1] // GROUP)
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, EPS, None, None, GROUP, True)
    return out, scales


def norm_block_quant(
    x: Tensor, w: Tensor, dtype: torch.dtype = E4M3, upper: Tensor | None = None, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=dtype), columns(x) if transposed else rows(x)
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, EPS, upper, None, GROUP, transposed)
    return out, scales


def norm_block_quant_bounded(x: Tensor, w: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    return norm_block_quant(x, w, upper=upper)


def norm_block_quant_in_columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return norm_block_quant(x, w, transposed=True)


def norm_block_quant_to_int8(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return norm_block_quant(x, w, i8)


def add_norm_block_quant(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, scales, kept = torch.empty(x.shape, dtype=E4M3), rows(x, 64), residual.clone()
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, EPS, None, kept, 64, False)
    return out, scales, kept


def norm_token_quant_to_int8(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = torch.empty(x.shape, dtype=i8), torch.empty(x.shape[0], 1)
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, w, scale, EPS, None, None)
    return out, scale


def silu_block_quant(x: Tensor, dtype: torch.dtype = E4M3, transposed: bool = False) -> tuple[Tensor, Tensor]:
    half = x[:, : x.shape[1] // 2]
    out, scales = torch.empty(half.shape, dtype=dtype), columns(half) if transposed else rows(half)
    torch.ops._C.silu_and_mul_per_block_quant(out, x, scales, GROUP, None, transposed)
    return out, scales


def silu_block_quant_in_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return silu_block_quant(x, transposed=True)


def silu_block_quant_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    return silu_block_quant(x, i8)


def static_int8(x: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=i8)
    torch.ops._C.static_scaled_int8_quant(out, x, scale, None)
    return out


def write(kind: str) -> Callable[..., None]:
    def keys_and_values(
        k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor
    ) -> None:
        torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, ks, vs, slots, kind, k_scale, v_scale)

    return keys_and_values


def write_halves(dim: int, kind: str = "auto") -> Callable[..., None]:
    def keys_and_values(
        kv: Tensor, k: Tensor, v: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor
    ) -> None:
        ks, vs = kv.unbind(dim)
        torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, ks, vs, slots, kind, k_scale, v_scale)

    return keys_and_values


def write_halves_and_read(
    kv: Tensor, k: Tensor, v: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor
) -> Tensor:
    torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, kv[0], kv[1], slots, "auto", k_scale, v_scale)
    return kv[1] * 2


def write_latents(kind: str) -> Callable[..., None]:
    def latents(c: Tensor, k: Tensor, cache: Tensor, slots: Tensor, scale: Tensor) -> None:
        torch.ops._C_cache_ops.concat_and_cache_mla(c, k, cache, slots, kind, scale)

    return latents


def write_latents_of_a_layer(c: Tensor, k: Tensor, cache: Tensor, slots: Tensor, scale: Tensor) -> None:
    torch.ops._C_cache_ops.concat_and_cache_mla(c, k, cache[1], slots, "auto", scale)


def write_keys(kind: str) -> Callable[..., None]:
    def keys(k: Tensor, cache: Tensor, slots: Tensor) -> None:
        torch.ops._C_cache_ops.indexer_k_quant_and_cache(k, cache, slots, 128, kind)

    return keys


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 255, shape, dtype=u8)


def of_dtype(dtype: torch.dtype, *shape: int) -> Tensor:
    return random_bytes(*shape) if dtype == u8 else torch.randn(shape).to(dtype)


def _quants() -> dict[str, Case]:
    x, residual, w, scale = rand(T, N), rand(T, N), rand(N), torch.tensor([0.02])
    gate = GateMul("silu", f32, f32)
    block = [NORM_FIRST, TOKEN, DIVIDED]
    return {
        "group columns": Case(group_quant_in_columns, [x], [GROUPS, DIVIDED]),
        "packed": Case(group_quant_packed, [rand(8, 1024)], [POWERS, DIVIDED, E8M0()]),
        "group aligned": Case(group_quant_aligned, [x], [GROUPS, DIVIDED]),
        "group aligned one row": Case(group_quant_aligned, [x[:1].clone()], [GROUPS, DIVIDED]),
        "group aligned one group": Case(group_quant_aligned, [x[:, :GROUP].clone()], [GROUPS, DIVIDED]),
        "packed aligned": Case(group_quant_packed_aligned, [rand(T, 1024)], [POWERS, DIVIDED, E8M0()]),
        "norm block aligned": Case(norm_block_quant_aligned, [x, w], block),
        "norm block": Case(norm_block_quant, [x, w], block),
        "norm block bounded": Case(norm_block_quant_bounded, [x, w, torch.tensor(1.5)], block),
        "norm block columns": Case(norm_block_quant_in_columns, [x, w], block),
        "norm block int8": Case(norm_block_quant_to_int8, [x, w], [NORM_FIRST, TOKEN_INT8, WHOLE]),
        "add norm block": Case(add_norm_block_quant, [x, residual, w], [ResidualAdd(f32), *block]),
        "norm token int8": Case(norm_token_quant_to_int8, [x, w], [NORM_FIRST, TOKEN_INT8, WHOLE]),
        "silu block": Case(silu_block_quant, [rand(T, 2 * N)], [gate, TOKEN, DIVIDED]),
        "silu block columns": Case(silu_block_quant_in_columns, [rand(T, 2 * N)], [gate, TOKEN, DIVIDED]),
        "silu block int8": Case(
            silu_block_quant_to_int8, [rand(T, 2 * N)], [gate, TOKEN_INT8, replace(WHOLE, operation="divide")]
        ),
        "static int8": Case(static_int8, [x, scale], [replace(WHOLE, operation="divide")]),
    }


def _caches() -> dict[str, Case]:
    k, v, scales = rand(T, KV_HEADS, D), rand(T, KV_HEADS, D), [torch.tensor([0.02]), torch.tensor([0.03])]
    shape, fp8 = (7, 4, KV_HEADS, D), [DIVIDED, DIVIDED, WRITE, WRITE]
    both = [k, v, SLOTS, *scales]
    latent = [rand(T, 512), rand(T, 64)]

    def latents(width: int, dtype: torch.dtype, *lead: int) -> list[Tensor]:
        return [*latent, of_dtype(dtype, *lead, 7, 4, width), SLOTS, scales[0]]

    return {
        "cache fp8": Case(write("fp8"), [k, v, *(random_bytes(*shape) for _ in "kv"), SLOTS, *scales], fp8),
        "cache e4m3": Case(
            write("fp8_e4m3"), [k, v, *(of_dtype(E4M3, *shape) for _ in "kv"), SLOTS, *scales], fp8
        ),
        "cache halves": Case(write_halves(0), [rand(2, *shape), *both], [WRITE, WRITE]),
        "cache halves read": Case(write_halves_and_read, [rand(2, *shape), *both], [WRITE, WRITE]),
        "cache blocks": Case(write_halves(1), [rand(7, 2, 4, KV_HEADS, D), *both], [WRITE, WRITE]),
        "cache halves fp8": Case(write_halves(0, "fp8"), [random_bytes(2, *shape), *both], fp8),
        "latents": Case(write_latents("auto"), latents(576, bf16), [WRITE, WRITE]),
        "latents fp8": Case(write_latents("fp8"), latents(576, u8), [DIVIDED, WRITE, DIVIDED, WRITE]),
        "latents of a layer": Case(write_latents_of_a_layer, latents(576, bf16, 3), [WRITE, WRITE]),
        "latents 656": Case(write_latents("fp8_ds_mla"), latents(656, u8), [TILES, DIVIDED, *[WRITE] * 3]),
        "keys": Case(
            write_keys("none"), [rand(T, 128), random_bytes(7, 4, 132), SLOTS], [KEY, DIVIDED, *[WRITE] * 2]
        ),
        "keys ue8m0": Case(
            write_keys("ue8m0"),
            [rand(T, 128), random_bytes(7, 4, 132), SLOTS],
            [replace(KEY, format="ue8m0"), DIVIDED, *[WRITE] * 2],
        ),
    }


def more_cases() -> dict[str, Case]:
    """All of them, by name."""
    torch.manual_seed(0)
    return {**_quants(), **_caches()}
