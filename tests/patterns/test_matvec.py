"""A product of one row and a weight becomes one word; other products are left to the GEMM library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernelweld.codegen.interpreter import exact_casts
from kernelweld.integrations.aot import capture
from kernelweld.ir import MatVec
from kernelweld.passes.pipeline import Pipeline

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16 = torch.bfloat16


def tensor(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def of_heads(x: Tensor, w: Tensor) -> Tensor:
    """Absorbed projections: [T, H, K] and [H, K, N]."""
    return torch.bmm(x.transpose(0, 1), w).transpose(0, 1)


def of_transposed_heads(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x.transpose(0, 1), w.transpose(1, 2)).transpose(0, 1)


def shapes(dtype: torch.dtype) -> dict[Callable[..., Tensor], tuple[Tensor, Tensor]]:
    return {
        linear: (tensor(dtype, 1, 40), tensor(dtype, 1032, 40)),
        product: (tensor(dtype, 1, 40), tensor(dtype, 40, 1032)),
        of_heads: (tensor(dtype, 1, 3, 40), tensor(dtype, 3, 40, 24)),
        of_transposed_heads: (tensor(dtype, 1, 3, 40), tensor(dtype, 3, 24, 40)),
    }


@pytest.mark.parametrize("function", [linear, product, of_heads, of_transposed_heads])
@pytest.mark.parametrize("dtype", DTYPES)
def test_spellings(raised: Any, function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    inputs = (x.sign() for x in shapes(dtype)[function])  # whose sums are exact in any order
    found = raised(function, *inputs)
    assert found.only == MatVec(function in (product, of_heads), dtype)


OTHERS = {
    "several rows": (linear, (tensor(BF16, 2, 40), tensor(BF16, 1032, 40))),
    "several rows a head": (of_heads, (tensor(BF16, 2, 3, 40), tensor(BF16, 3, 40, 24))),
    "a computed matrix": (lambda x, w: x @ w.sin(), (tensor(BF16, 1, 40), tensor(BF16, 40, 1032))),
    "few columns": (linear, (tensor(BF16, 1, 40), tensor(BF16, 1024, 40))),
    "no columns": (linear, (tensor(BF16, 1, 40), tensor(BF16, 0, 40))),
    "float64": (linear, (tensor(torch.float64, 1, 40), tensor(torch.float64, 1032, 40))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(raised: Any, name: str) -> None:
    function, inputs = OTHERS[name]
    found = raised(function, *inputs)
    assert (found.words, found.misses) == ([], ())


@pytest.mark.parametrize("function", [linear, product, of_heads, of_transposed_heads])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    x, w = shapes(dtype)[function]
    captured = capture(function, (x, w))
    gm = captured.graphs[0]
    pipeline = Pipeline.from_text("canonicalize,raise,plan,lower{target=triton}", strict=True)
    plan = pipeline.run(gm).context.plan
    assert plan is not None and [weld.tasks for weld in plan.reports] == [("matvec",)]
    with exact_casts():
        (actual,) = gm(*captured.inputs[0])
    exact = function(x.double(), w.double())
    own, least = ((y.double() - exact).abs().max() for y in (actual, exact.to(dtype)))
    assert own <= least * 1.001 + 1e-5


def test_a_product_that_no_weld_holds_is_a_gemm_again() -> None:
    captured = capture(linear, shapes(BF16)[linear])
    gm = captured.graphs[0]
    Pipeline.from_text("canonicalize,raise,lower", strict=True).run(gm)
    assert len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)) == 1
