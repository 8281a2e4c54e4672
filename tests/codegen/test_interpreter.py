"""The interpreter's casts, which round wrong on their own and exactly under ``exact_casts``."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from kernelweld.codegen.interpreter import exact_casts, interpreting

NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@triton.jit
def copy(source, target, n, block: tl.constexpr):  # noqa: ANN001, ANN201
    lane = tl.arange(0, block)
    value = tl.load(source + lane, mask=lane < n)
    tl.store(target + lane, value.to(target.dtype.element_ty), mask=lane < n)


def copied(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.empty(source.shape, dtype=dtype)
    copy[(1,)](source, target, source.numel(), block=triton.next_power_of_2(source.numel()))
    return target


def corner_cases() -> torch.Tensor:
    torch.manual_seed(0)
    fixed = torch.tensor(
        [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-9, 1e-40, -1e-8, 65504.0, float("inf"), float("nan")]
    )
    return torch.cat([fixed, torch.randn(500), torch.randn(200) * 300])


def test_this_process_interprets() -> None:
    assert interpreting()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrowing_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    x = corner_cases()
    x = x if dtype in NARROW[:2] else x.clamp(-448, 448)
    with exact_casts():
        actual = copied(x, dtype)
    assert torch.equal(actual.float().nan_to_num(7.0), x.to(dtype).float().nan_to_num(7.0))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_widening_is_exact(dtype: torch.dtype) -> None:
    x = torch.randn(300).to(dtype)
    with exact_casts():
        assert torch.equal(copied(x, torch.float32), x.float())


def test_e4m3_saturates_as_hardware_does() -> None:
    with exact_casts():
        actual = copied(torch.tensor([1e6, -1e6, 450.0]), torch.float8_e4m3fn)
    assert actual.float().tolist() == [448.0, -448.0, 448.0]


def test_without_it_the_interpreter_truncates_and_afterwards_it_does_again() -> None:
    x = torch.tensor([1 + 2**-8 + 2**-9])
    original = interpreter._convert_float
    with exact_casts():
        assert copied(x, torch.bfloat16).item() == 1 + 2**-7
    assert interpreter._convert_float is original


def test_nesting_restores_in_order() -> None:
    original = interpreter._convert_float
    with exact_casts():
        outer = interpreter._convert_float
        with exact_casts():
            pass
        assert interpreter._convert_float is outer
    assert interpreter._convert_float is original


def test_an_error_inside_restores_too() -> None:
    original = interpreter._convert_float
    with pytest.raises(ZeroDivisionError), exact_casts():
        raise ZeroDivisionError
    assert interpreter._convert_float is original
