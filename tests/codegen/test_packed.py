"""Roundings of two values by one conversion: the same bits, and only for values that stay in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelweld.codegen.crosscompile import compile_for
from kernelweld.codegen.emit import Kernel, emit
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.launch import choose
from kernelweld.codegen.task import Apply, TaskStep, Value
from kernelweld.errors import CodegenFailed
from kernelweld.ir import Quant, QuantScale, RMSNorm

bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
NORM = RMSNorm(1e-6, dtype=bf16)


def tensors(kept: bool, device: str = "cpu", rows: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs of a norm with its codes; ``kept`` has its values stored as well."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(rows, 1536).to(bf16), "weight": torch.rand(1536).to(bf16)}
    outputs = {"scale": torch.zeros(rows, 1), "codes": torch.zeros(rows, 1536).to(E4M3)}
    if kept:
        outputs["norm"] = torch.zeros(rows, 1536).to(bf16)
    return tuple({k: v.to(device) for k, v in part.items()} for part in (inputs, outputs))  # type: ignore[return-value]


def steps(v: Mapping[str, Value]) -> Sequence[TaskStep]:
    norm = v.get("norm", Value("norm", 1536, bf16))
    return (
        Apply((norm,), NORM, (v["x"], v["weight"], None)),
        Apply((v["scale"],), QuantScale(448.0, 1e-10, "amax"), (norm, None)),
        Apply((v["codes"],), Quant(-448.0, 448.0), (norm, v["scale"])),
    )


def kernel(lab: Any, kept: bool = False) -> Kernel:
    inputs, outputs = tensors(kept)
    program = lab.program({**inputs, **outputs}, tuple(outputs), lab.task(steps, inputs, outputs, (3,)))
    return emit(program, replace(choose(program), packed=True))


def test_the_default_rounds_one_by_one(lab: Any) -> None:
    inputs, outputs = tensors(kept=False)
    program = lab.program({**inputs, **outputs}, tuple(outputs), lab.task(steps, inputs, outputs, (3,)))
    assert not choose(program).packed
    assert "round_bf16_pairs" not in emit(program).source


def test_only_values_that_stay_in_registers_are_rounded_in_pairs(lab: Any) -> None:
    assert kernel(lab).source.count("round_bf16_pairs(") == 2  # the helper, and its call
    assert "round_bf16_pairs" not in kernel(lab, kept=True).source


@pytest.mark.slow
def test_one_conversion_serves_two_values_and_nothing_spills(lab: Any) -> None:
    for compiled in compile_for(kernel(lab), ("sm_90", "sm_100")):
        assert "cvt.rn.bf16x2.f32" in compiled.assembly
        assert "cvt.rn.bf16.f32" not in compiled.assembly
        assert compiled.stack_bytes == 0


@pytest.mark.slow
def test_other_gpus_have_no_such_instruction(lab: Any) -> None:
    with pytest.raises(CodegenFailed):
        compile_for(kernel(lab), ["gfx942"])


@pytest.mark.gpu
@pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
@pytest.mark.parametrize("rows", [1, 3, 257])
def test_the_same_bits_on_a_gpu(lab: Any, rows: int) -> None:
    results = []
    for packed in (False, True):
        inputs, outputs = tensors(False, "cuda", rows)
        program = lab.program(
            {**inputs, **outputs}, tuple(outputs), lab.task(steps, inputs, outputs, (rows,))
        )
        lab.run(steps, inputs, outputs, (rows,), launch=replace(choose(program), packed=packed))
        results.append(outputs)
    plain, pairs = results
    assert all(torch.equal(plain[name].view(torch.uint8), pairs[name].view(torch.uint8)) for name in plain)
