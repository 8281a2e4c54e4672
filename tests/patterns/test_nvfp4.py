"""NVFP4 in every spelling becomes a scale, its byte and codes; what only looks like it says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.ir import E2M1, E4M3, QuantScale, Word, word_of
from kernelweld.ir.printer import format_graph
from kernelweld.passes.pipeline import Pipeline

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
PIPELINE = "canonicalize,raise,plan{keep-all=true},lower{target=triton}"
BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
torch.manual_seed(0)
X, G = torch.randn(6, 64).to(BF16), torch.tensor([3.7])

Codes = Callable[[Tensor], Tensor]


# --- from a number to its code ---


def by_bits(y: Tensor, tie: int = 1) -> Tensor:
    """The bits of a float with a shorter significand; small numbers by a sum that rounds them."""
    bits = y.view(torch.int32)
    sign = bits & 0x80000000
    size = (bits ^ sign).view(torch.float32)
    saturated = size >= 6.0
    small = torch.logical_and(torch.logical_not(saturated), size < 1.0)
    magic = 149 << 23
    low = ((size + torch.full((), 2.0**22)).view(torch.int32) - magic).to(torch.uint8)
    odd = (size.view(torch.int32) >> 22) & 1
    high = ((size.view(torch.int32) + ((1 - 127) << 23) + 0x1FFFFF + odd * tie) >> 22).to(torch.uint8)
    code = torch.where(small, low, torch.full_like(size, 7, dtype=torch.uint8))
    code = torch.where(torch.logical_not(torch.logical_or(saturated, small)), high, code)
    return code | ((sign >> 28).to(torch.uint8) & 8)


def rounded(y: Tensor) -> Tensor:
    """Masked writes, as in vLLM's reference: the numbers, with their signs."""
    sign, x = torch.sign(y), torch.abs(y)
    x[(x >= 0.0) & (x <= 0.25)] = 0.0
    x[(x > 0.25) & (x < 0.75)] = 0.5
    x[(x >= 0.75) & (x <= 1.25)] = 1.0
    x[(x > 1.25) & (x < 1.75)] = 1.5
    x[(x >= 1.75) & (x <= 2.5)] = 2.0
    x[(x > 2.5) & (x < 3.5)] = 3.0
    x[(x >= 3.5) & (x <= 5.0)] = 4.0
    x[x > 5.0] = 6.0
    return x * sign


def by_masks(y: Tensor) -> Tensor:
    v = rounded(y)
    size = v.abs()
    code = torch.where(size >= 2.0, torch.where(size >= 4.0, size * 0.5 + 4.0, size + 2.0), size * 2.0)
    return code.to(torch.uint8) | (torch.signbit(v).to(torch.uint8) << 3)


def by_thresholds(y: Tensor) -> Tensor:
    size, code = y.abs(), torch.zeros_like(y, dtype=torch.int32)
    for number, bound in enumerate(BOUNDS, 1):
        above = size > bound if number % 2 else size >= bound
        code = torch.where(above, torch.full_like(code, number), code)
    return (code + torch.where(y < 0, 8, 0)).to(torch.uint8)


def by_counting(y: Tensor) -> Tensor:
    size = y.abs()
    code = sum((size > b if i % 2 == 0 else size >= b).to(torch.uint8) for i, b in enumerate(BOUNDS))
    return code | (((y < 0) & (code != 0)).to(torch.uint8) << 3)


# --- two codes in a byte ---


def flat(c: Tensor) -> Tensor:
    line = c.contiguous().view(-1)
    return (line[1::2] << 4 | line[::2]).view(*c.shape[:-1], c.shape[-1] // 2)


def by_columns(c: Tensor) -> Tensor:
    return c[..., ::2] + c[..., 1::2] * 16


def by_pairs(c: Tensor) -> Tensor:
    pairs = c.to(torch.int32).unflatten(-1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)


# --- scales ---


def inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, 1.0 / x)


def as_vllm(x: Tensor, g: Tensor, codes: Codes = by_bits, pack: Codes = flat) -> tuple[Tensor, Tensor]:
    blocks = x.reshape(x.shape[0], x.shape[1] // 16, 16)
    amax = torch.max(torch.abs(blocks), dim=-1, keepdim=True)[0].to(torch.float32)
    scale = torch.clamp(g * (amax * (1.0 / 6.0)), max=448, min=-448).to(FP8)
    factor = inverse(scale.float() * inverse(g))
    y = torch.clamp(blocks.float() * factor, -6.0, 6.0).reshape(x.shape)
    return pack(codes(y)), scale.squeeze(-1)


def as_torchao(x: Tensor, whole: Tensor, codes: Codes = by_bits, pack: Codes = flat) -> tuple[Tensor, Tensor]:
    blocks = x.float().view(x.shape[0], -1, 16)
    scale = torch.amax(torch.abs(blocks), dim=-1) / 6.0
    scale = torch.clamp(scale / whole, min=0.015625, max=448.0).to(FP8)
    factor = (1.0 / whole) / scale.float()
    y = torch.clamp(blocks * factor.unsqueeze(-1), -6.0, 6.0).view(x.shape)
    return pack(codes(y)), scale


def with_blocks_alone(x: Tensor, g: Tensor, size: int = 16) -> tuple[Tensor, Tensor]:
    blocks = x.float().view(x.shape[0], -1, size)
    scale = torch.clamp(torch.amax(torch.abs(blocks), dim=-1) / 6.0, min=0.015625, max=448.0).to(FP8)
    return flat(by_bits((blocks / scale.float().unsqueeze(-1)).view(x.shape))), scale


VLLM = QuantScale(6.0, inverse_limit=True, format="e4m3", low=-448.0, high=448.0)
TORCHAO = QuantScale(6.0, format="e4m3", low=0.015625, high=448.0, keepdim=False, apply="divide")
ALONE = QuantScale(6.0, format="e4m3", low=0.015625, high=448.0, keepdim=False)
SPELLINGS: dict[str, tuple[Callable[..., Any], QuantScale, E2M1]] = {
    "vllm": (as_vllm, VLLM, E2M1()),
    "torchao": (as_torchao, TORCHAO, E2M1("quotient")),
    "blocks alone": (with_blocks_alone, ALONE, E2M1("divide")),
    "masks": (lambda x, g: as_vllm(x, g, by_masks), VLLM, E2M1(zeros="negative")),
    "thresholds": (lambda x, g: as_vllm(x, g, by_thresholds), VLLM, E2M1(zeros="negative")),
    "counting": (lambda x, g: as_vllm(x, g, by_counting), VLLM, E2M1(zeros="plain")),
    "columns": (lambda x, g: as_vllm(x, g, by_bits, by_columns), VLLM, E2M1()),
    "pairs": (
        lambda x, g: as_torchao(x, g, by_thresholds, by_pairs),
        TORCHAO,
        E2M1("quotient", 16, "negative"),
    ),
    "blocks of 32": (lambda x, g: with_blocks_alone(x, g, 32), ALONE, E2M1("divide", 32)),
}


@pytest.fixture(params=SPELLINGS.values(), ids=SPELLINGS.keys())
def spelling(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], QuantScale, E2M1]:
    found: tuple[Callable[..., Any], QuantScale, E2M1] = request.param
    return found


def words_of(graph: Callable[..., Any], x: Tensor) -> list[Word]:
    """The words of the compiled graph, if nothing else looks like one."""
    gm = capture(graph, (x, G)).graphs[0]
    result = Pipeline.from_text("canonicalize,raise", strict=True).run(gm)
    assert result.context.near_misses == []
    return [word for node in gm.graph.nodes if (word := word_of(node)) is not None]


def test_spellings(spelling: tuple[Callable[..., Any], QuantScale, E2M1]) -> None:
    graph, scale, codes = spelling
    assert words_of(graph, X) == [scale, E4M3(), codes]


def test_symbolic_rows() -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    assert words_of(as_vllm, x) == [VLLM, E4M3(), E2M1()]


def test_before_and_after(golden: Callable[[str], None]) -> None:
    gm = capture(as_vllm, (X, G)).graphs[0]
    Pipeline.from_text("canonicalize", strict=True).run(gm)
    before = format_graph(gm.graph)
    Pipeline.from_text("raise", strict=True).run(gm)
    golden(f"{before}\n---\n{format_graph(gm.graph)}\n")


def hard_rows() -> Tensor:
    """Blocks of zeros, subnormals, powers of two and their neighbours, large numbers, ties, and infinity."""
    largest = torch.tensor(
        [0.0, 1.0, 448.0, 2.0**-126, 2.0**-133, 1e-38, 3e38, 6.0, 5.96, 0.375, float("inf")]
    )
    ties = torch.tensor([*BOUNDS, 6.0, 0.0, -0.0, 1.0, -0.25, -0.75, -5.0, 3.0, -6.0])
    rows = ties.repeat(len(largest), 4) / 6.0
    rows = torch.where(largest[:, None] < 1e39, rows * largest[:, None], rows)
    rows[:, 7] = largest
    return rows.to(BF16)


@pytest.mark.parametrize("g", [448 * 6 / 2.7, 1e-30])
@pytest.mark.parametrize("rows", [X, hard_rows(), X.float(), X.half()], ids=["drawn", "hard", "fp32", "fp16"])
def test_one_kernel_has_the_bits_of_the_graph(
    rows: Tensor, g: float, spelling: tuple[Callable[..., Any], QuantScale, E2M1]
) -> None:
    graph, whole = spelling[0], torch.tensor([g])
    captured = capture(graph, (rows, whole))
    gm = captured.graphs[0]
    plan = Pipeline.from_text(PIPELINE, strict=True).run(gm).context.plan
    assert plan is not None
    assert [weld.name for weld in plan.welds] == ["quant_scale_e4m3_e2m1"]
    with exact_casts():
        codes, scales = gm(*captured.inputs[0])
    expected, numbers = graph(rows, whole)
    assert torch.equal(scales.view(torch.uint8), numbers.view(torch.uint8))
    exists = ~numbers.float().isnan().repeat_interleave(codes.shape[-1] // numbers.shape[-1], -1)
    assert torch.equal(codes[exists], expected[exists])


def test_codes_as_pairs_of_their_own_dtype() -> None:
    def graph(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales = as_vllm(x, g)
        return codes.view(torch.float4_e2m1fn_x2), scales

    gm = capture(graph, (X, G)).graphs[0]
    plan = Pipeline.from_text(PIPELINE, strict=True).run(gm).context.plan
    assert plan is not None and len(plan.welds) == 1
    with exact_casts():
        codes, _ = gm(X, G)
    assert torch.equal(codes.view(torch.uint8), as_vllm(X, G)[0])


# --- what computes something else ---


def other_threshold(y: Tensor) -> Tensor:
    code = by_bits(y)
    return torch.where(y.abs() == 0.3, 7, code).to(torch.uint8)


def swapped(c: Tensor) -> Tensor:
    return c[..., 1::2] | (c[..., ::2] << 4)


def by_eights(c: Tensor) -> Tensor:
    return c[..., ::2] | (c[..., 1::2] << 3)


def unscaled(x: Tensor, g: Tensor) -> Tensor:
    return flat(by_bits(x.float() + g))


def scaled_twice(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return as_vllm(x, g, lambda y: by_bits(y.clamp(-4.0, 4.0)))


def not_bounded(x: Tensor, g: Tensor) -> Tensor:
    scale = g * (x.unflatten(-1, (-1, 16)).abs().amax(-1).float() * (1.0 / 6.0))
    return scale.to(FP8).float()


def kept_as_well(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    kept = []

    def codes(y: Tensor) -> Tensor:
        kept.append(y)
        return by_bits(y)

    return (*as_vllm(x, g, codes), kept[0].exp())


NEAR: dict[str, tuple[Callable[..., Any], str, str]] = {
    "ties away from zero": (
        lambda x, g: as_vllm(x, g, lambda y: by_bits(y, 0)),
        "e2m1",
        "hold no codes of e2m1: 1.75 and 0 are 0x03, not 0x04",
    ),
    "one number more": (lambda x, g: as_vllm(x, g, other_threshold), "e2m1", "hold no codes of e2m1"),
    "swapped": (
        lambda x, g: as_vllm(x, g, by_bits, swapped),
        "e2m1",
        "hold no codes of e2m1: 0.5 and 1 are 0x12, not 0x21",
    ),
    "by eights": (lambda x, g: as_vllm(x, g, by_bits, by_eights), "e2m1", "hold no codes of e2m1"),
    "other bounds": (scaled_twice, "e2m1", "have no scale for each block"),
    "unscaled": (unscaled, "e2m1", "have no scale for each block"),
    "kept": (kept_as_well, "e2m1", "is also used by"),
    "not bounded": (not_bounded, "quant_scale", "may be no number of e4m3"),
}


@pytest.mark.parametrize(("graph", "kind", "reason"), NEAR.values(), ids=NEAR.keys())
def test_near_misses(raised: Callable[..., Any], graph: Callable[..., Any], kind: str, reason: str) -> None:
    result = raised(graph, X, G, compiled=True)
    assert result.of(kind) == []
    assert reason in result.reason(kind)


def scaled_threshold(y: Tensor) -> Tensor:
    return torch.where(y * 3.0 == 0.9, 7, by_bits(y)).to(torch.uint8)


def test_a_number_that_no_step_names(raised: Callable[..., Any]) -> None:
    result = raised(lambda x, g: as_vllm(x, g, scaled_threshold), X, G, compiled=True)
    assert result.of("e2m1") == []


def codes_read_back(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes = (x.float() / g).clamp(-448.0, 448.0).to(FP8)
    return codes, codes.float() * g


def test_codes_that_are_read_back_stay_what_is_stored(raised: Callable[..., Any]) -> None:
    result = raised(codes_read_back, X, G, compiled=True)
    output = result.gm.graph.output_node().args[0][0]
    assert [word.kind for word in result.words] == ["quant"] and output is result.calls[0]


OTHERS = [
    lambda x, g: (x.to(torch.int32) | 1).to(torch.uint8),
    lambda x, g: x[:, ::2].to(torch.uint8) | x[:, 1::4].repeat(1, 2).to(torch.uint8),
    lambda x, g: x.to(torch.int32) + 4,
    lambda x, g: (g * x.float().abs().amax(-1, keepdim=True)).to(FP8),
]


@pytest.mark.parametrize("graph", OTHERS)
def test_others_are_no_near_miss(raised: Callable[..., Any], graph: Any) -> None:
    result = raised(graph, X.abs(), G)
    assert result.of("e2m1") == [] and [m for m in result.misses if m.kind in ("e2m1", "e4m3")] == []
