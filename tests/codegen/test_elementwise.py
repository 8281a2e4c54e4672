"""Nameless elementwise operations and reductions against eager torch on the same dtypes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.codegen.emitters.elementwise import GENERATED
from kernelweld.codegen.task import Elementwise, Reduce, TaskStep, Value
from kernelweld.errors import CodegenFailed
from kernelweld.ir.pointwise import POINTWISE
from kernelweld.ir.row_reduce import ROW_REDUCE

bf16, f16, f32, i64, i32 = torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.int32
quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "codegen")))

UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "relu", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
SCALAR = ("add", "sub", "mul", "div", "clamp_min", "clamp_max")
#: Operations whose float32 result is not rounded correctly in one of the two implementations: ulps of slack.
INEXACT = {
    "exp": 3.0,
    "log": 3.0,
    "sin": 2.0,
    "cos": 2.0,
    "tanh": 3.0,
    "sigmoid": 3.0,
    "rsqrt": 1.0,
    "sqrt": 1.0,
}

Values = Mapping[str, Value]


def eager(name: str, *arguments: Any) -> torch.Tensor:
    """The ATen operation of that name, in its scalar form when the last argument is a number."""
    names = ["Scalar", "default"] if isinstance(arguments[-1], (int, float)) else ["Tensor", "default"]
    ops = {op._overloadname: op for op, known in POINTWISE.items() if known == name}
    op = next(ops[n] for n in names if n in ops)
    result = op(*arguments)
    assert isinstance(result, torch.Tensor)
    return result


def run(lab: Any, name: str, *arguments: Any, out: torch.dtype) -> torch.Tensor:
    inputs = {f"in{i}": a for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
    shape = torch.broadcast_shapes(*(t.shape for t in inputs.values()))
    outputs = {"y": torch.empty(shape, dtype=out)}

    def steps(v: Values) -> Sequence[TaskStep]:
        ins = tuple(v[f"in{i}"] if isinstance(a, torch.Tensor) else a for i, a in enumerate(arguments))
        return (Elementwise(v["y"], name, ins),)

    lab.run(steps, inputs, outputs, shape[:-1])
    return outputs["y"]


def test_every_operation_that_a_weld_can_hold_is_generated() -> None:
    assert set(POINTWISE.values()) == GENERATED


def close(actual: torch.Tensor, expected: torch.Tensor, slack: float) -> None:
    if slack == 0 or actual.dtype != f32:
        rtol = 0.0 if slack == 0 else torch.finfo(actual.dtype).eps
    else:
        rtol = slack * torch.finfo(f32).eps
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-30 if slack else 0, equal_nan=True)


def values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    x = torch.randn(*shape) * 2
    if x.numel() > 4:
        x.view(-1)[:4] = torch.tensor([0.0, float("inf"), float("-inf"), float("nan")])
    return x.to(dtype)


shapes = st.tuples(st.integers(0, 3), st.integers(1, 300))
dtypes = st.sampled_from([bf16, f16, f32])


@pytest.mark.parametrize("name", UNARY)
@quick
@given(shape=shapes, dtype=dtypes, seed=st.integers(0, 999))
def test_unary(lab: Any, name: str, shape: tuple[int, int], dtype: Any, seed: int) -> None:
    x = values(shape, dtype, seed)
    expected = eager(name, x)
    close(run(lab, name, x, out=dtype), expected, INEXACT.get(name, 0.0))


@pytest.mark.parametrize("name", BINARY)
@quick
@given(shape=shapes, dtypes=st.tuples(dtypes, dtypes), column=st.booleans(), seed=st.integers(0, 999))
def test_binary_with_promotion_and_columns(
    lab: Any, name: str, shape: tuple[int, int], dtypes: Any, column: bool, seed: int
) -> None:
    x = values(shape, dtypes[0], seed)
    y = values((shape[0], 1 if column else shape[1]), dtypes[1], seed + 1)
    expected = eager(name, x, y)
    close(run(lab, name, x, y, out=expected.dtype), expected, 0.0)


@pytest.mark.parametrize("name", SCALAR)
@quick
@given(
    shape=shapes,
    dtype=dtypes,
    scalar=st.sampled_from([0.0, 1, -2, 1e-6, 1.3466, 0.044715]),
    seed=st.integers(0, 99),
)
def test_python_scalars(
    lab: Any, name: str, shape: tuple[int, int], dtype: Any, scalar: float, seed: int
) -> None:
    x = values(shape, dtype, seed)
    # the scalar stays in float32, as on CUDA; torch's CPU add first rounds it to the dtype of the tensor
    wide = name in ("add", "sub") and dtype != f32
    expected = eager(name, x.float(), scalar).to(dtype) if wide else eager(name, x, scalar)
    # torch divides by a scalar as a product with its reciprocal on some paths
    close(run(lab, name, x, scalar, out=dtype), expected, 1.0 if name == "div" else 0.0)


def test_equal_numbers_of_different_meaning_are_different_kernels(lab: Any) -> None:
    x = torch.ones(1, 4)
    assert not run(lab, "mul", x, 0.0, out=f32).signbit().any()
    assert run(lab, "mul", x, -0.0, out=f32).signbit().all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_integers_stay_integers(lab: Any, name: str) -> None:
    x, y = torch.randint(-(2**40), 2**40, (3, 5)), torch.randint(-9, 9, (3, 5))
    assert torch.equal(run(lab, name, x, y, out=i64), eager(name, x, y))
    assert torch.equal(run(lab, name, x, y.int(), out=i64), eager(name, x, y.int()))


@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_integers_join_floats_as_torch_promotes_them(lab: Any, name: str, dtype: torch.dtype) -> None:
    positions, x = torch.arange(1, 601).view(3, -1), torch.randn(3, 1).to(dtype) + 4
    expected = eager(name, positions, x)
    assert torch.equal(run(lab, name, positions, x, out=expected.dtype), expected)


def test_integers_divide_into_floats(lab: Any) -> None:
    x, y = torch.arange(1, 31).view(3, 10), torch.randint(1, 9, (3, 10))
    assert torch.equal(run(lab, "div", x, y, out=f32), x / y)


@pytest.mark.parametrize("source", [bf16, f16, f32, i64, i32])
@pytest.mark.parametrize("target", [bf16, f16, f32, i64, i32])
def test_casts(lab: Any, source: torch.dtype, target: torch.dtype) -> None:
    x = (torch.randn(3, 70) * 300).to(source)
    assert torch.equal(run(lab, "cast", x, out=target), x.to(target))


def test_an_integer_result_of_a_float_operation_is_refused(lab: Any) -> None:
    with pytest.raises(CodegenFailed, match="`exp` is not generated for integer results"):
        run(lab, "exp", torch.zeros(2, 3, dtype=i64), out=i64)


def test_widths_that_do_not_broadcast_are_refused(lab: Any) -> None:
    y = torch.empty(2, 6)
    with pytest.raises(CodegenFailed, match="`in0` of width 3 does not broadcast to 6"):
        lab.run(
            lambda v: (Elementwise(v["y"], "neg", (v["in0"],)),), {"in0": torch.zeros(2, 3)}, {"y": y}, (2,)
        )


def test_a_column_broadcast_to_a_row(lab: Any) -> None:
    x, y = torch.randn(3, 1), torch.empty(3, 50)
    lab.run(lambda v: (Elementwise(v["y"], "neg", (v["x"],)),), {"x": x}, {"y": y}, (3,))
    assert torch.equal(y, (-x).expand(3, 50))


@pytest.mark.parametrize("name", sorted(set(ROW_REDUCE.values())))
@quick
@given(shape=st.tuples(st.integers(0, 3), st.integers(1, 3000)), dtype=dtypes, seed=st.integers(0, 999))
def test_reductions(lab: Any, name: str, shape: tuple[int, int], dtype: Any, seed: int) -> None:
    torch.manual_seed(seed)
    x = (torch.randn(*shape) + 3).to(dtype)
    y = torch.empty(shape[0], 1, dtype=dtype)
    lab.run(lambda v: (Reduce(v["y"], name, v["x"]),), {"x": x}, {"y": y}, shape[:1])
    op = next(op for op, known in ROW_REDUCE.items() if known == name)
    expected = op(x.double() if name in ("sum", "mean") else x, [-1], True)
    tolerance = 0.0 if name in ("amax", "amin") else max(2 * torch.finfo(dtype).eps / 2, 2e-6)
    torch.testing.assert_close(y, expected.to(dtype), rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", sorted(set(ROW_REDUCE.values())))
@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_reductions_of_special_values(lab: Any, name: str, special: float) -> None:
    x = torch.randn(4, 37)
    x[1, 36] = special
    y = torch.empty(4, 1)
    lab.run(lambda v: (Reduce(v["y"], name, v["x"]),), {"x": x}, {"y": y}, (4,))
    op = next(op for op, known in ROW_REDUCE.items() if known == name)
    torch.testing.assert_close(y, op(x, [-1], True), equal_nan=True)


@pytest.mark.parametrize("name", sorted(set(ROW_REDUCE.values())))
def test_reductions_over_heads(lab: Any, name: str) -> None:
    x, y = torch.randn(4, 3, 21) - 5, torch.empty(4, 3, 1)
    lab.run(lambda v: (Reduce(v["y"], name, v["x"], over_heads=True),), {"x": x}, {"y": y}, (4,), heads=3)
    op = next(op for op, known in ROW_REDUCE.items() if known == name)
    torch.testing.assert_close(y, op(x.flatten(1), [-1], True)[:, None].expand(4, 3, 1))


def test_padding_never_enters_a_reduction(lab: Any) -> None:
    """exp of the zero padding is one; the sum of 33 elements must not see the other 31."""
    x, y, e = torch.randn(2, 33), torch.empty(2, 1), Value("e", 33, f32)
    steps = lambda v: (Elementwise(e, "exp", (v["x"],)), Reduce(v["y"], "sum", e))  # noqa: E731
    lab.run(steps, {"x": x}, {"y": y}, (2,))
    torch.testing.assert_close(y, x.exp().sum(-1, keepdim=True))
