"""vLLM's passes that only prepare others: test_noop_elimination, test_split_coalescing,
test_scatter_split_replace, test_functionalization. Here they are ways to write one thing, and weld alike.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention import Geometry, Parts, QueriesAndKeys
from graphs import rand
from harness import weld
from spellings import NORMS, custom_static, ir_norm
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized

EPS = 1e-6


def with_nothing_between(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    y = ir_norm(x, w, EPS).reshape(-1, 4, 16).reshape(-1, 64).reshape(-1, 64)
    y = y[0 : y.shape[0]]
    y = torch.slice_scatter(torch.ones_like(y), y, 0, 0, y.shape[0])
    return custom_static(y, scale)[0]


def without_the_last_row(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return custom_static(ir_norm(x, w, EPS)[0:-1], scale)[0]


def over_all_rows_but_one(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    normed = ir_norm(x, w, EPS)
    return torch.slice_scatter(x, normed[1:], 0, 0, -1)


def test_views_and_slices_of_everything_hide_no_weld() -> None:
    outcome = weld(with_nothing_between, [rand(8, 64), rand(64), torch.tensor([0.02])])
    assert outcome.welds == ["rms_norm_quant"] and outcome.misses == []
    outcome.check()


@pytest.mark.parametrize("fn", [without_the_last_row, over_all_rows_but_one])
def test_a_slice_up_to_the_last_row_is_no_slice_of_everything(fn: Callable[..., Tensor]) -> None:
    outcome = weld(fn, [rand(8, 64), rand(64), torch.tensor([0.02])])
    assert "rms_norm" in outcome.welds and "rms_norm_quant" not in outcome.welds
    outcome.check()


@pytest.mark.parametrize("parts", ["slices", "overlapping"])
def test_slices_in_place_of_a_split_are_welded_as_what_they_are(parts: Parts) -> None:
    """Three slices that together are a split are one to vLLM; those that overlap must not be."""
    model = QueriesAndKeys(Geometry(4, 2, 64, 64), turn="native", parts=parts)
    outcome = weld(model, model.inputs())
    assert outcome.welds == ["rms_norm_rope"] and outcome.misses == []
    outcome.check()


UNSAFE = {
    "a gap": lambda x: (x[:, :64], x[:, 80:144], x[:, 160:224]),
    "steps": lambda x: (x[:, 0:128:2], x[:, 1:128:2], x[:, 128:192]),
    "other tensors": lambda x: (x[:, :64], (x * 2)[:, 64:128], x[:, 128:192]),
    "another dimension": lambda x: (x[0:2, :64], x[2:4, 64:128], x[4:, 128:192]),
    "a slice of a slice": lambda x: (x[:, :128][:, :64], x[:, :128][:, 64:], x[:, 128:192]),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_parts_that_are_no_split_keep_their_values(name: str) -> None:
    parts = UNSAFE[name]

    def norms(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(ir_norm(part, w, EPS) for part in parts(x @ torch.eye(224).to(x.dtype)))

    outcome = weld(norms, [rand(6, 224), rand(64)])
    assert sum(len(w.chains) for w in outcome.result.context.plan.welds) == 3  # type: ignore[union-attr]
    outcome.check()


def rotated_parts(reread: bool) -> Callable[..., object]:
    cache = rand(32, 64)

    def chain(qkv: Tensor, positions: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        qkv = qkv @ w
        q, k, v = qkv.split([512, 256, 256], -1)
        torch.ops._C.rotary_embedding(positions, q, k, 64, cache, True)
        return (q + 1, k + 2, v + 3, *((qkv * 2,) if reread else ()))

    return chain


@pytest.mark.parametrize("reread", [False, True], ids=["parts", "whole"])
def test_parts_rotated_in_place_are_welded_and_what_they_are_parts_of_has_them(reread: bool) -> None:
    """#23953: who reads the projections after the rotation sees it."""
    outcome = weld(rotated_parts(reread), [rand(5, 32), torch.arange(5), rand(32, 1024) * 0.2])
    assert outcome.welds == ["rope"] and outcome.misses == []
    assert outcome.count(torch.ops.aten.slice_scatter.default) == (2 if reread else 0)
    outcome.check()


@pytest.mark.parametrize("norm", ["custom", "ir"])
def test_a_residual_written_in_place_is_no_copy(norm: str) -> None:
    """#29631: an operator that was not made in place again cost a copy of each argument it writes."""
    add_norm = NORMS[norm][1]

    def chain(x: Tensor, residual: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            x, residual = add_norm(x @ p, residual @ p, w, EPS)
        return x, residual

    outcome = weld(chain, [rand(8, 64), rand(8, 64), rand(64), rand(64, 64) * 0.1])
    graph = outcome.graph.gm.graph
    assert outcome.welds == ["residual_add_rms_norm"] * 2 and outcome.graph.operators == []
    assert outcome.count(torch.ops.aten.clone.default) == 0
    assert outcome.graph.kernels == 2
    for call in graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.triton_kernel_wrapper_functional
    ):
        written = [call.kwargs["kwargs"][name] for name in call.kwargs["tensors_to_clone"]]
        assert all(buffer.target is torch.ops.aten.empty.memory_format for buffer in written)
    outcome.check()


def test_one_value_for_both_arguments_that_are_written_is_left_alone() -> None:
    """The results are two copies of it, written each on its own."""

    def chain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(x)
        return NORMS["custom"][1](x.clone(), x.clone(), w, EPS)

    outcome = weld(chain, [rand(8, 64), rand(64)], edit=given_twice)
    assert outcome.welds == [] and len(outcome.graph.operators) == 1
    (reason,) = outcome.reasons("_C.fused_add_rms_norm")
    assert "writes to two copies of %" in reason
    outcome.check()


def given_twice(graph: fx.Graph) -> None:
    """Leaves out copies, as the functional call makes its own."""
    (call,) = graph.find_nodes(op="call_function", target=auto_functionalized)
    (x,) = graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    call.kwargs = {**call.kwargs, "input": x, "residual": x}
