"""What words do not say is left alone, as it was, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from cases import group_quant_aligned_slice
from graphs import E4M3, bf16, graph_of, rand
from torch import Tensor

T, N, GROUP, D = 5, 256, 128, 16
LIMIT = 448.0


def norm(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, w, 1e-6)
    return out


def norm_over_what_others_fill(x: Tensor, w: Tensor) -> Tensor:
    out = x * 2
    torch.ops._C.rms_norm(out, x, w, 1e-6)
    return out


def norm_into_a_buffer_of_another_size(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty(w.shape[0], N, dtype=x.dtype)[: x.shape[0]]
    torch.ops._C.rms_norm(out, x, None, 1e-6)
    return out * 2


def add_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x, residual = x.clone(), residual.clone()
    torch.ops._C.fused_add_rms_norm(x, residual, w, 1e-6)
    return x, residual


def norm_to_another_format(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = torch.empty(x.shape, dtype=torch.float8_e5m2), torch.empty(x.shape[0], 1)
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, w, scale, 1e-6, None, None)
    return out, scale


def norm_to_columns_as_rows(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), torch.empty(N // GROUP, T).t()
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, 1e-6, None, None, GROUP, False)
    return out, scales


def norm_to_rows_as_columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), torch.empty(T, N // GROUP)
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, 1e-6, None, None, GROUP, True)
    return out, scales


def gate_with_bounded_scales(x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(T, GROUP, dtype=E4M3), torch.empty(T, 1)
    torch.ops._C.silu_and_mul_per_block_quant(out, x, scales, GROUP, upper, False)
    return out, scales


def static_int8_with_a_zero_point(x: Tensor, scale: Tensor, azp: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.int8)
    torch.ops._C.static_scaled_int8_quant(out, x, scale, azp)
    return out


def dynamic_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(T, 1)
    torch.ops._C.dynamic_scaled_int8_quant(out, x, scale, None)
    return out, scale


def group_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(T, N // GROUP)
    torch.ops._C.per_token_group_quant_int8(x, out, scales, GROUP, 1e-10, -128.0, 127.0)
    return out, scales


def packed(x: Tensor, columns: int, stride: int) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=E4M3)
    scales = torch.empty_strided((T, columns), (1, stride), dtype=torch.int32)
    torch.ops._C.per_token_group_fp8_quant_packed(x, out, scales, GROUP, 1e-10, -LIMIT, LIMIT)
    return out, scales


def packed_in_part(x: Tensor) -> tuple[Tensor, Tensor]:
    return packed(x, 1, T)


def packed_overlapping(x: Tensor) -> tuple[Tensor, Tensor]:
    return packed(x, 2, T - 1)


def channel_quant(x: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=E4M3)
    torch.ops._C.static_scaled_fp8_quant(out, x, scale, [-1, 1])
    return out


def quant_across_rows(x: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty(x.shape[::-1], dtype=E4M3).t()
    torch.ops._C.static_scaled_fp8_quant(out, x, scale, None)
    return out


def group_quant(x: Tensor, scales: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=E4M3)
    torch.ops._C.per_token_group_fp8_quant(x, out, scales, group, 1e-10, -LIMIT, LIMIT, False, False, False)
    return out, scales


def overlapping_columns_of_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, torch.empty_strided((T, N // GROUP), (1, T - 1)))


def rows_of_scales_with_gaps(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, torch.empty_strided((T, N // GROUP), (4, 1)))


def norm_to_columns_with_gaps_as_rows(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), torch.empty_strided((T, N // GROUP), (1, T + 3))
    torch.ops._C.rms_norm_per_block_quant(out, x, w, scales, 1e-6, None, None, GROUP, False)
    return out, scales


def gate_to_columns_with_gaps(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(T, GROUP, dtype=E4M3), torch.empty_strided((T, 1), (1, T + 3))
    torch.ops._C.silu_and_mul_per_block_quant(out, x, scales, GROUP, None, True)
    return out, scales


def packed_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, torch.empty(T, 1, dtype=torch.int32))


def groups_that_do_not_fit(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, torch.empty(T, 3), group=96)


def rotary(positions: Tensor, q: Tensor, cache: Tensor) -> Tensor:
    q = q.clone()
    torch.ops._C.rotary_embedding(positions, q, None, D, cache, True)
    return q


def rotary_read_by_strides(positions: Tensor, q: Tensor, cache: Tensor) -> Tensor:
    part = (q * 2)[:, :D]
    torch.ops._C.rotary_embedding(positions, part, None, D, cache, True)
    return part.view(torch.int32) + 1


def written(k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, scale: Tensor) -> None:
    torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, ks, vs, slots, "auto", scale, scale)


def codes_written(
    k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, scale: Tensor, kind: str = "fp8"
) -> None:
    torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, ks, vs, slots, kind, scale, scale)


def e5m2_written(*inputs: Tensor) -> None:
    codes_written(*inputs, kind="fp8_e5m2")


def written_with_a_computed_scale(
    k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, scale: Tensor
) -> None:
    written(k, v, ks, vs, slots, scale * 2)


def written_to_a_value(
    k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    ks, vs = ks * 2, vs * 2
    written(k, v, ks, vs, slots, scale)
    return ks, vs


def written_to_halves_of_a_value(kv: Tensor, k: Tensor, v: Tensor, slots: Tensor, scale: Tensor) -> Tensor:
    kv = kv * 2
    written(k, v, kv[0], kv[1], slots, scale)
    return kv


def latents(kind: str) -> Callable[..., None]:
    def call(c: Tensor, k: Tensor, cache: Tensor, slots: Tensor, scale: Tensor) -> None:
        torch.ops._C_cache_ops.concat_and_cache_mla(c, k, cache, slots, kind, scale)

    return call


def keys(k: Tensor, cache: Tensor, slots: Tensor, group: int = 128) -> None:
    torch.ops._C_cache_ops.indexer_k_quant_and_cache(k, cache, slots, group, "ue8m0")


def keys_in_groups(k: Tensor, cache: Tensor, slots: Tensor) -> None:
    keys(k, cache, slots, 64)


def latent_inputs(width: int = 64, cache: int = 656) -> list[Tensor]:
    rows = torch.zeros(7, 4, cache, dtype=torch.uint8)
    return [rand(T, 512), rand(T, width), rows, torch.arange(T), torch.ones(())]


def cache_inputs(rows: int = T, heads: int = 2, dtype: torch.dtype = bf16) -> list[Tensor]:
    k, v = rand(rows, heads, D), rand(rows, heads, D)
    caches = [rand(7, 4, 2, D).to(dtype) for _ in range(2)]
    return [k, v, *caches, torch.arange(T), torch.ones(())]


X, W, SCALE = rand(T, N), rand(N), torch.tensor([0.02])
POSITIONS, CACHE = torch.arange(T), rand(9, D)

REFUSED: dict[str, tuple[Callable[..., object], Sequence[Tensor], str]] = {
    "float64": (norm, [X.double(), W.double()], "is float64"),
    "weight of another dtype": (norm, [X, W.float()], "is float32, the input bfloat16"),
    "weight a row": (norm, [X, rand(T, N)], "is not one row"),
    "filled buffer": (norm_over_what_others_fill, [X, W], "which no word reads"),
    "residual of another dtype": (add_norm, [X, X.float(), W], "another dtype or shape than the input"),
    "another format": (norm_to_another_format, [X, W], "are float8_e5m2, neither float8_e4m3fn nor int8"),
    "columns as rows": (norm_to_columns_as_rows, [X, W], "do not lie row by row, as they are written"),
    "rows as columns": (norm_to_rows_as_columns, [X, W], "do not lie column by column, as they are written"),
    "bounded scales": (gate_with_bounded_scales, [X, SCALE], "have an upper bound"),
    "zero point": (
        static_int8_with_a_zero_point,
        [X, SCALE, torch.ones(1, dtype=torch.int32)],
        "have a zero point",
    ),
    "int8 a token": (dynamic_int8, [X], "are products with 127 / amax"),
    "int8 a group": (group_int8, [X], "are quotients without their fraction"),
    "packed in part": (packed_in_part, [X], "scales of a row of"),
    "packed overlapping": (packed_overlapping, [rand(T, 1024)], "lie neither in rows without gaps nor in"),
    "scale a channel": (channel_quant, [X, torch.rand(N)], "of shape [256] is not one element"),
    "codes across rows": (quant_across_rows, [X, SCALE], "are not written row by row"),
    "overlapping scales": (overlapping_columns_of_scales, [X], "without gaps nor in columns, [1, 4]"),
    "slice that leaves the graph": (
        group_quant_aligned_slice,
        [X],
        "are a part of %permute, which %slice_scatter uses too",
    ),
    "gaps in rows": (rows_of_scales_with_gaps, [X], "without gaps nor in columns, [4, 1]"),
    "columns with gaps as rows": (
        norm_to_columns_with_gaps_as_rows,
        [X, W],
        "do not lie row by row, as they are written",
    ),
    "gate to columns with gaps": (
        gate_to_columns_with_gaps,
        [X],
        "have gaps between columns, [1, 8], but are written without",
    ),
    "packed scales": (packed_scales, [torch.cat([X, X], -1)[:, :GROUP]], "are packed, int32, not float32"),
    "groups": (groups_that_do_not_fit, [X], "groups of 96 do not divide"),
    "positions": (rotary, [POSITIONS[None], X[None], CACHE], "have 2 dimensions"),
    "heads": (rotary, [POSITIONS, rand(T, 3 * D + 1), CACHE], "is not rows of heads of 16"),
    "cache of angles": (rotary, [POSITIONS, X, CACHE.double()], "is float64"),
    "strides": (rotary_read_by_strides, [POSITIONS, X, CACHE], "needs the strides"),
    "e5m2 caches": (e5m2_written, cache_inputs(dtype=torch.uint8), "the caches hold fp8_e5m2"),
    "scale a head": (
        codes_written,
        [*cache_inputs(dtype=torch.uint8)[:-1], torch.ones(2)],
        "of shape [2] is not one element",
    ),
    "fp8 in caches of values": (codes_written, cache_inputs(), "is bfloat16, the values float8_e4m3fn"),
    "latents of float32": (
        latents("auto"),
        [rand(T, 512), rand(T, 64), torch.zeros(7, 4, 576), torch.arange(T), torch.ones(())],
        "is float32, the values bfloat16",
    ),
    "width of latents": (latents("fp8"), latent_inputs(), "are not 576 wide"),
    "bytes of latents": (latents("fp8_ds_mla"), latent_inputs(cache=640), "are not 656 bytes"),
    "rotated part": (latents("fp8_ds_mla"), latent_inputs(width=32), "are not 512 and 64 wide"),
    "fp4 latents": (latents("nvfp4_ds_mla"), latent_inputs(cache=576), "the caches hold nvfp4_ds_mla"),
    "groups of keys": (
        keys_in_groups,
        [rand(T, 128), torch.zeros(7, 4, 132, dtype=torch.uint8), torch.arange(T)],
        "one group each",
    ),
    "pages of keys": (
        keys,
        [rand(T, 128), torch.zeros(7, 4, 136, dtype=torch.uint8), torch.arange(T)],
        "is not pages of rows of 132 bytes",
    ),
    "caches of another dtype": (
        written,
        cache_inputs(dtype=torch.float32),
        "is float32, the values bfloat16",
    ),
    "other heads": (written, cache_inputs(heads=1), "has not the heads of the cache"),
    "rows without slots": (written, cache_inputs(rows=T + 2), "has rows without a slot"),
    "computed scale": (written_with_a_computed_scale, cache_inputs(), "which no word reads"),
    "cache of its own": (written_to_a_value, cache_inputs(), "is no input that the graph writes"),
    "halves of a value": (
        written_to_halves_of_a_value,
        [rand(2, 7, 4, 2, D), *cache_inputs()[:2], *cache_inputs()[4:]],
        "is no input that the graph writes",
    ),
}


@pytest.mark.parametrize(("fn", "inputs", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_the_operator_stays_and_says_why(
    fn: Callable[..., object], inputs: Sequence[Tensor], reason: str
) -> None:
    graph = graph_of(fn, inputs, stop=True)
    graph.passed("canonicalize")
    before, called = graph.formulas(), graph.operators
    result = graph.passed("dialect")
    assert graph.words == [] and graph.operators == called
    (miss,) = result.context.near_misses
    assert f"{miss.kind}.default" == called[0] and miss.source is not None
    assert reason in miss.reason
    graph.gm.graph.eliminate_dead_code()
    assert graph.formulas() == before


def test_a_size_that_no_operand_has_is_refused() -> None:
    graph = graph_of(norm_into_a_buffer_of_another_size, [X, rand(T + 3)], dynamic=(0, 1), stop=True)
    result = graph.passed("canonicalize,dialect")
    (miss,) = result.context.near_misses
    assert "that no operand has" in miss.reason
    assert graph.words == []


def test_other_operators_are_no_near_miss() -> None:
    with torch.library._scoped_library("_C", "FRAGMENT") as library:
        library.define("gelu_quick(Tensor! out, Tensor input) -> ()")
        torch.library.register_fake("_C::gelu_quick", lambda out, x: None, lib=library)

        def gate(x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            torch.ops._C.gelu_quick(out, x)
            return out

        graph = graph_of(gate, [X], stop=True)
        result = graph.passed("canonicalize,dialect")
    assert graph.operators == ["_C.gelu_quick.default"] and result.context.near_misses == []
