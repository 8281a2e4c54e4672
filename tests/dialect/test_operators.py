"""Each operator becomes its words, bit for bit, one kernel, and the same call again when it is put back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch._inductor.config
from cases import Case, more_cases
from graphs import E4M3, VERIFIED, Graph, bf16, close, graph_of, rand, same
from torch import Tensor

from kernelweld.ir import CacheWrite, GateMul, Quant, QuantScale, ResidualAdd, RMSNorm, Rope, RopeTable
from kernelweld.ir.verifier import check
from kernelweld.passes.launches import predict
from kernelweld.passes.raise_words import unraise

EPS, LIMIT = 1e-6, 448.0
T, N, GROUP, D, HEADS, KV_HEADS = 5, 256, 128, 16, 4, 2
f32 = torch.float32

NORM = RMSNorm(EPS, dtype=bf16)
NORM_FIRST = RMSNorm(EPS, normed_dtype=bf16, dtype=bf16)
STATIC = Quant(-LIMIT, LIMIT, "reciprocal")
DYNAMIC = Quant(-LIMIT, LIMIT, "divide")
TOKEN = QuantScale(LIMIT, float(torch.tensor(1.0 / (LIMIT * 512.0))), "scale")
GROUPS = QuantScale(LIMIT, float(torch.tensor(1e-10)), "amax")
TABLE = RopeTable(source="cache", layout="half", dtype=bf16)
ROPE = Rope(D, style="neox", table="half", dtype=bf16)
WRITE = CacheWrite((0, 1), negative="nowhere")


def codes_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=E4M3)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, w, EPS)
    return out


def rms_norm_without_weight(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, None, EPS)
    return out


def rms_norm_of_heads(x: Tensor, w: Tensor) -> Tensor:
    heads = x.unflatten(-1, (-1, D))[:, 2:6]
    out = torch.empty(heads.shape, dtype=heads.dtype)
    torch.ops._C.rms_norm(out, heads, w, EPS)
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y, kept = x.clone(), residual.clone()
    torch.ops._C.fused_add_rms_norm(y, kept, w, EPS)
    return y, kept


def static_quant(x: Tensor, scale: Tensor) -> Tensor:
    out = codes_like(x)
    torch.ops._C.static_scaled_fp8_quant(out, x, scale, None)
    return out


def token_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = codes_like(x), torch.empty(x.shape[0], 1)
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(out, x, scale, None)
    return out, scale


def token_quant_bounded(x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = codes_like(x), torch.empty(x.shape[0], 1)
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(out, x, scale, upper)
    return out, scale


def group_quant(x: Tensor, eps: float = 1e-10, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    out, scale = codes_like(x), torch.empty(x.shape[0], x.shape[1] // GROUP)
    torch.ops._C.per_token_group_fp8_quant(x, out, scale, GROUP, eps, -LIMIT, LIMIT, ue8m0, False, False)
    return out, scale


def group_quant_ue8m0(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, ue8m0=True)


def group_quant_ue8m0_of_large_eps(x: Tensor) -> tuple[Tensor, Tensor]:
    return group_quant(x, eps=1e-4, ue8m0=True)


def silu_and_mul(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype)
    torch.ops._C.silu_and_mul(out, x)
    return out


def silu_and_mul_quant(x: Tensor, scale: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=E4M3)
    torch.ops._C.silu_and_mul_quant(out, x, scale)
    return out


def norm_static_quant(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    out = codes_like(x)
    torch.ops._C.rms_norm_static_fp8_quant(out, x, w, scale, EPS)
    return out


def add_norm_static_quant(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    out, kept = codes_like(x), residual.clone()
    torch.ops._C.fused_add_rms_norm_static_fp8_quant(out, x, kept, w, scale, EPS)
    return out, kept


def norm_token_quant(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, scale = codes_like(x), torch.empty(x.shape[0], 1)
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, w, scale, EPS, None, None)
    return out, scale


def add_norm_token_quant(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, scale, kept = codes_like(x), torch.empty(x.shape[0], 1), residual.clone()
    torch.ops._C.rms_norm_dynamic_per_token_quant(out, x, w, scale, EPS, None, kept)
    return out, scale, kept


def rotary(
    positions: Tensor, q: Tensor, k: Tensor | None, cache: Tensor, is_neox: bool = True, *rest: object
) -> tuple[Tensor, ...]:
    q, k = q.clone(), None if k is None else k.clone()
    torch.ops._C.rotary_embedding(positions, q, k, D, cache, is_neox, *rest)
    return (q,) if k is None else (q, k)


def rotary_interleaved(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return rotary(positions, q, k, cache, False)


def rotary_at_an_offset(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return rotary(positions, q, k, cache, True, 8)


def rotary_backwards(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return rotary(positions, q, k, cache, True, 0, True)


def rotary_of_queries(positions: Tensor, q: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    return rotary(positions, q, None, cache)


def cache_write(k: Tensor, v: Tensor, ks: Tensor, vs: Tensor, slots: Tensor, s: Tensor) -> None:
    torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, ks, vs, slots, "auto", s, s)


def rotary_inputs(width: int = D, dtype: torch.dtype = bf16, heads: bool = False) -> list[Tensor]:
    q, k = rand(T, HEADS * D), rand(T, KV_HEADS * D)
    if heads:
        q, k = q.unflatten(-1, (HEADS, D)), k.unflatten(-1, (KV_HEADS, D))
    return [torch.tensor([7, 0, 3, 3, 8]), q, k, torch.randn(9, width).to(dtype)]


def caches(heads_first: bool = False) -> list[Tensor]:
    shape = (7, KV_HEADS, 4, D) if heads_first else (7, 4, KV_HEADS, D)
    made = [rand(*shape) for _ in range(2)]
    return [cache.transpose(1, 2) for cache in made] if heads_first else made


def cache_inputs(heads_first: bool = False) -> list[Tensor]:
    rows = [rand(T, KV_HEADS, D) for _ in range(2)]
    return [*rows, *caches(heads_first), torch.tensor([27, -1, 9, 0, 14]), torch.ones(())]


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    x, residual, w, scale = rand(T, N), rand(T, N), rand(N), torch.tensor([0.02])
    rope = [TABLE, ROPE, ROPE]
    partial = replace(ROPE, rotary_dim=8)
    f32_table = replace(TABLE, dtype=f32)
    return {
        "rms_norm": Case(rms_norm, [x, w], [NORM]),
        "no weight": Case(rms_norm_without_weight, [x], [replace(NORM, scale="none")]),
        "heads": Case(rms_norm_of_heads, [x, rand(D)], [NORM]),
        "float32": Case(rms_norm, [x.float(), w.float()], [replace(NORM, dtype=f32)]),
        "add": Case(fused_add_rms_norm, [x, residual, w], [ResidualAdd(bf16), NORM]),
        "static": Case(static_quant, [x, scale], [STATIC]),
        "token": Case(token_quant, [x], [TOKEN, DYNAMIC]),
        "token bounded": Case(token_quant_bounded, [x, torch.tensor(1.5)], [TOKEN, DYNAMIC]),
        "group": Case(group_quant, [x], [GROUPS, DYNAMIC]),
        "ue8m0": Case(group_quant_ue8m0, [x], [replace(GROUPS, eps_place="scale", format="ue8m0"), DYNAMIC]),
        "ue8m0 large eps": Case(
            group_quant_ue8m0_of_large_eps,
            [x * 1e-6],
            [replace(GROUPS, eps=float(torch.tensor(1e-4)), format="ue8m0"), DYNAMIC],
        ),
        "silu": Case(silu_and_mul, [x], [GateMul("silu", bf16, bf16)]),
        "silu static": Case(silu_and_mul_quant, [x, scale], [GateMul("silu", bf16, bf16), STATIC]),
        "norm static": Case(norm_static_quant, [x, w, scale], [NORM, STATIC]),
        "add norm static": Case(
            add_norm_static_quant, [x, residual, w, scale], [ResidualAdd(bf16), NORM, STATIC]
        ),
        "norm token": Case(norm_token_quant, [x, w], [NORM_FIRST, TOKEN, DYNAMIC]),
        "add norm token": Case(
            add_norm_token_quant, [x, residual, w], [ResidualAdd(f32), NORM_FIRST, TOKEN, DYNAMIC]
        ),
        "rotary": Case(rotary, rotary_inputs(), rope),
        "rotary heads": Case(rotary, rotary_inputs(heads=True), rope),
        "rotary float32 cache": Case(rotary, rotary_inputs(dtype=f32), [f32_table, ROPE, ROPE]),
        "rotary partial": Case(rotary, rotary_inputs(8), [TABLE, partial, partial]),
        "rotary offset": Case(
            rotary_at_an_offset, rotary_inputs(8), [TABLE, *[replace(partial, offset=8)] * 2]
        ),
        "rotary interleaved": Case(
            rotary_interleaved, rotary_inputs(), [TABLE, *[replace(ROPE, style="interleaved")] * 2]
        ),
        "rotary inverse": Case(
            rotary_backwards, rotary_inputs(), [TABLE, *[replace(ROPE, inverse=True)] * 2]
        ),
        "rotary queries": Case(
            rotary_of_queries, [t for i, t in enumerate(rotary_inputs()) if i != 2], [TABLE, ROPE]
        ),
        "cache": Case(cache_write, cache_inputs(), [WRITE, WRITE]),
        "cache heads first": Case(cache_write, cache_inputs(True), [WRITE, WRITE]),
    }


CASES = {**cases(), **more_cases()}


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
    check(graph.gm.graph)
    assert same(graph.run(), expected)


def test_it_is_put_back_as_it_was(case: Case) -> None:
    graph = graph_of(case.fn, case.inputs)
    graph.passed("canonicalize")
    expected, before, launches = graph.run(), graph.formulas(), predict(graph.gm.graph)
    graph.passed("dialect,raise")
    assert predict(graph.gm.graph) == launches, "words count as the call that they would be"
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


#: Calls that write to turned buffers.
TURNED = [name for name in CASES if "columns" in name or name == "packed"]


def on_bases(case: Case) -> Graph:
    """The graph with calls in the second form of ``auto_functionalized``."""
    with torch._inductor.config.patch(enable_auto_functionalized_v2=True):
        return graph_of(case.fn, case.inputs)


@pytest.mark.parametrize("name", [name for name in CASES if name not in TURNED])
def test_the_second_form_becomes_the_same_words_and_is_put_back(name: str) -> None:
    case = CASES[name]
    graph = on_bases(case)
    graph.passed("canonicalize")
    expected, before = graph.run(), graph.formulas()
    result = graph.passed("dialect")
    assert graph.words == case.words and graph.operators == [] and result.context.near_misses == []
    check(graph.gm.graph)
    assert same(graph.run(), expected)
    graph.passed("raise")
    unraise(graph.gm)
    graph.gm.graph.eliminate_dead_code()
    graph.gm.recompile()
    assert graph.formulas() == before
    assert same(graph.run(), expected)


@pytest.mark.parametrize("name", TURNED)
def test_a_view_of_a_base_is_left_alone(name: str) -> None:
    graph = on_bases(CASES[name])
    graph.passed("canonicalize")
    before = graph.formulas()
    result = graph.passed("dialect")
    (miss,) = result.context.near_misses
    assert "writes to a view of %empty" in miss.reason and miss.reason.endswith("which is no cache")
    assert graph.words == [] and graph.formulas() == before


ON_BASES = ["add", "rotary heads", "cache halves", "cache blocks", "latents 656", "keys"]


@pytest.mark.parametrize("name", ON_BASES)
def test_the_second_form_is_one_kernel_within_its_contract(name: str) -> None:
    graph = on_bases(CASES[name])
    expected = graph.run()
    graph.passed(VERIFIED)
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)


def add_of_halves(both: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return fused_add_rms_norm(both[:, :N], both[:, N:], w)


def add_token_of_halves(both: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return add_norm_token_quant(both[:, :N].clone(), both[:, N:], w)


TOKENS = {
    "add": add_of_halves,
    "add norm token": add_token_of_halves,
    "group": group_quant,
    "silu static": silu_and_mul_quant,
    "rotary": rotary,
}


@pytest.mark.parametrize("name", TOKENS)
def test_the_number_of_tokens_may_be_a_symbol(name: str) -> None:
    case, fn = CASES[name], TOKENS[name]
    inputs = [torch.cat(list(case.inputs[:2]), -1), case.inputs[2]] if fn is not case.fn else case.inputs
    graph = graph_of(fn, inputs, dynamic=(0, 1, 2) if name == "rotary" else (0,))
    graph.passed("canonicalize")
    expected, operators = graph.run(), graph.operators
    graph.passed("dialect,raise")
    assert graph.words == case.words
    unraise(graph.gm)
    assert graph.operators == operators and same(graph.run(), expected)
    graph.passed(VERIFIED)
    assert graph.kernels == 1 and graph.operators == []
    assert close(graph.run(), expected)
