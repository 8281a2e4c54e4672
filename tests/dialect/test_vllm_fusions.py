"""Why ``vllm-config`` turns two of vLLM's fusions off: apart the chain is a weld in any layout of scales."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import aligned, columns
from graphs import E4M3, graph_of, rand
from torch import Tensor

T, N, GROUP, EPS = 5, 512, 128, 1e-6
PIPELINE = "canonicalize,dialect,raise,plan,lower{target=triton}"

Chain = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def codes(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = torch.empty(x.shape, dtype=E4M3), aligned(x, x.shape[1] // GROUP)
    torch.ops._C.per_token_group_fp8_quant(x, out, scales, GROUP, 1e-10, -448.0, 448.0, False, True, True)
    return out, scales


def halves(x: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    both = x @ projection
    return both[:, :N].contiguous(), both[:, N:].contiguous()


def norm_apart(x: Tensor, projection: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    hidden, residual = halves(x, projection)
    torch.ops._C.fused_add_rms_norm(hidden, residual, weight, EPS)
    return (*codes(hidden), residual)


def norm_fused(x: Tensor, projection: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    hidden, residual = halves(x, projection)
    out, scales = torch.empty(hidden.shape, dtype=E4M3), columns(hidden)
    torch.ops._C.rms_norm_per_block_quant(out, hidden, weight, scales, EPS, None, residual, GROUP, True)
    return out, scales, residual


def gate_apart(x: Tensor, projection: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    gate, up = (x @ projection).chunk(2, -1)
    return codes(torch.nn.functional.silu(gate) * up)


def gate_fused(x: Tensor, projection: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    both = x @ projection
    half = both[:, :N]
    out, scales = torch.empty(half.shape, dtype=E4M3), columns(half)
    torch.ops._C.silu_and_mul_per_block_quant(out, both, scales, GROUP, None, True)
    return out, scales


def gate_fused_in_columns_with_gaps(x: Tensor, projection: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    both = x @ projection
    half = both[:, :N]
    out, scales = torch.empty(half.shape, dtype=E4M3), aligned(half, N // GROUP)
    torch.ops._C.silu_and_mul_per_block_quant(out, both, scales, GROUP, None, True)
    return out, scales


NORM, GATE = "residual_add_rms_norm_quant_scale_quant", "gate_mul_quant_scale_quant"


@pytest.mark.parametrize("dynamic", [(), (0,)], ids=["static", "symbolic"])
@pytest.mark.parametrize(
    ("chain", "weld", "kept"),
    [
        (norm_apart, NORM, None),
        (norm_fused, NORM, None),
        (gate_apart, GATE, None),
        (gate_fused, GATE, None),
        (gate_fused_in_columns_with_gaps, None, "_C.silu_and_mul_per_block_quant.default"),
    ],
    ids=["norm apart", "norm fused", "gate apart", "gate fused", "gate fused, gaps"],
)
def test_what_becomes_of_both(
    chain: Chain, weld: str | None, kept: str | None, dynamic: tuple[int, ...]
) -> None:
    graph = graph_of(chain, [rand(T, 32), rand(32, 2 * N), rand(N)], dynamic=dynamic, stop=True)
    plan = graph.passed(PIPELINE).context.plan
    assert plan is not None
    assert [one.name for one in plan.welds] == ([] if weld is None else [weld])
    assert graph.operators == ([] if kept is None else [kept])
