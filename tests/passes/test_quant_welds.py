"""Chains that end in codes are one weld, hold their contract, and leave out what row tasks cannot compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline, PipelineResult

Tensor = torch.Tensor
bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn

VERIFIED = "canonicalize,raise,plan{keep-all=true},verify-welds"


def run(fn: Callable[..., object], *args: Tensor) -> PipelineResult:
    """The pipeline on ``fn``, every weld checked against its nodes in the interpreter."""
    return Pipeline.from_text(VERIFIED, strict=True).run(capture(fn, args).graphs[0])


def kinds(result: PipelineResult) -> list[list[list[str]]]:
    assert result.context.plan is not None
    return [
        [[word.kind for word in chain.words] for chain in weld.chains] for weld in result.context.plan.welds
    ]


def rand(*shape: int) -> Tensor:
    return torch.randn(shape).to(bf16)


def codes(y: Tensor) -> Tensor:
    return y.clamp(-448.0, 448.0).to(E4M3)


def per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / 448.0
    return codes(x.float() / scale), scale


def per_group(x: Tensor) -> tuple[Tensor, Tensor]:
    values, scale = per_token(x.unflatten(-1, (-1, 128)))
    return values.flatten(-2), scale.squeeze(-1)


def int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127.0
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(bf16) * w


def unclamped(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / 448.0
    return (x.float() / scale).to(E4M3), scale


SCHEMES = [per_token, per_group, int8, unclamped]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kept", [False, True], ids=["codes", "codes and values"])
def test_residual_norm_and_quantization_are_one_launch(scheme: Callable[..., object], kept: bool) -> None:
    def chain(x: Tensor, residual: Tensor, w: Tensor) -> object:
        total = x + residual
        normed = norm(total, w)
        return (total, scheme(normed), normed) if kept else (total, scheme(normed))

    result = run(chain, rand(5, 384), rand(5, 384), rand(384))
    assert kinds(result) == [[["residual_add", "rms_norm", "quant_scale", "quant"]]]


def test_a_weld_whose_views_have_symbolic_sizes_is_verified() -> None:
    def chain(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        normed = norm(x, w)
        return norm(normed.view(normed.shape[0], -1, 16), head)

    x = rand(5, 64)
    torch._dynamo.mark_dynamic(x, 0)
    result = run(chain, x, rand(64), rand(16))
    assert kinds(result) == [[["rms_norm", "rms_norm"]]] and result.context.near_misses == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gated_products_are_quantized_in_registers(scheme: Callable[..., object]) -> None:
    def chain(gate: Tensor, up: Tensor) -> object:
        return scheme(torch.nn.functional.silu(gate) * up)

    assert kinds(run(chain, rand(5, 256), rand(5, 256))) == [[["gate_mul", "quant_scale", "quant"]]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantization_alone(scheme: Callable[..., object]) -> None:
    assert kinds(run(scheme, rand(5, 256))) == [[["quant_scale", "quant"]]]


def test_a_static_scale_behind_a_norm() -> None:
    def chain(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return codes(norm(x, w).float() / scale)

    assert kinds(run(chain, rand(5, 256), rand(256), torch.tensor([0.02]))) == [[["rms_norm", "quant"]]]


def test_one_value_quantized_once_for_several_readers() -> None:
    """Two products that each quantize their common input read the same codes."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        values, scale = per_token(x)
        return (values.float() @ w) * scale

    def chain(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> object:
        normed = norm(x, w)
        return product(normed, a), product(normed, b)

    result = run(chain, rand(5, 256), rand(256), torch.randn(256, 8), torch.randn(256, 16))
    assert kinds(result) == [[["rms_norm", "quant_scale", "quant"]]]


def test_codes_are_not_read_in_registers() -> None:
    """They are rounded by the store; what is computed of them needs the rounded ones."""

    def chain(x: Tensor) -> Tensor:
        values, scale = per_token(x)
        return values.float() * scale

    assert kinds(run(chain, rand(5, 256))) == [[["quant_scale", "quant"]]]


def test_norms_of_different_width_share_a_launch() -> None:
    def chain(q: Tensor, kv: Tensor, wq: Tensor, wk: Tensor) -> object:
        return per_group(norm(q, wq)), per_token(norm(kv, wk))

    found = kinds(run(chain, rand(5, 384), rand(5, 64), rand(384), rand(64)))
    assert found == [[["rms_norm", "quant_scale", "quant"]] * 2]


def test_a_norm_before_an_unknown_quantization_is_welded_without_it() -> None:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        return norm(x, w).to(E4M3)

    assert kinds(run(chain, rand(5, 256), rand(256))) == [[["rms_norm"]]]


def column_major(x: Tensor) -> tuple[Tensor, Tensor]:
    values, scale = per_group(x)
    return values, scale.t().contiguous().t()


def test_column_major_scales_are_written_as_they_lie() -> None:
    def chain(x: Tensor, w: Tensor) -> object:
        return column_major(norm(x, w))

    gm = capture(chain, (rand(5, 384), rand(384))).graphs[0]
    text = "canonicalize,raise,plan{keep-all=true},verify-welds,lower{target=triton}"
    Pipeline.from_text(text, strict=True).run(gm)
    targets = [node.target for node in gm.graph.nodes]
    assert torch.ops.aten.clone.default not in targets, "the kernel writes columns itself"
    scale = gm.graph.output_node().args[0][1]
    assert scale.meta["val"].shape == (5, 3) and scale.meta["val"].stride() == (1, 5)


def test_a_copy_that_others_do_not_share_keeps_its_own_launch() -> None:
    """The scale is read row by row as well: it is written once, and copied."""

    def chain(x: Tensor) -> object:
        values, scale = per_group(x)
        return values, scale.t().contiguous(), scale @ torch.ones(3, 2)

    gm = capture(chain, (rand(5, 384),)).graphs[0]
    text = "canonicalize,raise,plan{keep-all=true},verify-welds,lower{target=triton}"
    Pipeline.from_text(text, strict=True).run(gm)
    assert torch.ops.aten.clone.default in [node.target for node in gm.graph.nodes]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_few_rows(rows: int) -> None:
    assert kinds(run(per_group, rand(rows, 256))) == ([[["quant_scale", "quant"]]])
