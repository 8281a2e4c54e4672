"""What users do to packed linears behind a compiled model's back: never a stale weight, never a crash."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import kernelweld

WIDTH = 8


class Attention(nn.Module):
    """Three sibling projections of one width."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x) + self.k(x) * self.v(x)


class Head(nn.Module):
    """Two of the projections of an attention, as another module sees them."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.q, self.k = attention.q, attention.k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x) + self.k(x)


@pytest.fixture
def x() -> torch.Tensor:
    torch._dynamo.reset()
    return torch.randn(2, WIDTH)


def transpose_data(m: Attention) -> None:
    m.q.weight.data = m.q.weight.data.t()


def transpose_in_place(m: Attention) -> None:
    m.q.weight.t_()


def expand_bias(m: Attention) -> None:
    m.q.bias.data = m.q.bias.data[:1].expand(WIDTH)


@pytest.mark.parametrize("change", [transpose_data, transpose_in_place, expand_bias])
def test_other_strides_at_the_same_address(x: torch.Tensor, change: Callable[[Attention], None]) -> None:
    model = kernelweld.fuse(Attention(), backend="eager", strict=True)
    plain = Attention()
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))
        change(model)
        change(plain)
        torch.testing.assert_close(model(x), plain(x))


def test_a_copy_of_a_model_with_a_compiled_linear_computes_with_its_own_weights(x: torch.Tensor) -> None:
    model = Attention()
    model.q.compile(backend="eager")
    kernelweld.fuse(model, backend="eager", strict=True)
    with torch.no_grad():
        model(x)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            for parameter in copied.q.parameters():
                parameter.zero_()
            torch.testing.assert_close(copied(x), copied.k(x) * copied.v(x))


def test_two_fused_modules_that_share_linears(x: torch.Tensor) -> None:
    attention = Attention()
    head = Head(attention)
    with torch.no_grad():
        expected, expected_head = attention(x), head(x)
        kernelweld.fuse(attention, backend="eager", strict=True)
        attention(x)
        kernelweld.fuse(head, backend="eager", strict=True)
        for _ in range(2):
            torch.testing.assert_close(head(x), expected_head)
            torch.testing.assert_close(attention(x), expected)
