"""Rows of a cache of cosines and sines, looked up by the kernel that turns by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kernelweld

PLACES, D = 32, 16


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def layers(count: int, q: Tensor, k: Tensor, cache: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    """``count`` pairs of queries and keys, turned by one table."""
    cos, sin = (table.unsqueeze(-2) for table in cache[positions].chunk(2, -1))
    return tuple(turned(x * (n + 1), cos, sin) for n in range(count) for x in (q, k))


def tensors(*rows: int, cache: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k = (torch.randn(*rows, heads, D).bfloat16() for heads in (4, 2))
    return q, k, torch.randn(PLACES, D).to(cache)


def fused(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., object], *inputs: Tensor
) -> tuple[object, list[tuple[str, ...]]]:
    """What the fused function returns, and the arguments of each kernel it launches."""
    from kernelweld.codegen.cache import load

    arguments: list[tuple[str, ...]] = []

    def loaded(kernel: object) -> object:
        arguments.append(tuple(kernel.tensors))  # type: ignore[attr-defined]
        return load(kernel)  # type: ignore[arg-type]

    monkeypatch.setattr("kernelweld.passes.launcher.load", loaded)
    torch._dynamo.reset()
    with torch.no_grad():
        return kernelweld.fuse(function, backend="interpret", strict=True)(*inputs), arguments


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "positions", [[7, 0, 31, 7, 3], [5], [-1, 4, -32], [[1, 2, 3], [30, 0, -2]]], ids=str
)
def test_one_kernel_reads_the_cache(
    monkeypatch: pytest.MonkeyPatch, positions: list[int], dtype: torch.dtype, cache: torch.dtype
) -> None:
    at = torch.tensor(positions, dtype=dtype)
    inputs = (*tensors(*at.shape, cache=cache), at)
    results, arguments = fused(monkeypatch, lambda *x: layers(1, *x), *inputs)
    (names,) = arguments
    assert {"table_ptr", "positions_ptr"} < set(names) and "sin_ptr" not in names
    for found, expected in zip(results, layers(1, *inputs), strict=True):  # type: ignore[arg-type]
        assert torch.equal(found, expected)


def test_a_table_that_a_kernel_looks_up_is_no_near_miss() -> None:
    inputs = (*tensors(5), torch.tensor([7, 0, 31, 7, 3]))
    torch._dynamo.reset()
    for count, expected in ((1, []), (2, ["rope_table"])):
        with torch.no_grad():
            fused = kernelweld.fuse(lambda *x, n=count: layers(n, *x), backend="interpret", strict=True)
            fused(*inputs)
        (graph,) = kernelweld.report(fused).graphs
        assert [miss.kind for miss in graph.near_misses if "not welded" in miss.reason] == expected


def test_a_table_of_many_kernels_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (*tensors(5), torch.tensor([7, 0, 31, 7, 3]))
    results, arguments = fused(monkeypatch, lambda *x: layers(2, *x), *inputs)
    assert arguments and all({"cos_ptr", "sin_ptr"} < set(names) for names in arguments)
    for found, expected in zip(results, layers(2, *inputs), strict=True):  # type: ignore[arg-type]
        assert torch.equal(found, expected)


def test_places_that_do_not_exist_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing beyond the cache is touched; the rows of such positions are turned by zeros."""
    inputs = (*tensors(4), torch.tensor([3, PLACES, -PLACES - 1, 2**40]))
    results, _ = fused(monkeypatch, lambda *x: layers(1, *x), *inputs)
    for found in results:  # type: ignore[attr-defined]
        assert found[0].any() and not found[1:].any()
