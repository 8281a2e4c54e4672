"""Positions become slots in the launch that selects them, where they are used for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernelweld.integrations.aot import capture
from kernelweld.kernels.index_topk import index_topk
from kernelweld.passes.base import PassContext
from kernelweld.passes.canonicalize import CanonicalizePass
from kernelweld.passes.page_slots import PageSlotsPass

Tensor = torch.Tensor
Function = Callable[[Tensor, Tensor, Tensor], object]
BLOCK = 4


def selected(scores: Tensor, lengths: Tensor) -> Tensor:
    found = index_topk(scores, lengths, k=6)
    assert isinstance(found, Tensor)
    return found


def slots(scores: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    i = selected(scores, lengths)
    pages = table.gather(1, (i // BLOCK).clamp_min(0).long())
    return torch.where(i >= 0, pages * BLOCK + i % BLOCK, -1)


def unclamped(scores: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    """Only for rows that are full."""
    i = selected(scores, lengths)
    return torch.where(i > -1, table.gather(1, (i // BLOCK).long()) * BLOCK + i % BLOCK, -1)


def used_otherwise(scores: Tensor, lengths: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    i = selected(scores, lengths)
    pages = table.gather(1, (i // BLOCK).clamp_min(0).long())
    return torch.where(i >= 0, pages * BLOCK + i % BLOCK, -1), i * 2


def of_another_block(scores: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    i = selected(scores, lengths)
    pages = table.gather(1, (i // BLOCK).clamp_min(0).long())
    return torch.where(i >= 0, pages * BLOCK + i % (BLOCK + 1), -1)


def with_another_filler(scores: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    i = selected(scores, lengths)
    pages = table.gather(1, (i // BLOCK).clamp_min(0).long())
    return torch.where(i >= 0, pages * BLOCK + i % BLOCK, 0)


def the_pages_alone(scores: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
    i = selected(scores, lengths)
    return torch.where(i >= 0, table.gather(1, (i // BLOCK).clamp_min(0).long()), -1)


def with_the_mask_used_otherwise(scores: Tensor, lengths: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    i = selected(scores, lengths)
    found = i >= 0
    pages = table.gather(1, (i // BLOCK).clamp_min(0).long())
    return torch.where(found, pages * BLOCK + i % BLOCK, -1), found.sum(1)


def folded(function: Function, lengths: list[int], pages: Tensor | None = None) -> int:
    """How many lookups the pass folds; the graph must go on computing the same."""
    torch.manual_seed(0)
    if pages is None:
        pages = torch.randperm(12, dtype=torch.int32).view(2, 6)
    given = torch.randn(2, 24), torch.tensor(lengths, dtype=torch.int32), pages
    captured = capture(function, given)
    gm = captured.graphs[0]
    expected = gm(*captured.inputs[0])
    context = PassContext()
    CanonicalizePass().run(gm, context)
    count = PageSlotsPass().run(gm, context).count
    gm.graph.lint()
    gm.recompile()
    for a, b in zip(gm(*captured.inputs[0]), expected, strict=True):
        assert torch.equal(a, b)
    return count


@pytest.mark.parametrize(("function", "lengths"), [(slots, [24, 3]), (slots, [0, 6]), (unclamped, [24, 9])])
def test_folded(function: Function, lengths: list[int]) -> None:
    assert folded(function, lengths) == 1


@pytest.mark.parametrize(
    "function",
    [used_otherwise, of_another_block, with_another_filler, the_pages_alone, with_the_mask_used_otherwise],
)
def test_left_alone(function: Function) -> None:
    assert folded(function, [24, 3]) == 0


TABLES = {
    "more rows": torch.arange(24, dtype=torch.int32).view(4, 6),
    "another stride": torch.arange(12, dtype=torch.int32).view(6, 2).T,
    "fewer places": torch.arange(4, dtype=torch.int32).view(2, 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_the_operator_does_not_take(name: str) -> None:
    assert folded(slots, [8, 3], TABLES[name]) == 0


def test_a_table_that_is_written_before_it_is_read() -> None:
    captured = capture(
        slots, (torch.randn(2, 24), torch.tensor([24, 3]).int(), torch.arange(12).int().view(2, 6))
    )
    gm = captured.graphs[0]
    (gather,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.gather.default)
    with gm.graph.inserting_before(gather):
        gm.graph.call_function(torch.ops.aten.fill_.Scalar, (gather.args[0], 1))
    assert PageSlotsPass().run(gm, PassContext()).count == 0
