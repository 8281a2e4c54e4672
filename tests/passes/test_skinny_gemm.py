"""One row times a narrow matrix: rewritten exactly where it pays, and equal in meaning."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelweld.integrations.aot import capture
from kernelweld.passes.base import PassContext
from kernelweld.passes.skinny_gemm import SkinnyGemmPass

aten = torch.ops.aten


def graph_of(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.fx.GraphModule, tuple[object, ...]]:
    linear = nn.Linear(320, columns, bias=False, dtype=dtype)
    captured = capture(lambda x: torch.sigmoid(linear(x)), (torch.randn(rows, 320, dtype=dtype),))
    return captured.graphs[0], captured.inputs[0]


def count(gm: torch.fx.GraphModule, target: object) -> int:
    return sum(node.target is target for node in gm.graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_row_becomes_a_row_sum(dtype: torch.dtype) -> None:
    gm, inputs = graph_of(1, 24, dtype)
    before = gm(*inputs)[0]
    assert SkinnyGemmPass().run(gm, PassContext()).count == 1
    gm.recompile()
    assert (count(gm, aten.mm.default), count(gm, aten.sum.dim_IntList)) == (0, 1)
    torch.testing.assert_close(gm(*inputs)[0], before)


def test_accumulates_in_float32() -> None:
    gm, (weight, x) = graph_of(1, 8, torch.bfloat16)
    SkinnyGemmPass().run(gm, PassContext())
    gm.recompile()
    exact = torch.sigmoid((x.double() @ weight.double().T).to(torch.bfloat16))
    assert torch.equal(gm(weight, x)[0], exact)


@pytest.mark.parametrize(("rows", "columns"), [(2, 24), (1, 2000)])
def test_leaves_real_gemms(rows: int, columns: int) -> None:
    gm, _ = graph_of(rows, columns, torch.float32)
    assert SkinnyGemmPass().run(gm, PassContext()).count == 0
    assert count(gm, aten.mm.default) == 1


def test_leaves_a_matrix_that_is_not_a_transposed_weight() -> None:
    gm = capture(lambda x, w: x @ w, (torch.randn(1, 64), torch.randn(64, 8))).graphs[0]
    assert SkinnyGemmPass().run(gm, PassContext()).count == 0
