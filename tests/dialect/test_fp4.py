"""NVFP4 operators become their words where scales lie row by row or fill tiles, and else stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from graphs import E4M3, VERIFIED, bf16, close, graph_of, rand, same
from torch import Tensor

from kernelweld.ir import E2M1, GateMul, QuantScale, RMSNorm, Word
from kernelweld.ir import E4M3 as E4M3Word
from kernelweld.passes.launches import predict
from kernelweld.passes.raise_words import unraise

ROWS, N = 128, 128
SCALE = QuantScale(6.0, inverse_limit=True, format="e4m3", low=-448.0, high=448.0)
WORDS = [SCALE, E4M3Word(), E2M1()]


def buffers(rows: int, width: int, in_tiles: bool) -> tuple[Tensor, Tensor]:
    codes = torch.empty(rows, width // 2, dtype=torch.uint8)
    if not in_tiles:
        return codes, torch.empty(rows, width // 16, dtype=torch.uint8)
    return codes, torch.empty((rows + 127) // 128 * 128, (width // 16 + 3) // 4, dtype=torch.int32)


def quant(x: Tensor, g: Tensor, in_tiles: bool = False) -> tuple[Tensor, Tensor]:
    codes, scales = buffers(*x.shape, in_tiles)
    torch.ops._C.scaled_fp4_quant(codes, x, scales, g, in_tiles)
    return codes, scales.view(E4M3)


def quant_in_tiles(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return quant(x, g, in_tiles=True)


def quant_out(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = buffers(*x.shape, False)
    torch.ops._C.scaled_fp4_quant.out(x, g, False, output=codes, output_scale=scales)
    return codes, scales.view(E4M3)


def silu_quant(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = buffers(x.shape[0], x.shape[1] // 2, True)
    torch.ops._C.silu_and_mul_nvfp4_quant(codes, scales, x, g)
    return codes, scales.view(E4M3)


def norm_quant(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    normed = torch.empty_like(x)
    torch.ops._C.rms_norm(normed, x, w, 1e-6)
    return quant(normed, g)


@dataclass(frozen=True)
class Case:
    fn: Callable[..., object]
    inputs: Sequence[Tensor]
    words: Sequence[Word]


torch.manual_seed(0)
G = torch.tensor([3.7])
CASES = {
    "rows": Case(quant, [rand(5, N), G], WORDS),
    "tiles": Case(quant_in_tiles, [rand(ROWS, N), G], WORDS),
    "out": Case(quant_out, [rand(5, N), G], WORDS),
    "silu": Case(silu_quant, [rand(ROWS, 2 * N), G], [GateMul("silu", torch.float32, bf16), *WORDS]),
    "norm": Case(norm_quant, [rand(5, N), rand(N), G], [RMSNorm(1e-6, dtype=bf16), *WORDS]),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_it_becomes_its_words_bit_for_bit(case: Case) -> None:
    graph = graph_of(case.fn, case.inputs)
    expected = graph.run()
    result = graph.passed("canonicalize,dialect")
    assert graph.words == case.words
    assert graph.operators == [] and result.context.near_misses == []
    assert same(graph.run(), expected)


def test_it_is_put_back_as_it_was(case: Case) -> None:
    graph = graph_of(case.fn, case.inputs)
    graph.passed("canonicalize")
    expected, before, launches = graph.run(), graph.formulas(), predict(graph.gm.graph)
    graph.passed("dialect,raise")
    assert predict(graph.gm.graph) == launches
    unraise(graph.gm)
    graph.gm.graph.eliminate_dead_code()
    graph.gm.recompile()
    assert graph.formulas() == before
    assert same(graph.run(), expected)


def test_it_is_one_kernel_within_its_contract(case: Case) -> None:
    graph = graph_of(case.fn, case.inputs)
    expected = graph.run()
    graph.passed(VERIFIED)
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)
    assert graph.gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default) == []


def test_the_number_of_tokens_may_be_a_symbol() -> None:
    graph = graph_of(norm_quant, CASES["norm"].inputs, dynamic=(0,))
    expected = graph.run()
    graph.passed(VERIFIED)
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


def quant_padded(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = buffers(x.shape[0], 2 * N, False)
    torch.ops._C.scaled_fp4_quant(codes, x, scales, g, False)
    return codes, scales


REFUSED: dict[str, tuple[Callable[..., object], Sequence[Tensor], str]] = {
    "rows that fill no tile": (
        quant_in_tiles,
        [rand(5, N), G],
        "of shape [5, 8] do not fill tiles of 128 by 4",
    ),
    "columns that fill no tile": (quant_in_tiles, [rand(ROWS, 96), G], "of shape [128, 6] do not fill tiles"),
    "gated rows": (silu_quant, [rand(5, 2 * N), G], "do not fill tiles"),
    "scales of blocks": (quant, [rand(5, N), torch.ones(5)], "is not one element"),
    "codes of more columns": (quant_padded, [rand(5, N), G], "are not two in a byte, row by row"),
    "int8": (quant, [rand(5, N).to(torch.int8), G], "is int8"),
}


@pytest.mark.parametrize(("fn", "inputs", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_the_operator_stays_and_says_why(
    fn: Callable[..., object], inputs: Sequence[Tensor], reason: str
) -> None:
    graph = graph_of(fn, inputs, stop=True)
    graph.passed("canonicalize")
    before, called = graph.formulas(), graph.operators
    (miss,) = graph.passed("dialect").context.near_misses
    assert graph.words == [] and graph.operators == called and reason in miss.reason
    graph.gm.graph.eliminate_dead_code()
    assert graph.formulas() == before
