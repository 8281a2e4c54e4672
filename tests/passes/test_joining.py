"""Rows joined of the results of several chains: each writes its piece, where nothing else reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import kernelweld
from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline, PipelineResult

Tensor = torch.Tensor
CAT = torch.ops.aten.cat.default
WELD = "canonicalize,dialect,raise,route,page-slots,skinny-gemm,plan,lower{target=triton}"


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def absorbed(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The query of absorbed latent attention: [T, H, 24 + 8] of q [T, H, 16 + 8] and up [H, 16, 24]."""
    plain, rotary = q.split([16, 8], -1)
    lifted = torch.bmm(plain.transpose(0, 1), up).transpose(0, 1)
    return torch.cat([lifted, rotated(rotary, cos, sin)], -1)


def absorbed_and_kept(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    plain, rotary = q.split([16, 8], -1)
    lifted = torch.bmm(plain.transpose(0, 1), up).transpose(0, 1)
    return torch.cat([lifted, rotated(rotary, cos, sin)], -1), lifted.sin()


def of_norms(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Two norms of different widths, side by side."""
    plain, rotary = q.split([16, 8], -1)
    return torch.cat([norm(plain, up[0, :, 0]), norm(rotary, up[0, :8, 1])], -1)


def of_a_norm_and_what_reads_it(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary = q[..., 16:]
    first = norm(rotary, up[0, :8, 1])
    return torch.cat([first, norm(first.sum(0, keepdim=True) + rotary, up[0, :8, 2])], -1)


def lifted(q: Tensor, up: Tensor) -> Tensor:
    return torch.bmm(q[..., :16].transpose(0, 1), up).transpose(0, 1)  # [T, 4, 24]


def of_two_dtypes(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The concatenation widens one of them."""
    return torch.cat([lifted(q, up), rotated(q[..., 16:], cos, sin).float()], -1)


def cut_by_a_view(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows of 6 and 2: the rotated 8 fall apart."""
    turned = rotated(q[..., 16:], cos, sin)
    return torch.cat([lifted(q, up).reshape(-1, 6), turned.reshape(-1, 2)], -1)


def regrouped(q: Tensor, up: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows of half a head: of the product and of the rotated part."""
    turned = rotated(q[..., 16:], cos, sin)
    return torch.cat([lifted(q, up).reshape(-1, 12), turned.reshape(-1, 4)], -1)


MIXED = [of_two_dtypes, cut_by_a_view, regrouped]


def inputs(rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = (rows, 4, 24), (4, 16, 24), (rows, 1, 4), (rows, 1, 4)
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def lowered(function: Callable[..., object], given: tuple[Tensor, ...]) -> tuple[PipelineResult, int]:
    """What the passes did, and how many concatenations they left."""
    gm = capture(function, given).graphs[0]
    result = Pipeline.from_text(WELD, strict=True).run(gm)
    return result, len(gm.graph.find_nodes(op="call_function", target=CAT))


def test_a_head_product_of_one_row_is_a_task_beside_the_rotation() -> None:
    result, cats = lowered(absorbed, inputs(1))
    assert result.context.plan is not None
    assert [weld.tasks for weld in result.context.plan.reports] == [("matvec", "rope")]
    assert cats == 0


def test_a_chain_that_holds_both_pieces_joins_them_in_registers() -> None:
    result, cats = lowered(of_norms, inputs(3))
    assert result.context.plan is not None
    assert [weld.tasks for weld in result.context.plan.reports] == [("rms_norm",)]
    assert cats == 0


def test_a_piece_that_others_read_is_joined_by_the_chain_that_waits_for_it() -> None:
    result, _ = lowered(absorbed_and_kept, inputs(1))
    assert result.context.plan is not None
    assert [weld.tasks for weld in result.context.plan.reports] == [("matvec",), ("rope",)]


def test_a_gemm_of_several_rows_stays_one() -> None:
    gm = capture(absorbed, inputs(5)).graphs[0]
    Pipeline.from_text(WELD, strict=True).run(gm)
    assert len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)) == 1


@pytest.mark.parametrize("function", [absorbed, absorbed_and_kept, of_norms, of_a_norm_and_what_reads_it])
@pytest.mark.parametrize("rows", [1, 3])
def test_values(function: Callable[..., object], rows: int) -> None:
    torch._dynamo.reset()
    given = inputs(rows)
    options = {"pipeline": "canonicalize,dialect,raise,skinny-gemm,plan{keep-all=true},verify-welds,lower"}
    with torch.no_grad():
        expected = function(*given)
        actual = kernelweld.fuse(function, backend="interpret", strict=True, options=options)(*given)
    torch.testing.assert_close(actual, expected, check_stride=True)


@pytest.mark.parametrize("function", MIXED)
def test_what_cannot_lie_side_by_side_is_joined_behind(function: Callable[..., object]) -> None:
    captured = capture(function, inputs(1))
    gm = captured.graphs[0]
    expected = gm(*captured.inputs[0])[0]
    Pipeline.from_text(WELD, strict=True).run(gm)
    with exact_casts():
        torch.testing.assert_close(gm(*captured.inputs[0])[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_writes_both_pieces(dtype: torch.dtype) -> None:
    captured = capture(absorbed, inputs(1, dtype))
    gm = captured.graphs[0]
    expected = gm(*captured.inputs[0])[0]
    Pipeline.from_text(WELD, strict=True).run(gm)
    with exact_casts():
        actual = gm(*captured.inputs[0])[0]
    torch.testing.assert_close(actual, expected)
    assert torch.equal(actual[..., 24:], expected[..., 24:])
