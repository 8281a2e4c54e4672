"""``block_linear``: the kernel against its reference, for any dimensions and strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.codegen.interpreter import interpreting
from kernelweld.errors import BadOperand
from kernelweld.kernels.block_linear import Tiling, block_linear, kernel, reference

E4M3 = torch.float8_e4m3fn
Tensor = torch.Tensor


def case(rows: int, columns: int, depth: int, device: str = "cpu") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * columns + depth)
    blocks = -(-columns // 128), -(-depth // 128)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tensors = (
        (random(rows, depth) * 50).to(E4M3),
        random(rows, blocks[1]).exp() / 64,
        (random(columns, depth) * 50).to(E4M3),
        random(*blocks).exp() / 64,
    )
    return tuple(x.to(device) for x in tensors)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Sums of exact products in another order, rounded once."""
    assert actual.dtype == dtype
    size = float(expected.float().abs().amax()) if expected.numel() else 1.0
    bound = size * max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 40, 256), (3, 200, 300), (17, 33, 128), (0, 8, 128), (70, 129, 100)])
def test_kernel(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    tensors = case(*shape)
    assert_close(kernel(*tensors, dtype=dtype), reference(*tensors, dtype=dtype), dtype)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 20), st.integers(1, 150), st.integers(1, 300))
def test_any_dimensions(rows: int, columns: int, depth: int) -> None:
    tensors = case(rows, columns, depth)
    assert_close(
        kernel(*tensors, dtype=torch.float32), reference(*tensors, dtype=torch.float32), torch.float32
    )


def test_operands_of_any_strides() -> None:
    codes, scales, weight, weight_scales = case(5, 64, 256)
    wide = torch.zeros(5, 600, dtype=torch.uint8)
    wide[:, 100:356] = codes.view(torch.uint8)
    column_major = scales.T.contiguous().T
    expected = reference(codes, scales, weight, weight_scales, dtype=torch.float32)
    seen = wide.view(E4M3)[:, 100:356]
    assert_close(
        kernel(seen, column_major, weight, weight_scales, dtype=torch.float32), expected, torch.float32
    )


def test_a_row_has_the_same_bits_in_every_tiling_of_few_rows() -> None:
    tensors = case(2, 48, 384)
    one, other = (kernel(*tensors, dtype=torch.float32, tiling=Tiling(16, c, 4, 2)) for c in (16, 32))
    assert torch.equal(one, other)


def test_the_operator_is_the_reference_without_a_gpu() -> None:
    tensors = case(3, 40, 200)
    actual = block_linear(*tensors, dtype=torch.bfloat16)
    assert isinstance(actual, Tensor)
    assert torch.equal(actual, reference(*tensors, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (0, torch.zeros(3, 200), "float32 as 'codes'"),
        (1, torch.zeros(3, 1), "shape [3, 1] as 'scales'"),
        (3, torch.zeros(2, 2), "shape [2, 2] as 'weight_scales'"),
    ],
)
def test_refused(place: int, bad: Tensor, message: str) -> None:
    tensors = list(case(3, 40, 200))
    tensors[place] = bad
    with pytest.raises(BadOperand) as raised:
        block_linear(*tensors, dtype=torch.bfloat16)
    assert message in str(raised.value)


@pytest.mark.gpu
@pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
@pytest.mark.parametrize("rows", [1, 16, 64, 300])
@pytest.mark.parametrize("shape", [(2112, 7168), (7168, 2048), (1000, 1536)])
def test_on_a_gpu(rows: int, shape: tuple[int, int]) -> None:
    tensors = case(rows, *shape, "cuda")
    actual = block_linear(*tensors, dtype=torch.bfloat16)
    assert isinstance(actual, Tensor)
    assert_close(actual, reference(*tensors, dtype=torch.bfloat16), torch.bfloat16)
