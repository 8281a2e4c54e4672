"""Operators that vLLM's own passes have made already: left alone, or taken in with more; never undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import E4M3, Graph, close, graph_of, rand
from harness import PIPELINE, Outcome, weld
from spellings import custom_norm, ir_norm, native_norm
from torch import Tensor, fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

from kernelweld.passes.weld import WeldPlan

EPS, N = 1e-6, 64
Chain = Callable[..., object]


def norm_and_codes(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    codes = torch.empty(x.shape, dtype=E4M3)
    torch.ops._C.rms_norm_static_fp8_quant(codes, x, w, scale, EPS)
    return (codes,)


def sum_norm_and_codes(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    codes, residual = torch.empty(x.shape, dtype=E4M3), residual.clone()
    torch.ops._C.fused_add_rms_norm_static_fp8_quant(codes, x, residual, w, scale, EPS)
    return codes, residual


def norm_and_codes_a_token(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    codes, scales = torch.empty(x.shape, dtype=E4M3), torch.empty(x.shape[0], 1)
    torch.ops._C.rms_norm_dynamic_per_token_quant(codes, x, w, scales, EPS, None, None)
    return codes, scales


def gate_and_codes(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    codes = torch.empty(x.shape[0], N // 2, dtype=E4M3)
    torch.ops._C.silu_and_mul_quant(codes, x, scale)
    return (codes,)


FUSED: dict[str, Chain] = {
    "_C.rms_norm_static_fp8_quant": norm_and_codes,
    "_C.fused_add_rms_norm_static_fp8_quant": sum_norm_and_codes,
    "_C.rms_norm_dynamic_per_token_quant": norm_and_codes_a_token,
    "_C.silu_and_mul_quant": gate_and_codes,
}


def inputs() -> list[Tensor]:
    return [rand(5, N), rand(5, N), rand(N), torch.tensor([0.02])]


@pytest.mark.parametrize("name", FUSED)
def test_one_fused_call_is_still_one_launch(name: str) -> None:
    outcome = weld(FUSED[name], inputs())
    assert outcome.graph.kernels + len(outcome.graph.operators) == 1
    assert len(outcome.welds) == outcome.graph.kernels
    outcome.check()


def with_sum_before(fused: Chain) -> Chain:
    def chain(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[object, ...]:
        total = torch.ops.vllm.all_reduce(x, "tp:0") + residual
        return *fused(total, residual, w, scale), total  # type: ignore[misc]

    return chain


@pytest.mark.parametrize("name", ["_C.rms_norm_static_fp8_quant", "_C.rms_norm_dynamic_per_token_quant"])
def test_a_fused_call_is_taken_in_with_the_sum_before_it(name: str) -> None:
    outcome = weld(with_sum_before(FUSED[name]), inputs())
    (welded,) = outcome.welds
    assert welded.startswith("residual_add_rms_norm_quant") and outcome.graph.operators == []
    outcome.check()


def between_norms(call: Callable[[Tensor, Tensor], Tensor]) -> Chain:
    """A norm before and a norm behind a call that nobody knows."""

    def chain(x: Tensor, w: Tensor) -> Tensor:
        x = custom_norm(x, w, EPS)
        return custom_norm(call(x, w), w, EPS)

    return chain


def queries_and_keys(x: Tensor, w: Tensor) -> Tensor:
    x = x.clone()
    torch.ops._C.fused_qk_norm_rope(x, 2, 1, 1, 16, EPS)
    return x


def latents_to_cache(x: Tensor, w: Tensor) -> Tensor:
    q, k = x[:, :32].contiguous(), x[:, 32:].contiguous()
    given = (x, torch.arange(5), w, "layer 0")
    dummy = torch.ops.vllm.fused_rope_unified_mla_kv_cache_update(q, k, *given)
    return torch.cat([q, k], -1) + dummy.sum()


def linear_attention(x: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=x.dtype)
    torch.ops.vllm.gdn_attention_core(x, out, "layer 0")
    return out


def check_left_alone(outcome: Outcome, target: object) -> None:
    assert outcome.count(target) == 1
    assert outcome.welds == ["rms_norm", "rms_norm"] and outcome.misses == []
    outcome.check()


OPAQUE = {
    "_C::fused_qk_norm_rope": queries_and_keys,
    "vllm::fused_rope_unified_mla_kv_cache_update": latents_to_cache,
    "vllm::gdn_attention_core": linear_attention,
}


@pytest.mark.parametrize("name", OPAQUE)
def test_an_operator_without_words_is_left_between_its_welds(name: str) -> None:
    namespace, _, operator = name.partition("::")
    outcome = weld(between_norms(OPAQUE[name]), [rand(5, N), rand(N)])
    check_left_alone(outcome, getattr(getattr(torch.ops, namespace), operator).default)


def own_kernel_before_a_norm(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """With a first norm that becomes a Triton kernel before the passes run."""
    return ir_norm(native_norm(x, w, EPS) @ p, w, EPS)


def test_a_triton_kernel_of_the_model_is_left_beside_welds() -> None:
    """Such as vLLM's norm, rotation and gate of Qwen3-Next."""
    graph = graph_of(own_kernel_before_a_norm, [rand(5, N), rand(N), rand(N, N)])
    expected = graph.run()
    graph.passed("canonicalize,raise,plan,lower{target=triton}")
    (own,) = kernels(graph)
    given = dict(own.kwargs)
    result = graph.passed(PIPELINE)
    assert result.context.plan is not None
    assert [weld.name for weld in result.context.plan.welds] == ["rms_norm"]
    assert graph.kernels == 2 and own in kernels(graph) and dict(own.kwargs) == given
    assert close(graph.run(), expected)


def kernels(graph: Graph) -> list[fx.Node]:
    found = graph.gm.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    return list(found)


def test_welding_twice_changes_nothing() -> None:
    """Another pass of the same kind may come later, or this one again."""
    graph = graph_of(between_norms(linear_attention), [rand(5, N), rand(N)])
    graph.passed(PIPELINE)
    before, count = graph.formulas(), graph.kernels
    assert graph.passed(PIPELINE).context.plan == WeldPlan(())
    assert graph.formulas() == before and graph.kernels == count == 2
