"""Programs that the fuzzer found to go wrong once, as small as it made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from graphfuzz.oracle import Settings, check
from torch import Tensor

Random = Callable[..., Tensor]


@dataclass(frozen=True)
class Found:
    """A program, and its inputs from a function that returns random numbers of a shape."""

    program: Callable[..., tuple[Tensor, ...]]
    inputs: Callable[[Random], list[Tensor]]
    meant: Counter[str] = field(default_factory=lambda: Counter(rms_norm=9, rope=9))

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        return self.program

    def tensors(self, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return self.inputs(lambda *shape: torch.randn(shape, generator=generator))


def norm_over_one_element_of_a_tile(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """The norm is over a dimension of size 1, the tile of the rotation before it is another dimension."""
    y = x * cos + torch.cat([x[..., 32:], x[..., :32]], -1) * sin
    y = y.reshape(2, 2, 64, 1).transpose(-3, -2)
    return ((y / y.pow(2).sum(-1, keepdim=True).sqrt()).flatten(-2),)


def layer_norm_of_no_elements(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (F.layer_norm(x, (0,), w),)


def column_in_padded_lanes(x: Tensor) -> tuple[Tensor, ...]:
    """The lanes from 80 to 127 hold minus the mean after the subtraction, not zeros."""
    y = (x - x.sum(-1).unsqueeze(-1) / 80).float()
    return ((y / y.square().sum(-1, keepdim=True).sqrt()).to(x.dtype),)


def sum_with_its_transpose(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Both dimensions of 2 are rows of the same value: they must not become one row."""
    y = F.rms_norm(x, (96,))
    y = (y + y.transpose(0, 1)).reshape(2, 2, 24, 4)
    return (y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin,)


def two_rotations_cut_at_odd_places(x: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
    """Pairs of 256 elements and halves of 31 fall into more pieces than a kernel holds."""
    even, odd, cos, sin = x[..., :256:2], x[..., 1:256:2], *tables[:2]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    y = torch.cat([turned, x[..., 256:]], -1)
    left, right, cos, sin = y[..., :31], y[..., 31:62], *tables[2:]
    return (torch.cat([left * cos - right * sin, right * cos + left * sin, y[..., 62:]], -1),)


FOUND = [
    Found(norm_over_one_element_of_a_tile, lambda r: [r(2, 2, 64), r(2, 1, 64), r(2, 1, 64)]),
    Found(layer_norm_of_no_elements, lambda r: [r(2, 1, 0), r(0)]),
    Found(column_in_padded_lanes, lambda r: [r(80, 2).half().T]),
    Found(sum_with_its_transpose, lambda r: [r(2, 2, 96), r(2, 2, 1, 4), r(2, 2, 1, 4)]),
    Found(two_rotations_cut_at_odd_places, lambda r: [r(5, 257), r(5, 128), r(5, 128), r(5, 31), r(5, 31)]),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.program.__name__)
@pytest.mark.parametrize("joint", [False, True], ids=["as traced", "after Inductor"])
def test_found(found: Found, joint: bool) -> None:
    outcome = check(found, 0, Settings(joint=joint))
    assert outcome.failure is None, outcome.failure
