"""Lowering: kernel calls, their buffers and inputs, and the way back for what was not welded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._inductor import inductor_prims

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.errors import UnknownName
from kernelweld.integrations.aot import capture
from kernelweld.ir import word_of
from kernelweld.passes.base import PassContext
from kernelweld.passes.lower import LowerPass
from kernelweld.passes.pipeline import Pipeline

aten = torch.ops.aten


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def attention(
    qkv: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Two heads of queries and one of keys, normalised per head and rotated, as ``[batch, heads,
    tokens, 16]``.
    """
    q, k, v = qkv.split([32, 16, 16], -1)
    q = norm(q.view(2, 5, 2, 16), w).transpose(1, 2)
    k = norm(k.view(2, 5, 1, 16), w).transpose(1, 2)
    return rope(q, cos, sin), rope(k, cos, sin), v


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(s, dtype=dtype) for s in ((2, 5, 64), (16,), (2, 1, 5, 16), (2, 1, 5, 16)))


def lowered(
    fn: Callable[..., object], args: tuple[torch.Tensor, ...], target: str
) -> tuple[fx.GraphModule, object, object]:
    """The graph after the pipeline, what it gave before, and what it gives now."""
    captured = capture(fn, args)
    gm, flat = captured.graphs[0], captured.inputs[0]
    before = gm(*flat)
    Pipeline.from_text(f"canonicalize,raise,plan{{keep-all=true}},lower{{target={target}}}", strict=True).run(
        gm
    )
    with exact_casts():
        return gm, before, gm(*flat)


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.target is torch.ops.higher_order.triton_kernel_wrapper_functional]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", ["triton", "reference"])
def test_a_pack_of_two_chains_is_one_call(dtype: torch.dtype, target: str) -> None:
    gm, before, after = lowered(attention, inputs(dtype), target)
    torch.testing.assert_close(after, before)
    assert len(calls(gm)) == (1 if target == "triton" else 0)
    assert not any(word_of(node) for node in gm.graph.nodes), "no word is left"


def test_outputs_keep_the_strides_of_the_original() -> None:
    gm, before, after = lowered(attention, inputs(torch.float32), "triton")
    assert [t.stride() for t in before] == [t.stride() for t in after]  # type: ignore[attr-defined]
    assert [n.meta["val"].stride() for n in gm.graph.output_node().args[0]] == [t.stride() for t in after]  # type: ignore[attr-defined, union-attr]


def test_views_of_one_value_are_one_argument() -> None:
    gm, _, _ = lowered(attention, inputs(torch.float32), "triton")
    (call,) = calls(gm)
    tensors = [value for value in call.kwargs["kwargs"].values() if isinstance(value, fx.Node)]  # type: ignore[union-attr]
    placeholders = [node for node in tensors if node.op == "placeholder"]
    assert len(placeholders) == len(set(placeholders)) == 4


@pytest.mark.parametrize("way", ["moved", "computed", "a view of a computed one"])
def test_a_table_that_is_not_in_memory_is_written_once_for_all_kernels(way: str) -> None:
    tables = {
        "moved": lambda table: table.unsqueeze(-1).expand(5, 8, 2).reshape(5, 16),
        "computed": lambda table: torch.cat((table, table), -1).cos(),
        "a view of a computed one": lambda table: torch.cat((table, table), -1).cos()[None, :, None][0, :, 0],
    }

    def two_layers(
        x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, w: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cos = tables[way](table)
        first = rope(norm(x, w), cos, cos)
        return first, rope(norm(y @ first.T @ first, w), cos, cos)

    args = tuple(torch.randn(s) for s in ((5, 16), (5, 16), (5, 8), (16,)))
    gm, before, after = lowered(two_layers, args, "triton")
    torch.testing.assert_close(after, before)
    assert len(calls(gm)) == 2
    copies = [n for n in gm.graph.nodes if n.target is inductor_prims.force_stride_order]
    assert len(copies) == 1
    assert sum(copies[0] in call.all_input_nodes for call in calls(gm)) == 2


def test_nothing_planned_is_restored_exactly() -> None:
    captured = capture(attention, inputs(torch.bfloat16))
    gm = captured.graphs[0]
    before = gm(*captured.inputs[0])
    Pipeline.from_text("canonicalize,raise,lower", strict=True).run(gm)
    assert all(torch.equal(a, b) for a, b in zip(gm(*captured.inputs[0]), before, strict=True))
    assert not any(word_of(node) for node in gm.graph.nodes)


def test_unknown_target_has_close_matches() -> None:
    gm = capture(attention, inputs(torch.float32)).graphs[0]
    with pytest.raises(UnknownName, match="did you mean 'triton'"):
        LowerPass("trition").run(gm, PassContext())
