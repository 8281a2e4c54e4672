"""Scales and codes have the reference's bits: drawn shapes and dtypes, and rows that are hard to quantize."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelweld.codegen.emit import emit
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.task import Apply, TaskStep, Value
from kernelweld.ir import Quant, QuantScale

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
E4M3 = torch.float8_e4m3fn

quick = settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "codegen")))
widths = st.one_of(st.integers(1, 300), st.sampled_from([64, 128, 576, 1536, 7168]))

SCHEMES: Mapping[str, tuple[QuantScale, Quant]] = {
    "e4m3": (QuantScale(448.0), Quant(-448.0, 448.0)),
    "e4m3 floor of amax": (QuantScale(448.0, 1e-10, "amax"), Quant(-448.0, 448.0)),
    "e4m3 floor of scale": (QuantScale(448.0, 1 / (448 * 512), "scale"), Quant(-448.0, 448.0, "reciprocal")),
    "e4m3 times inverse": (QuantScale(448.0, 1e-4, "amax", inverse_limit=True), Quant(-448.0, 448.0)),
    "e4m3 ue8m0": (QuantScale(448.0, 1e-10, "amax", format="ue8m0"), Quant(-448.0, 448.0)),
    "int8": (QuantScale(127.0, 1e-7, "scale"), Quant(-128.0, 127.0, dtype=torch.int8)),
    "int8 symmetric": (QuantScale(127.0), Quant(-127.0, 127.0, "reciprocal", torch.int8)),
}


INTERPRETED = pytest.mark.skipif(not interpreting(), reason="kernels are compiled here")
COMPILED = pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
DEVICES = [
    pytest.param("cpu", marks=INTERPRETED),
    pytest.param("cuda", marks=[pytest.mark.gpu, COMPILED]),
]


def quantized(
    lab: Any, scheme: str, x: torch.Tensor, upper: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and codes of ``x [rows, width]`` from one generated kernel."""
    scale_word, code_word = SCHEMES[scheme]
    inputs = {"x": x} if upper is None else {"x": x, "upper": upper}
    outputs = {
        "scale": torch.full((*x.shape[:-1], 1), -7.0, device=x.device),
        "codes": torch.zeros(x.shape, dtype=code_word.dtype, device=x.device),
    }

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (
            Apply((v["scale"],), scale_word, (v["x"], v.get("upper"))),
            Apply((v["codes"],), code_word, (v["x"], v["scale"])),
        )

    lab.run(steps, inputs, outputs, tuple(x.shape[:-1]))
    return outputs["scale"], outputs["codes"]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 4: torch.int32}[x.element_size()])


def check(lab: Any, scheme: str, x: torch.Tensor, upper: torch.Tensor | None = None) -> None:
    """Numbers have the reference's bits; what is not a number, or has no code in int8, is left out."""
    scale_word, code_word = SCHEMES[scheme]
    scale, codes = quantized(lab, scheme, x, upper)
    expected_scale = scale_word.reference(x, upper)
    expected = code_word.reference(x, expected_scale)
    number = ~expected_scale.isnan()
    assert torch.equal(scale.isnan(), expected_scale.isnan())
    assert torch.equal(bits(scale)[number], bits(expected_scale)[number])
    if code_word.dtype == E4M3:
        assert torch.equal(codes.float().isnan(), expected.float().isnan())
    exists = ~(x.float() / expected_scale).isnan()
    assert torch.equal(bits(codes)[exists], bits(expected)[exists])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scheme", SCHEMES)
@quick
@given(
    rows=st.integers(0, 5),
    width=widths,
    dtype=st.sampled_from([bf16, f16, f32]),
    exponent=st.integers(-12, 4),
    seed=st.integers(0, 2**16),
)
def test_drawn_rows(
    lab: Any, device: str, scheme: str, rows: int, width: int, dtype: torch.dtype, exponent: int, seed: int
) -> None:
    torch.manual_seed(seed)
    check(lab, scheme, (torch.randn(rows, width) * 2.0**exponent).to(dtype).to(device))


def hard_rows(dtype: torch.dtype) -> torch.Tensor:
    """One row each: zeros, powers of two and their neighbours as largest magnitude, subnormals, infinities,
    NaN.
    """
    torch.manual_seed(0)
    largest = [0.0, 448.0, 448 * 2.0**-9, 448 * 2.0**3, 1.0, 127.0, 127 * 2.0**-6, 240.0, 1e-30]
    tiny = float(torch.finfo(dtype).smallest_normal) / 8
    largest += [tiny, -448.0, float("inf"), float("-inf"), float("nan")]
    rows = (torch.rand(len(largest), 128) * 2 - 1) * torch.tensor(largest)[:, None].nan_to_num(1.0, 1.0, 1.0)
    rows[:, 77] = torch.tensor(largest)
    return rows.to(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_hard_rows(lab: Any, device: str, scheme: str, dtype: torch.dtype) -> None:
    check(lab, scheme, hard_rows(dtype).to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("upper", [0.5, 1e6])
def test_an_upper_bound_cuts_the_scale_and_saturates_the_codes(lab: Any, device: str, upper: float) -> None:
    x = torch.randn(7, 576, device=device).to(bf16)
    check(lab, "e4m3 floor of scale", x, torch.tensor([upper], device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_every_code_is_reached_and_ties_go_to_even(lab: Any, device: str) -> None:
    """A scale of one: values on all codes of e4m3 and half-way between neighbours."""
    codes = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    between = (codes[1:] + codes[:-1]) / 2
    row = torch.cat([codes, -codes, between, -between]).to(device)[None]
    check(lab, "e4m3", row)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("scheme", ["e4m3 floor of amax", "int8"])
def test_values_beside_ties(lab: Any, device: str, scheme: str, dtype: torch.dtype) -> None:
    """Rows of any scale whose elements lie as near to the ties of codes as their type allows."""
    torch.manual_seed(1)
    limit = SCHEMES[scheme][0].limit
    largest = (torch.rand(64, 1) + 0.5) * 2.0 ** torch.randint(-6, 6, (64, 1))
    largest = largest.to(dtype).double()
    codes = torch.arange(127, dtype=torch.uint8).view(E4M3).double() if limit == 448 else torch.arange(127.0)
    ties = (codes[1:] + codes[:-1]).double() / 2
    rows = torch.cat([ties, -ties]) * (largest.float() / limit).double()
    check(lab, scheme, torch.cat([largest, rows], -1).to(dtype).to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, pytest.param(f16, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("scheme", ["e4m3 floor of amax", "e4m3 ue8m0", "int8"])
def test_all_values_under_all_largest_magnitudes(
    lab: Any, device: str, scheme: str, dtype: torch.dtype
) -> None:
    """Every significand of the dtype as a row's largest magnitude, over all significands of 14 exponents."""
    if dtype == f16 and device == "cpu":
        pytest.skip("a hundred times as many values: on a GPU only")
    steps = {bf16: 128, f16: 1024}[dtype]
    significands = 1 + torch.arange(steps) / steps
    values = torch.cat([significands * 2.0**-exponent for exponent in range(14)])
    largest = significands[:, None]
    rows = torch.where(values <= largest, values, 0.0)
    for block in torch.cat([largest, rows, -rows], -1).split(256):
        check(lab, scheme, block.to(dtype).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_products_with_an_own_scale_are_clamped(lab: Any, device: str) -> None:
    x = (torch.randn(5, 128) * 1e4).to(bf16).to(device)
    scale_word, code_word = QuantScale(448.0, 1e-10, "amax"), Quant(-448.0, 448.0, "multiply")
    outputs = {
        "scale": torch.zeros(5, 1, device=device),
        "codes": torch.zeros(5, 128, dtype=E4M3, device=device),
    }

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (
            Apply((v["scale"],), scale_word, (v["x"], None)),
            Apply((v["codes"],), code_word, (v["x"], v["scale"])),
        )

    task = lab.task(steps, {"x": x}, outputs, (5,))
    assert "tl.minimum" in emit(lab.program({"x": x, **outputs}, tuple(outputs), task)).source
    lab.run(steps, {"x": x}, outputs, (5,))
    assert torch.equal(bits(outputs["codes"]), bits(code_word.reference(x, scale_word.reference(x, None))))


@pytest.mark.parametrize("limit", [448.0, 240.0, 57344.0, 127.0])
def test_magnitudes_are_divided_exactly_by_three_operations(limit: float) -> None:
    """The helper ``divided`` on all significands: its products are exact in float64, and so rounded once."""
    x = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32).view(f32)
    by, inverse = torch.tensor(limit), torch.tensor(1.0) / limit
    near = x * inverse
    rest = x.double() - near.double() * by.double()
    assert torch.equal(rest, rest.float().double())
    assert torch.equal((near.double() + rest * inverse.double()).float(), x / by)


def test_a_floor_whose_reciprocal_may_be_off_is_divided(lab: Any) -> None:
    ones = 2.0**-10 - 2.0**-34
    scale_word = QuantScale(448.0, ones, "scale")
    outputs = {"scale": torch.zeros(2, 1)}

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (Apply((v["scale"],), scale_word, (v["x"], None)),)

    inputs = {"x": torch.randn(2, 128)}
    task = lab.task(steps, inputs, outputs, (2,))
    assert "tl.div_rn" in emit(lab.program({**inputs, **outputs}, tuple(outputs), task)).source
    lab.run(steps, inputs, outputs, (2,))
    assert torch.equal(outputs["scale"], scale_word.reference(inputs["x"], None))


def test_codes_are_stored_as_values_are_loaded(lab: Any) -> None:
    assert "tl.max_contiguous(lane_128, [1, 8])" in source_of(lab, "e4m3", bf16)
    assert "tl.max_contiguous(lane_128, [1, 4])" in source_of(lab, "e4m3", f32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("operation", ["divide", "multiply", "reciprocal"])
@pytest.mark.parametrize("number", [0.3, -2.0, 1e-30, 3e38])
def test_a_number_as_scale(lab: Any, device: str, dtype: torch.dtype, operation: str, number: float) -> None:
    word = Quant(-448.0, 448.0, operation, number=number)
    x = hard_rows(dtype).to(device)
    outputs = {"codes": torch.zeros(x.shape, dtype=E4M3, device=device)}

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (Apply((v["codes"],), word, (v["x"], None)),)

    lab.run(steps, {"x": x}, outputs, tuple(x.shape[:-1]))
    expected = word.reference(x, None)
    number_rows = ~expected.float().isnan()
    assert torch.equal(outputs["codes"].float().isnan(), ~number_rows)
    assert torch.equal(bits(outputs["codes"])[number_rows], bits(expected)[number_rows])


def source_of(lab: Any, scheme: str, dtype: torch.dtype, own: bool = True) -> str:
    scale_word, code_word = SCHEMES[scheme]
    inputs = {"x": torch.randn(2, 128).to(dtype), **({} if own else {"given": torch.rand(2, 1)})}
    outputs = {"scale": torch.empty(2, 1), "codes": torch.empty(2, 128, dtype=code_word.dtype)}

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (
            Apply((v["scale"],), scale_word, (v["x"], None)),
            Apply((v["codes"],), code_word, (v["x"], v.get("given", v["scale"]))),
        )

    task = lab.task(steps, inputs, outputs, (2,))
    source = emit(lab.program({**inputs, **outputs}, tuple(outputs), task)).source
    return source[source.index("# quant{") :]


@pytest.mark.parametrize(
    ("dtype", "inverse", "steps"),
    [(bf16, "reciprocal(", 1), (f16, "reciprocal(", 1), (f32, "tl.div_rn(1.0, ", 2)],
    ids=str,
)
def test_one_reciprocal_serves_a_row(lab: Any, dtype: torch.dtype, inverse: str, steps: int) -> None:
    text = source_of(lab, "e4m3 floor of amax", dtype)
    assert text.count(inverse) == 1
    assert text.count("div_rn") == (dtype == f32)
    assert text.count("corrected(") == steps
    assert "tl.minimum" not in text  # nothing exceeds the largest code


def test_the_inverse_of_a_power_of_two_needs_no_correction(lab: Any) -> None:
    text = source_of(lab, "e4m3 ue8m0", f32)
    assert text.count("reciprocal(") == 1
    assert "div_rn" not in text and "corrected" not in text


@pytest.mark.parametrize(("scheme", "own"), [("e4m3", True), ("e4m3 floor of amax", False)])
def test_a_scale_that_may_be_any_number_divides_each_element(lab: Any, scheme: str, own: bool) -> None:
    text = source_of(lab, scheme, bf16, own)
    assert "corrected" not in text and "tl.div_rn(x_tile, " in text
    assert "tl.minimum" in text
