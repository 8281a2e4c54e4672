"""Scales in columns with gaps, as TMA reads them: written by the weld, where and only where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from cases import (
    aligned,
    group_quant_aligned,
    group_quant_aligned_slice,
    group_quant_packed_aligned,
    norm_block_quant_aligned,
)
from graphs import E4M3, VERIFIED, WEIGHED, bf16, close, graph_of, rand, same
from torch import Tensor
from torch.utils import deterministic

from kernelweld.passes.raise_words import unraise

EPS, LIMIT, GROUP = 1e-6, 448.0, 128
Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]

#: Rows, and the stride of columns of scales.
ROWS = [(1, 4), (5, 8), (7, 8), (8, 8)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def reader() -> Iterator[list[tuple[int, ...]]]:
    """An operator that reads codes and scales, as a GEMM, and the strides of the scales it was given."""
    seen: list[tuple[int, ...]] = []

    def read(codes: Tensor, scales: Tensor) -> Tensor:
        seen.append(scales.stride())
        return codes.float().sum(-1) + scales.float().sum(-1)

    with torch.library._scoped_library("aligned", "FRAGMENT") as library:
        library.define("read(Tensor codes, Tensor scales) -> Tensor")
        library.impl("read", read, "CPU")
        torch.library.register_fake(
            "aligned::read",
            lambda codes, scales: codes.new_empty(codes.shape[0], dtype=torch.float32),
            lib=library,
        )
        yield seen


def groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales in plain torch."""
    g = x.unflatten(-1, (-1, GROUP))
    scale = g.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) / LIMIT
    return (g.float() / scale).clamp(-LIMIT, LIMIT).to(E4M3).flatten(-2), scale.squeeze(-1)


def copied(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = groups(x)
    return codes, aligned(x, x.shape[1] // GROUP).copy_(scales)


def copied_to_a_slice(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = groups(x)
    buffer = torch.empty(x.shape[1] // GROUP, (x.shape[0] + 3) // 4 * 4).t()[: x.shape[0]]
    buffer.copy_(scales)
    return codes, buffer


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = groups(x)
    return codes, scales.t().contiguous().t()


QUANTS: dict[str, Quantize] = {
    "operator": group_quant_aligned,
    "packed": group_quant_packed_aligned,
    "copied": copied,
    "copied to a slice": copied_to_a_slice,
}


@pytest.fixture(params=QUANTS.values(), ids=QUANTS.keys())
def quantize(request: pytest.FixtureRequest) -> Quantize:
    found: Quantize = request.param
    return found


def norm_in_torch(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(bf16) * w


def norm_of_vllm(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, w, EPS)
    return out


@pytest.mark.parametrize(
    "quantize", [*QUANTS.values(), group_quant_aligned_slice], ids=[*QUANTS.keys(), "slice"]
)
@pytest.mark.parametrize("dynamic", [(), (0, 2)], ids=["static", "symbolic"])
@pytest.mark.parametrize("norm", [norm_in_torch, norm_of_vllm])
def test_a_norm_codes_and_scales_are_one_launch(
    norm: Callable[[Tensor, Tensor], Tensor],
    quantize: Quantize,
    dynamic: tuple[int, ...],
    reader: list[tuple[int, ...]],
) -> None:
    def chain(x: Tensor, w: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return torch.ops.aligned.read(*quantize(norm(total, w))), total

    width = 1024 if quantize is group_quant_packed_aligned else 256
    graph = graph_of(chain, [rand(5, width), rand(width), rand(5, width)], dynamic=dynamic)
    expected = graph.run()
    result = graph.passed(WEIGHED)
    last = "_e8m0" if quantize is group_quant_packed_aligned else ""
    assert result.context.plan is not None
    assert [weld.name for weld in result.context.plan.welds] == [
        f"residual_add_rms_norm_quant_scale_quant{last}"
    ]
    assert graph.kernels == 1 and graph.operators == []
    assert not {str(n.target) for n in graph.gm.graph.nodes} & {
        "aten.copy.default",
        "aten.slice_scatter.default",
    }
    found = graph.run()
    assert set(reader) == {(1, 8)}
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("rows", "stride"), ROWS)
def test_strides_and_values_are_those_of_the_operator(quantize: Quantize, rows: int, stride: int) -> None:
    width = 1024 if quantize is group_quant_packed_aligned else 256
    graph = graph_of(quantize, [rand(rows, width)])
    codes, scales = graph.run()[:2]
    graph.passed(VERIFIED)
    found = graph.run()
    assert graph.kernels == 1 and same(found[:2], (codes, scales))
    assert found[1].stride() == scales.stride() == (1, stride)


@pytest.mark.parametrize("quantize", [group_quant_aligned, group_quant_packed_aligned, copied])
def test_nothing_is_written_to_the_gaps(quantize: Quantize) -> None:
    graph = graph_of(quantize, [rand(5, 1024)])
    graph.passed(VERIFIED)
    with deterministic_memory():
        scales = graph.run()[1]
        unset = torch.empty(scales.shape[1], 3, dtype=scales.dtype)
    memory = torch.empty(0, dtype=scales.dtype).set_(scales.untyped_storage()).view(-1, 8)  # type: ignore[call-overload]
    assert memory.shape[0] == scales.shape[1], "there is room for whole columns"
    assert torch.equal(memory[:, 5:].view(torch.int32), unset.view(torch.int32))
    assert not torch.isin(memory[:, :5].view(torch.int32), unset.view(torch.int32)).any()


@contextmanager
def deterministic_memory() -> Iterator[None]:
    """Empty memory holds NaN, or the largest integer."""
    assert deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def packed_in_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=E4M3)
    packed = torch.empty(x.shape[1] // GROUP // 4, x.shape[0], dtype=torch.int32).t()
    torch.ops._C.per_token_group_fp8_quant_packed(x, out, packed, GROUP, 1e-10, -LIMIT, LIMIT)
    return out, packed


@pytest.mark.parametrize("quantize", [packed_in_columns, turned])
def test_columns_without_gaps_are_no_copy_either(quantize: Quantize) -> None:
    graph = graph_of(quantize, [rand(5, 1024)])
    expected = graph.run()
    graph.passed(VERIFIED)
    copies = graph.gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert graph.kernels == 1 and copies == []
    assert same(graph.run(), expected) and graph.run()[1].stride() == (1, 5)


@pytest.mark.parametrize("quantize", [group_quant_aligned, group_quant_packed_aligned])
def test_a_call_with_symbolic_rows_is_put_back(quantize: Quantize) -> None:
    graph = graph_of(quantize, [rand(5, 1024)], dynamic=(0,))
    graph.passed("canonicalize")
    expected, operators = graph.run(), graph.operators
    graph.passed("dialect,raise")
    assert graph.operators == [] and same(graph.run(), expected)
    unraise(graph.gm)
    graph.gm.recompile()
    found = graph.run()
    assert graph.operators == operators and same(found, expected)
    assert found[1].stride() == expected[1].stride()


def test_the_norm_of_the_same_library_with_symbolic_rows() -> None:
    graph = graph_of(norm_block_quant_aligned, [rand(5, 256), rand(256)], dynamic=(0,))
    expected = graph.run()
    graph.passed(VERIFIED)
    found = graph.run()
    assert graph.kernels == 1 and close(found, expected) and found[1].stride() == (1, 8)


@pytest.mark.parametrize("rows", [2, 3, 4, 9])
def test_a_graph_of_symbolic_rows_runs_with_others(quantize: Quantize, rows: int) -> None:
    """Captured with five rows: strides are computed anew."""
    width = 1024 if quantize is group_quant_packed_aligned else 256
    graph = graph_of(quantize, [rand(5, width)], dynamic=(0,))
    graph.passed(VERIFIED)
    x = rand(rows, width)
    graph.inputs = tuple(x if isinstance(given, Tensor) else rows for given in graph.inputs)
    found, expected = graph.run(), quantize(x)
    assert same(found[:2], expected) and found[1].stride() == (1, (rows + 3) // 4 * 4)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_inductor_neither_copies_nor_closes_gaps(dynamic: bool, reader: list[tuple[int, ...]]) -> None:
    """Memory of one dimension that a kernel writes, seen with gaps, as the weld's output is."""
    written: list[int] = []

    def fill(x: Tensor, memory: Tensor) -> None:
        written.append(memory.data_ptr())
        memory.fill_(1.0)

    def chain(x: Tensor) -> tuple[Tensor, Tensor]:
        stride = -(x.shape[0] // -4) * 4
        memory = torch.empty(2 * stride)
        torch.ops.aligned.fill(x, memory)
        scales = memory.as_strided((x.shape[0], 2), (1, stride))
        return torch.ops.aligned.read(x, scales), scales

    with torch.library._scoped_library("aligned", "FRAGMENT") as library:
        library.define("fill(Tensor x, Tensor! memory) -> ()")
        library.impl("fill", fill, "CPU")
        torch.library.register_fake("aligned::fill", lambda x, memory: None, lib=library)
        torch._dynamo.reset()
        compiled = torch.compile(chain, dynamic=dynamic)
        for rows in (5, 9) if dynamic else (5,):
            scales = compiled(torch.randn(rows, 16))[1]
            assert scales.stride() == reader[-1] == (1, (rows + 3) // 4 * 4)
            assert scales.data_ptr() == written[-1]
