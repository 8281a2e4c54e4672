"""vLLM's test_fusion_all_reduce: what stands behind a sum over GPUs is welded, the sum itself is not."""

from __future__ import annotations

import pytest
import torch
from graphs import rand
from harness import weld
from spellings import NORMS, QUANTS, scaled_mm
from torch import Tensor, fx, nn
from torch._higher_order_ops.auto_functionalize import auto_functionalized

HIDDEN, GROUP = 64, "tp:0"


class Summed(nn.Module):
    """Linear layers whose results are summed over GPUs, each with a norm behind it."""

    def __init__(self, norm: str, quant: str | None, linears: int = 3, gemma: bool = False) -> None:
        super().__init__()
        self.norm, self.add_norm = NORMS[norm]
        self.quantize, self.linears = QUANTS[quant] if quant else None, linears
        self.weight, self.linear = nn.Parameter(rand(HIDDEN)), nn.Parameter(rand(HIDDEN, HIDDEN) * 0.1)
        self.gemma = gemma

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        weight = self.weight.float() + 1.0 if self.gemma else self.weight
        x = residual = torch.ops.vllm.all_reduce(torch.relu(x), GROUP)
        y = self.norm(x, weight, 1e-6)
        for _ in range(self.linears):
            z = y @ self.linear
            if self.quantize is not None:
                z = scaled_mm(*self.quantize(y, scale), self.linear, y.dtype)
            y, residual = self.add_norm(torch.ops.vllm.all_reduce(z, GROUP), residual, weight, 1e-6)
        return y


def inputs() -> list[Tensor]:
    return [rand(8, HIDDEN), torch.tensor([0.02])]


@pytest.mark.parametrize("quant", [None, "static"], ids=["plain", "codes"])
def test_each_of_four_norms_is_a_weld_behind_its_sum(quant: str | None) -> None:
    outcome = weld(Summed("ir", quant), inputs())
    codes = "_quant" if quant else ""
    assert outcome.welds == [
        f"rms_norm{codes}",
        *[f"residual_add_rms_norm{codes}"] * 2,
        "residual_add_rms_norm",
    ]
    (miss,) = outcome.misses
    assert miss.kind == "vllm.all_reduce" and miss.rule == "operator"
    assert "waits for other GPUs, which no generated kernel does (4 calls in this graph)" in miss.reason
    assert "fuse_allreduce_rms" in miss.remedy
    assert outcome.count(torch.ops.vllm.all_reduce.default) == 4
    outcome.check()


@pytest.mark.parametrize("norm", ["ir", "native"])
def test_gemmas_norm_is_a_weld_behind_its_sum(norm: str) -> None:
    """#38983: about half of the time of a step, before vLLM had a pattern for it."""
    outcome = weld(Summed(norm, None, 1, gemma=True), inputs())
    assert sorted(outcome.welds) == ["residual_add_rms_norm", "rms_norm"]
    outcome.check()


def fused_all_reduce(x: Tensor, residual: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """What vLLM's own pass leaves, and codes behind it."""
    x, residual = x.clone(), residual.clone()
    torch.ops.vllm.flashinfer_trtllm_fused_allreduce_norm(x, residual, w, 1e-6, 2)
    return *QUANTS["group 64"](x, scale), residual


def test_the_fused_sum_and_norm_of_vllm_is_left_alone_and_codes_behind_it_are_welded() -> None:
    outcome = weld(fused_all_reduce, [rand(8, HIDDEN), rand(8, HIDDEN), rand(HIDDEN), torch.ones(1)])
    assert outcome.count(torch.ops.vllm.flashinfer_trtllm_fused_allreduce_norm.default) == 1
    assert outcome.welds == ["quant_scale_quant"] and outcome.misses == []
    outcome.check()


def two_groups(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent sums, each with a norm before and behind it."""
    norm = torch.ops.vllm_ir.rms_norm
    left = torch.ops.vllm.all_reduce(norm(x, w, 1e-6), "left")
    right = torch.ops.vllm.all_reduce(norm(x * 2, w, 1e-5), "right")
    return norm(left, w, 1e-6), norm(right, w, 1e-6)


def test_norms_before_and_behind_independent_sums_share_launches() -> None:
    """The order of the sums, which all GPUs come to, allows that."""
    outcome = weld(two_groups, [rand(8, HIDDEN), rand(HIDDEN)])
    assert outcome.welds == ["rms_norm", "rms_norm"]
    assert outcome.log == ["all_reduce left", "all_reduce right"]
    outcome.check()


def crossed(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """What is behind the last sum could share a launch with the norm before the second one, if these sums
    changed places.
    """
    before = torch.ops.vllm.all_reduce(x, "first")
    second = torch.ops.vllm.all_reduce(torch.ops.vllm_ir.rms_norm(before, w, 1e-6), "second")
    third = torch.ops.vllm.all_reduce(y, "third")
    return torch.ops.vllm_ir.rms_norm(third, w, 1e-6), second


def in_source_order(graph: fx.Graph) -> None:
    """Undoes what Inductor moves for locality."""
    sums = {
        node.args[1]: node
        for node in graph.find_nodes(op="call_function", target=torch.ops.vllm.all_reduce.default)
    }
    (norm,) = sums["third"].users
    sums["second"].append(sums["third"])
    sums["third"].append(norm)


def test_no_launch_makes_sums_change_places() -> None:
    inputs = [rand(8, HIDDEN), rand(8, HIDDEN), rand(HIDDEN)]
    outcome = weld(crossed, inputs, dynamic=(), edit=in_source_order)
    assert outcome.log == [f"all_reduce {name}" for name in ("first", "second", "third")]
    assert outcome.welds == ["rms_norm", "rms_norm"]
    outcome.check()


def test_a_collective_among_kernels_keeps_its_order_too() -> None:
    def squares(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        summed = torch.ops.vllm.all_reduce(x, GROUP)
        q = torch.ops._C.minimax_allreduce_rms_qk(torch.ops.vllm_ir.rms_norm(x, w, 1e-6), w, summed)
        return torch.ops.vllm_ir.rms_norm(q, w, 1e-6), summed

    outcome = weld(squares, [rand(8, HIDDEN), rand(HIDDEN)])
    assert outcome.log == [f"all_reduce {GROUP}", "all_reduce of squares"]
    outcome.check()


def test_functional_calls_stay_functional() -> None:
    """vLLM makes them in place after us."""
    outcome = weld(fused_all_reduce, [rand(8, HIDDEN), rand(8, HIDDEN), rand(HIDDEN), torch.ones(1)])
    nodes = outcome.graph.gm.graph.nodes
    assert sum(node.target is auto_functionalized for node in nodes) == 1
    assert not any(
        node.target is torch.ops.vllm.flashinfer_trtllm_fused_allreduce_norm.default for node in nodes
    )
