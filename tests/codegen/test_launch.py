"""Launches as they are chosen: by width and by what happens to a row, and by what the device can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernelweld.codegen import device
from kernelweld.codegen.device import launch_on, rounds_pairs
from kernelweld.codegen.launch import Launch, choose
from kernelweld.codegen.task import Apply, TaskStep, Value, WeldProgram
from kernelweld.ir import GateMul, Quant, QuantScale, RMSNorm

bf16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


def norm(v: Any) -> Sequence[TaskStep]:
    return (Apply((v["out"],), RMSNorm(1e-6, dtype=bf16), (v["x"], None, None)),)


def gate(v: Any) -> Sequence[TaskStep]:
    return (Apply((v["out"],), GateMul("silu", bf16), (v["x"], v["x"])),)


def quantized(v: Any) -> Sequence[TaskStep]:
    scale = Value("scale", 1, torch.float32)
    return (
        Apply((scale,), QuantScale(448.0, 1e-10, "amax"), (v["x"], None)),
        Apply((v["out"],), Quant(-448.0, 448.0), (v["x"], scale)),
    )


def program(lab: Any, steps: Any, width: int) -> WeldProgram:
    dtype = E4M3 if steps is quantized else bf16
    inputs, outputs = {"x": torch.randn(3, width).to(bf16)}, {"out": torch.zeros(3, width).to(dtype)}
    return lab.program({**inputs, **outputs}, tuple(outputs), lab.task(steps, inputs, outputs, (3,)))


@pytest.mark.parametrize(
    ("steps", "width", "warps", "rows"),
    [
        (gate, 256, 4, 4),
        (gate, 2048, 8, 1),
        (norm, 128, 4, 8),
        (norm, 512, 4, 4),  # a warp for each row
        (norm, 1024, 4, 1),
        (norm, 7168, 8, 1),
        (norm, 16384, 16, 1),
        (quantized, 128, 4, 8),
        (quantized, 1536, 2, 1),
        (quantized, 7168, 4, 1),
        (quantized, 16384, 16, 1),
    ],
)
def test_warps_and_rows(lab: Any, steps: Any, width: int, warps: int, rows: int) -> None:
    assert choose(program(lab, steps, width)) == Launch(warps, 1, (rows,))


class Nvidia:
    """Stands for ``torch`` on a machine with one of NVIDIA's GPUs."""

    def __init__(self, capability: tuple[int, int], cuda: str | None = "13.0", there: bool = True) -> None:
        self.version = type("version", (), {"cuda": cuda})
        self.cuda = type(
            "cuda",
            (),
            {"is_available": lambda: there, "get_device_capability": lambda device: capability},
        )


@pytest.mark.parametrize(
    ("torch_there", "expected"),
    [
        (Nvidia((9, 0)), True),
        (Nvidia((8, 0)), True),
        (Nvidia((7, 5)), False),
        (Nvidia((9, 4), cuda=None), False),  # an AMD GPU
        (Nvidia((9, 0), there=False), False),  # captured for a GPU where there is none
    ],
)
def test_only_nvidias_gpus_round_pairs(
    lab: Any, monkeypatch: pytest.MonkeyPatch, torch_there: Nvidia, expected: bool
) -> None:
    monkeypatch.setattr(device, "torch", torch_there)
    monkeypatch.setattr(device, "interpreting", lambda: False)
    assert rounds_pairs(torch.device("cuda")) is expected
    assert not rounds_pairs(torch.device("cpu"))
    one = program(lab, norm, 512)
    assert launch_on(torch.device("cuda"), one) == choose(one, packed=expected)


def test_interpreted_kernels_round_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "torch", Nvidia((9, 0)))
    monkeypatch.setattr(device, "interpreting", lambda: True)
    assert not rounds_pairs(torch.device("cuda"))
