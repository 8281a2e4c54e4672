"""``kernelweld bench`` on a real GPU.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

import pytest
import torch

from kernelweld.cli.benching import Bench, welded
from kernelweld.cli.targets import Target
from kernelweld.codegen.interpreter import interpreting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0"),
]


def add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = r + x
    h = total.float()
    return total, w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_times_of_a_weld_captured_without_the_gpu(device: str) -> None:
    """Bytes of a large weld over its time are near what a copy reaches, and no more than a cache could."""
    shapes = ((4096, 4096), (4096, 4096), (4096,))
    inputs = tuple(torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    ((one, count),) = welded(Target("test", add_norm, inputs, {}), stop=device == "meta").welds
    found = Bench.on_gpu(inductor=True).figures(one, count)
    assert set(found.us) == {"kernelweld", "eager", "inductor"}
    assert found.copy_fraction is not None and 0.5 < found.copy_fraction < 1.2
    assert found.us["eager"] > found.us["kernelweld"]
