"""Chains that write caches, run through the pipeline: what they launched and what they left in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline, PipelineResult

Tensor = torch.Tensor
bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
u8, f32 = torch.uint8, torch.float32
aten = torch.ops.aten

VERIFIED = "canonicalize,raise,plan{keep-all=true},verify-welds,lower{target=triton}"


def random(*shape: int) -> Tensor:
    return torch.randn(shape).to(bf16)


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None] + turned * sin[:, None]


def codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x.float() / scale).clamp(-448.0, 448.0).to(E4M3)


def by_group(x: Tensor, *, powers: bool = False) -> tuple[Tensor, Tensor]:
    g = x.unflatten(-1, (-1, 128)).float()
    scale = g.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    scale = torch.exp2(torch.ceil(torch.log2(scale))) if powers else scale
    return (g / scale).clamp(-448.0, 448.0).to(E4M3).flatten(-2), scale.squeeze(-1)


def cache_of(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 255, shape).to(u8) if dtype == u8 else random(*shape).to(dtype)


@dataclass(frozen=True)
class Run:
    """A graph after the pipeline, and what running it did to its inputs."""

    result: PipelineResult
    kernels: int
    inputs: list[Tensor]
    clones: list[str]  # of caches, which Inductor would make because the kernel cannot write in place


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    return graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)


def clones_of(graph: fx.Graph) -> list[str]:
    """The arguments of kernels that Inductor would copy before the launch, and copies back into inputs."""
    reinplace_inplaceable_ops_core(graph)
    copies = [
        node.name
        for node in graph.nodes
        if node.target is aten.copy_.default and node.args[0] is not node.args[1]
    ]
    caches = [name for node in calls_of(graph) for name in node.kwargs["tensors_to_clone"]]
    return [name for name in caches if name.startswith("cache")] + copies


def run(fn: Callable[..., object], inputs: list[Tensor], text: str = VERIFIED) -> Run:
    captured = capture(fn, tuple(x.clone() for x in inputs))
    gm = captured.graphs[0]
    result = Pipeline.from_text(text, strict=True).run(gm)
    given = [x.clone() if isinstance(x, Tensor) else x for x in captured.inputs[0]]
    with exact_casts():
        gm(*given)
    kernels = len(calls_of(gm.graph))
    return Run(result, kernels, given, clones_of(gm.graph))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(bits(left), bits(right))


def as_in_eager(found: Run, chain: Callable[..., object], inputs: list[Tensor], caches: int = 1) -> bool:
    """Whether the caches, which are the first inputs, were left with the bits that eager torch leaves."""
    expected = [x.clone() for x in inputs]
    chain(*expected)
    return all(any(same(cache, given) for given in found.inputs) for cache in expected[:caches])


def reasons(found: Run) -> str:
    assert found.result.context.plan is not None
    return "; ".join(miss.reason for miss in found.result.context.plan.near_misses)
