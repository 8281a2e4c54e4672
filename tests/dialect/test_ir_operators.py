"""``vllm_ir`` norms become words that round as the definition of the operator does, however that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from graphs import E4M3, VERIFIED, bf16, close, graph_of, rand, same
from torch import Tensor
from vllm_ir_operators import Norm, define, in_halves, rounds_first, rounds_once

from kernelweld.ir import ResidualAdd, RMSNorm, Word
from kernelweld.passes.dialect import ir_operators
from kernelweld.passes.launches import predict
from kernelweld.passes.raise_words import unraise

EPS, T, N = 1e-6, 5, 256
f32 = torch.float32

DEFINITIONS = {
    "first": (rounds_first, True, bf16, bf16),
    "once": (rounds_once, True, f32, bf16),
    "first, exact sum": (rounds_first, False, bf16, f32),
    "once, exact sum": (rounds_once, False, f32, f32),
}


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    ir_operators._rounding.cache_clear()
    with torch.library._scoped_library("vllm_ir", "DEF") as found:
        yield found
    ir_operators._rounding.cache_clear()


def plain(x: Tensor, w: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.vllm_ir.rms_norm(x, w, EPS)
    return result


def added(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    normed, total = torch.ops.vllm_ir.fused_add_rms_norm(x, residual, w, EPS)
    return normed, total


def quantized(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    normed, total = added(x, residual, w)
    scale = normed.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / 448.0
    return (normed.float() / scale).clamp(-448.0, 448.0).to(E4M3), scale, total


@pytest.mark.parametrize("name", DEFINITIONS)
def test_words_round_as_the_definition(library: torch.library.Library, name: str) -> None:
    norm, rounded_sum, normed, total = DEFINITIONS[name]
    define(library, norm, rounded_sum)
    word = RMSNorm(EPS, normed_dtype=normed, dtype=bf16)
    cases: list[tuple[Callable[..., object], list[Tensor], list[Word]]] = [
        (plain, [rand(T, N), rand(N)], [word]),
        (added, [rand(T, N), rand(T, N), rand(N)], [ResidualAdd(total), word]),
    ]
    for fn, inputs, words in cases:
        graph = graph_of(fn, inputs)
        graph.passed("canonicalize")
        expected, before = graph.run(), graph.formulas()
        result = graph.passed("dialect")
        assert graph.words == words and result.context.near_misses == []
        assert same(graph.run(), expected)
        unraise(graph.gm)
        graph.gm.graph.eliminate_dead_code()
        graph.gm.recompile()
        assert graph.formulas() == before


def test_a_norm_and_what_follows_are_one_launch(library: torch.library.Library) -> None:
    define(library, rounds_first, False)
    graph = graph_of(quantized, [rand(T, N), rand(T, N), rand(N)])
    expected = graph.run()
    graph.passed(VERIFIED)
    assert graph.kernels == 1 and close(graph.run(), expected)


def part_of_the_row(x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = torch.ops.vllm_ir.rms_norm(x, w, EPS, 64)
    return result


@pytest.mark.parametrize(
    ("fn", "norm", "reason"),
    [
        (plain, in_halves, "rounds as no word does, or not on a CPU"),
        (part_of_the_row, rounds_first, "normalises by a part of its row"),
    ],
)
def test_others_stay_and_say_why(
    library: torch.library.Library, fn: Callable[..., object], norm: Norm, reason: str
) -> None:
    define(library, norm, True)
    graph = graph_of(fn, [rand(T, N), rand(N)], stop=True)
    graph.passed("canonicalize")
    before = graph.formulas()
    (miss,) = graph.passed("dialect").context.near_misses
    assert miss.kind == "vllm_ir.rms_norm" and reason in miss.reason
    assert graph.words == [] and graph.formulas() == before


def gemma(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return added(x, residual, w.float() + 1.0)


def upcast(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return added(x, residual, w.float())


@pytest.mark.parametrize(("fn", "scale"), [(gemma, "1+w"), (upcast, "w")])
def test_the_factor_is_computed_in_the_kernel(
    library: torch.library.Library, fn: Callable[..., object], scale: str
) -> None:
    """A kernel that is given ``1 + w`` makes it a launch of its own."""
    define(library, rounds_once, rounded_sum=False)
    graph = graph_of(fn, [rand(T, N), rand(T, N), rand(N)])
    graph.passed("canonicalize")
    expected, before = graph.run(), graph.formulas()
    graph.passed("dialect")
    assert graph.words == [ResidualAdd(f32), RMSNorm(EPS, scale, normed_dtype=f32, dtype=bf16)]
    assert same(graph.run(), expected)
    unraise(graph.gm)
    graph.gm.graph.eliminate_dead_code()
    graph.gm.recompile()
    assert graph.formulas() == before


@pytest.mark.parametrize("fn", [gemma, upcast])
def test_functional_operators_count_as_what_they_become(
    library: torch.library.Library, fn: Callable[..., object]
) -> None:
    """Behind all passes they are plain operations, which Inductor fuses: one launch, the factor in it."""
    define(library, rounds_once, rounded_sum=False)
    graph = graph_of(fn, [rand(T, N), rand(T, N), rand(N)])
    assert predict(graph.gm.graph) == 1
    graph.passed("canonicalize,dialect")
    assert predict(graph.gm.graph) == 1
    graph.passed("raise,plan,lower{target=triton}")
    assert predict(graph.gm.graph) == 1
