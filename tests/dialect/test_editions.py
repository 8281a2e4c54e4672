"""Releases whose kernels round elsewhere are told apart by their schemas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from graphs import bf16, graph_of, rand, same
from torch import Tensor

from kernelweld.ir import Quant, RMSNorm, Rope
from kernelweld.passes.dialect import dialect_pass, norms, rotary

EPS, T, N, D = 1e-6, 5, 64, 16


def rms_norm(result: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
    h = input.float()
    normed = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)).to(input.dtype)
    result.copy_(normed * weight)


def rms_norm_static_fp8_quant(
    result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    normed = torch.empty_like(input)
    rms_norm(normed, input, weight, epsilon)
    result.copy_((normed.float() * (1.0 / scale)).clamp(-448.0, 448.0).to(result.dtype))


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    cos, sin = cos_sin_cache[positions][:, None].chunk(2, -1)
    a, b = query.unflatten(-1, (-1, head_size)).chunk(2, -1)
    query.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2))


@pytest.fixture(autouse=True)
def old_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operators of an older release, under another name."""
    schemas = {
        "rms_norm(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()": rms_norm,
        "rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor weight, Tensor scale, "
        "float epsilon) -> ()": rms_norm_static_fp8_quant,
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox) -> ()": rotary_embedding,
    }
    known = {
        "old_C.rms_norm": norms.rms_norm,
        "old_C.rms_norm_static_fp8_quant": norms.rms_norm_static_fp8_quant,
        "old_C.rotary_embedding": rotary.rotary_embedding,
    }
    monkeypatch.setattr(dialect_pass, "OPERATORS", known)
    with torch.library._scoped_library("old_C", "DEF") as library:
        for schema, reference in schemas.items():
            name = schema.partition("(")[0]
            library.define(schema)
            library.impl(name, reference, "CPU")
            torch.library.register_fake(f"old_C::{name}", lambda *args: None, lib=library)
        yield


def test_a_norm_that_needs_a_weight_rounds_before_it() -> None:
    def norm(x: Tensor, w: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops.old_C.rms_norm(out, x, w, EPS)
        return out

    graph = graph_of(norm, [rand(T, N), rand(N)])
    expected = graph.run()
    graph.passed("canonicalize,dialect")
    assert graph.words == [RMSNorm(EPS, normed_dtype=bf16, dtype=bf16)]
    assert same(graph.run(), expected)


def test_codes_of_a_norm_follow_the_norm_beside_it() -> None:
    def codes(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
        torch.ops.old_C.rms_norm_static_fp8_quant(out, x, w, scale, EPS)
        return out

    graph = graph_of(codes, [rand(T, N), rand(N), torch.tensor([0.02])])
    expected = graph.run()
    graph.passed("canonicalize,dialect")
    assert graph.words == [
        RMSNorm(EPS, normed_dtype=bf16, dtype=bf16),
        Quant(-448.0, 448.0, "reciprocal"),
    ]
    assert same(graph.run(), expected)


def test_a_rotation_without_an_offset_rounds_products() -> None:
    def turned(positions: Tensor, q: Tensor, cache: Tensor) -> Tensor:
        q = q.clone()
        torch.ops.old_C.rotary_embedding(positions, q, None, D, cache, True)
        return q

    graph = graph_of(turned, [torch.arange(T), rand(T, 4 * D), rand(9, D)])
    expected = graph.run()
    graph.passed("canonicalize,dialect")
    assert graph.words[1] == Rope(D, table="half", product_dtype=bf16, dtype=bf16)
    assert same(graph.run(), expected)
