"""Graphs with vLLM's operators, what passes make of them, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.ir import Word, word_of
from kernelweld.passes.pipeline import Pipeline, PipelineResult

_CALLS = (auto_functionalized, auto_functionalized_v2)

bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn

VERIFIED = "canonicalize,dialect,raise,plan{keep-all=true},verify-welds{strict=true},lower{target=triton}"
WEIGHED = "canonicalize,dialect,raise,plan,verify-welds{strict=true},lower{target=triton}"


def rand(*shape: int) -> Tensor:
    return torch.randn(shape).to(bf16)


@dataclass
class Graph:
    """A graph and inputs that repeat its first run."""

    gm: fx.GraphModule
    inputs: tuple[object, ...]

    def run(self) -> list[Tensor]:
        """The outputs and then all tensors that the graph was given, which it may have written to."""
        given = [x.clone() if isinstance(x, Tensor) else x for x in self.inputs]
        with exact_casts():
            outputs = self.gm(*given)
        return [x for x in (*outputs, *given) if isinstance(x, Tensor)]

    def passed(self, text: str) -> PipelineResult:
        """The graph after the passes of ``text``."""
        return Pipeline.from_text(text, strict=True).run(self.gm)

    @property
    def words(self) -> list[Word]:
        return [word for node in self.gm.graph.nodes if (word := word_of(node)) is not None]

    @property
    def kernels(self) -> int:
        return sum(node.target is triton_kernel_wrapper_functional for node in self.gm.graph.nodes)

    @property
    def operators(self) -> list[str]:
        """The operators that are called."""
        calls = [node for node in self.gm.graph.nodes if node.target in _CALLS]
        return [str(node.args[0]) for node in calls]

    def formulas(self) -> list[str]:
        """Every node in terms of the inputs: equal for graphs of the same nodes, in whatever order."""
        known: dict[fx.Node, str] = {}
        for node in self.gm.graph.nodes:
            known[node] = f"{node.target}{fx.map_arg((node.args, node.kwargs), known.__getitem__)}"
        return sorted(known.values())


def graph_of(
    fn: Callable[..., object], inputs: Sequence[Tensor], *, dynamic: Sequence[int] = (), stop: bool = False
) -> Graph:
    """``fn`` as the passes see it. The first dimension of the inputs numbered ``dynamic`` is a symbol;
    with ``stop`` nothing runs.
    """
    given = [x.clone() for x in inputs]
    for i in dynamic:
        torch._dynamo.mark_dynamic(given[i], 0)
    captured = capture(fn, given, stop=stop)
    return Graph(captured.graphs[0], captured.inputs[0])


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether all tensors have the same bits."""
    return all(_same(a, b) for a, b in zip(left, right, strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    alike = a.dtype == b.dtype and a.shape == b.shape
    return alike and torch.equal(_bytes(a), _bytes(b))


def close(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether elements of 8 or 16 bits are off by at most one unit in their last place, and few of them."""
    return all(_close(a, b) for a, b in zip(left, right, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point or not a.numel():
        return torch.equal(a, b)
    off = (a.double() - b.double()).abs() / b.double().abs().clamp(min=torch.finfo(b.dtype).tiny)
    if b.dtype == torch.float32:  # sums in another order
        return bool((off <= 4 * torch.finfo(b.dtype).eps).all())
    return bool((off <= torch.finfo(b.dtype).eps).all()) and float((off > 0).double().mean()) < 0.1


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)
