"""Routing on a real GPU: the reference's experts, the same bits every time, and in replays of a graph.

Run with ``TRITON_INTERPRET=0``; ``benchmarks/router.py --check`` holds all models' dimensions to the same.
"""

from __future__ import annotations

import pytest
import torch

from kernelweld.codegen.interpreter import interpreting
from kernelweld.kernels.route import reference, route

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]

RULE = {"k": 8, "groups": 8, "top_groups": 4, "scoring": "sigmoid", "renormalise": True, "scale": 2.5}


def drawn(rows: int, weight: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    x = torch.randn(rows, 7168, device="cuda").bfloat16()
    w = (torch.randn(256, 7168, device="cuda") / 85).to(weight)
    return x, w, torch.randn(256, device="cuda")


@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "plain"])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 16, 32, 33])
def test_rows(rows: int, biased: bool, weight: torch.dtype) -> None:
    x, w, bias = drawn(rows, weight)
    operands = (x, w, bias if biased else None)
    weights, ids = route(*operands, **RULE)  # type: ignore[misc]
    wanted, places = reference(*operands, **RULE)
    same = (ids == places).all(1)
    assert (~same).sum() <= rows // 4  # choices that are nearly equal may fall the other way
    torch.testing.assert_close(weights[same], wanted[same], rtol=1e-4, atol=1e-5)
    for _ in range(20):
        again = route(*operands, **RULE)
        assert torch.equal(again[0], weights)
        assert torch.equal(again[1], ids)


def test_replays_of_a_graph() -> None:
    x, w, bias = drawn(4, torch.bfloat16)
    route(x, w, bias, **RULE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weights, ids = route(x, w, bias, **RULE)  # type: ignore[misc]
    for _ in range(20):
        x.normal_()
        x[1] = torch.nan
        graph.replay()
        direct = route(x, w, bias, **RULE)
        assert torch.equal(ids, direct[1])
        assert torch.equal(weights.nan_to_num(-1), direct[0].nan_to_num(-1))  # type: ignore[index]
