"""A copy that is made for a weld alone is not made: the weld reads what it is a copy of, by its strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional as F

import kernelweld
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline

Tensor = torch.Tensor
CLONE = torch.ops.aten.clone.default
T, H, N = 5, 4, 16


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def gated_by_a_part(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    """The gate is a part of a wider projection, made contiguous and seen as one row a head."""
    z = projected[:, H * N :].view(T, H, N).contiguous().view(T * H, N)
    return norm(x.reshape(T * H, N), w) * F.silu(z)


def of_a_part(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    return norm(projected[:, H * N :].view(T, H, N).contiguous().view(T * H, N), w)


def of_turned_heads(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    return norm(x.view(T, H, N).transpose(0, 1).contiguous().view(H * T, N), w)


def of_rows_that_are_joined(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    """Rows of the copy are two rows of what it copies, apart in memory."""
    wide = torch.cat([w, w])
    return norm(projected[:, H * N :].view(T, H, N).contiguous().view(T * H // 2, 2 * N), wide)


READ_AT_ONCE = [gated_by_a_part, of_a_part, of_turned_heads]


def pairs(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    """Each value twice, as tables of an interleaved rotation have it: rows of the copy are longer."""
    twice = projected[:, : N // 2, None].expand(T, N // 2, 2).contiguous().view(T, N)
    return norm(x.view(T, H, N)[:, 0], w) * twice


def written_later(x: Tensor, projected: Tensor, w: Tensor) -> Tensor:
    """The copy may be of what was there before."""
    y = norm(projected[:, H * N :].view(T, H, N).contiguous().view(T * H, N), w)
    projected.mul_(2.0)
    return y


def kept_as_well(x: Tensor, projected: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    z = projected[:, H * N :].view(T, H, N).contiguous()
    return norm(z.view(T * H, N), w), z


def inputs() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes: Sequence[tuple[int, ...]] = ((T, H * N), (T, 2 * H * N), (N,))
    return tuple(torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes)


def copies(function: Callable[..., object]) -> int:
    gm = capture(function, inputs()).graphs[0]
    text = "canonicalize,raise,plan{keep-all=true},verify-welds{strict=true},lower{target=triton}"
    plan = Pipeline.from_text(text, strict=True).run(gm).context.plan
    assert plan is not None and len(plan.welds) == 1
    return len(gm.graph.find_nodes(op="call_function", target=CLONE))


@pytest.mark.parametrize("function", READ_AT_ONCE)
def test_read_at_once(function: Callable[..., object]) -> None:
    assert copies(function) == 0


@pytest.mark.parametrize("function", [kept_as_well, pairs, of_rows_that_are_joined, written_later])
def test_a_copy_of_other_rows_or_that_others_read_is_made(function: Callable[..., object]) -> None:
    assert copies(function) > 0


@pytest.mark.parametrize("function", [*READ_AT_ONCE, kept_as_well, pairs, of_rows_that_are_joined])
def test_values_and_strides(function: Callable[..., object]) -> None:
    torch._dynamo.reset()
    options = {"pipeline": "canonicalize,raise,plan{keep-all=true},verify-welds,lower"}
    with torch.no_grad():
        expected = function(*inputs())
        actual = kernelweld.fuse(function, backend="interpret", strict=True, options=options)(*inputs())
    torch.testing.assert_close(actual, expected, check_stride=True, rtol=2**-7, atol=1e-6)
