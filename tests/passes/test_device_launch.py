"""A weld is launched as its device wants it, where it is verified and where it runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import kernelweld
from kernelweld.codegen.cache import load
from kernelweld.codegen.emit import Kernel
from kernelweld.codegen.launch import Launch, choose
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.task import WeldProgram

WIDE = Launch(16, 1, (2,))


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) * y


def test_the_launch_of_the_device_is_verified_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[Launch] = []
    run: list[Launch] = []

    def wide(device: torch.device, program: WeldProgram) -> Launch:
        assert device.type == "cpu" and choose(program) != WIDE
        return WIDE

    def launched(kernel: Kernel, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
        verified.append(kernel.launch)
        launch_direct(kernel, tensors, symbols)

    def loaded(kernel: Kernel) -> object:
        run.append(kernel.launch)
        return load(kernel)

    monkeypatch.setattr("kernelweld.passes.launcher.launch_on", wide)
    monkeypatch.setattr("kernelweld.passes.verification.specimen.launch_on", wide)
    monkeypatch.setattr("kernelweld.passes.verification.specimen.launch_direct", launched)
    monkeypatch.setattr("kernelweld.passes.launcher.load", loaded)
    torch._dynamo.reset()
    x, y = torch.randn(2, 7, 96).bfloat16()
    with torch.no_grad():
        kernelweld.fuse(gated, backend="interpret", strict=True, verify=True)(x, y)
    assert set(verified) == set(run) == {WIDE}
