"""Codes of e2m1 have the reference's bits, of every number beside a tie; GPUs that can convert do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from kernelweld.codegen.crosscompile import compile_for
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.task import Apply, TaskStep, Value
from kernelweld.ir import E2M1, E4M3, QuantScale, RMSNorm

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
FP8 = torch.float8_e4m3fn
SCALE = QuantScale(6.0, inverse_limit=True, format="e4m3", low=-448.0, high=448.0)
BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

INTERPRETED = pytest.mark.skipif(not interpreting(), reason="kernels are compiled here")
COMPILED = pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
DEVICES = [
    pytest.param("cpu", marks=INTERPRETED),
    pytest.param("cuda", marks=[pytest.mark.gpu, COMPILED]),
]


def check(lab: Any, word: E2M1, x: torch.Tensor, scale: torch.Tensor, whole: torch.Tensor | None) -> None:
    """Codes of ``x [rows, block]`` with given scales have the reference's bits."""
    inputs = {"x": x, "scale": scale} | ({} if whole is None else {"whole": whole})
    codes = torch.full((*x.shape[:-1], x.shape[-1] // 2), 99, dtype=torch.uint8, device=x.device)

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        return (Apply((v["codes"],), word, (v["x"], v["scale"], v.get("whole"))),)

    lab.run(steps, inputs, {"codes": codes}, tuple(x.shape[:-1]))
    assert torch.equal(codes, word.reference(x, scale, whole))


def beside_ties() -> torch.Tensor:
    """Ties and codes with their neighbours in float32, of both signs, zeros, the smallest numbers and others
    that are none, in rows of 16.
    """
    numbers = torch.tensor([*BOUNDS, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 3e38, 1e-45, 1e-38, 0.0])
    bits = numbers.view(torch.int32)
    near = torch.cat([(bits + k).view(f32) for k in (-1, 0, 1)])
    others = torch.tensor([float("inf"), float("nan"), 6.5, 0.1])
    every = torch.cat([near, -near, others, -others])
    return torch.cat([every, every[: -len(every) % 16]]).view(-1, 16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", ["signed", "negative", "plain"])
def test_numbers_beside_ties(lab: Any, device: str, zeros: str) -> None:
    x = beside_ties().to(device)
    check(lab, E2M1("divide", zeros=zeros), x, torch.ones(x.shape[0], 1, device=device), None)


@pytest.mark.parametrize("device", DEVICES)
def test_every_float_of_16_bits_and_its_neighbours(lab: Any, device: str) -> None:
    high = torch.arange(-(2**15), 2**15, dtype=torch.int64)[:, None] * 2**16
    bits = (high + torch.tensor([0, 1, 2**16 - 1])).to(torch.int32).flatten()
    x = bits[: len(bits) // 16 * 16].view(f32).view(-1, 16).to(device)
    check(lab, E2M1("multiply"), x, torch.ones(x.shape[0], 1, device=device), None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("operation", ["divide", "multiply", "reciprocals", "quotient"])
def test_operations(lab: Any, device: str, dtype: torch.dtype, operation: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 16).to(dtype).to(device)
    scale = (torch.rand(70, 1) * 3).to(FP8).float().to(device)
    scale[3], scale[5] = 0.0, float("inf")
    word = E2M1(operation)
    for whole in (3.7, 1e-38, 0.0) if word.reads_tensor_scale else (None,):
        check(lab, word, x, scale, None if whole is None else torch.tensor([whole], device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [2, 16, 32, 48])
def test_blocks_of_any_even_size(lab: Any, device: str, block: int) -> None:
    x = torch.randn(9, block, device=device).to(bf16)
    check(lab, E2M1("divide", block), x, torch.rand(9, 1, device=device) + 0.1, None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_scales_of_e4m3(lab: Any, device: str, dtype: torch.dtype) -> None:
    largest = torch.tensor(
        [0.0, 1.0, 6.0, 448.0, 2688.0, 5.96, 1e-4, 2.0**-9, 3e38, float("inf"), float("nan")]
    )
    x = (torch.rand(len(largest), 16) * 2 - 1) * largest[:, None].nan_to_num(1.0, 1.0, 1.0)
    x[:, 7] = largest
    x = x.to(dtype).to(device)
    for number in (1.0, 3.7, 1e-3, 1e30):
        whole = torch.tensor([number], device=device)
        numbers = torch.zeros(x.shape[0], 1, dtype=FP8, device=device)

        def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
            scale = Value("given", 1, f32)
            return (
                Apply((scale,), SCALE, (v["x"], None, v["whole"])),
                Apply((v["numbers"],), E4M3(), (scale,)),
            )

        lab.run(steps, {"x": x, "whole": whole}, {"numbers": numbers}, (x.shape[0],))
        expected = E4M3().reference(SCALE.reference(x, None, whole))
        assert torch.equal(numbers.float().isnan(), expected.float().isnan())
        number_rows = ~expected.float().isnan()
        assert torch.equal(numbers.view(torch.uint8)[number_rows], expected.view(torch.uint8)[number_rows])


def quantized(lab: Any, width: int) -> Kernel:
    """A norm of rows in blocks of 16 with its codes and scales."""
    blocks = width // 16
    inputs = {"x": torch.randn(3, blocks, 16).to(bf16), "weight": torch.rand(blocks, 16).to(bf16)}
    inputs["whole"] = torch.ones(1)
    outputs = {
        "numbers": torch.zeros(3, blocks, 1, dtype=FP8),
        "codes": torch.zeros(3, blocks, 8, dtype=torch.uint8),
    }

    def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
        norm, scale = Value("norm", 16, bf16), Value("given", 1, f32)
        return (
            Apply((norm,), RMSNorm(1e-6, dtype=bf16), (v["x"], v["weight"], None), over_heads=True),
            Apply((scale,), SCALE, (norm, None, v["whole"])),
            Apply((v["numbers"],), E4M3(), (scale,)),
            Apply((v["codes"],), E2M1(), (norm, scale, v["whole"])),
        )

    task = lab.task(steps, inputs, outputs, (3,), blocks)
    return emit(lab.program({**inputs, **outputs}, tuple(outputs), task))


@pytest.mark.slow
@pytest.mark.parametrize("width", [128, 2048, 4096])
def test_gpus_that_can_convert_do_and_nothing_spills(lab: Any, width: int) -> None:
    """Triton compiles sm_100 and sm_120 as sm_100a and sm_120a, which have the instruction."""
    for compiled in compile_for(quantized(lab, width), ("sm_90", "sm_100", "sm_120")):
        assert ("cvt.rn.satfinite.e2m1x2.f32" in compiled.assembly) == (compiled.target != "sm_90")
        if width > 128:
            assert "ld.global.v4.b32" in compiled.assembly, "eight values a load"
        # sm_100 saves some registers around the rare path of an IEEE division: none without divisions
        assert compiled.stack_bytes <= (0 if compiled.target == "sm_90" else 32)


@pytest.mark.slow
def test_other_gpus_compute(lab: Any) -> None:
    (compiled,) = compile_for(quantized(lab, 2048), ["gfx950"])
    assert compiled.stack_bytes == 0
