"""``kernelweld bench`` on a real GPU.

Run with ``TRITON_INTERPRET=0``; the other tests of this folder interpret.
"""

from __future__ import annotations

import pytest
import torch

from kernelweld.cli.benching import Bench
from kernelweld.cli.targets import Target
from kernelweld.cli.welded import welded
from kernelweld.codegen.interpreter import interpreting
from kernelweld.codegen.tuning import Tuning

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


@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_a_tuned_launch_is_no_slower_and_is_used(rows: int) -> None:
    inputs = tuple(
        torch.empty(shape, dtype=torch.bfloat16) for shape in ((rows, 4096), (rows, 4096), (4096,))
    )
    ((one, count),) = welded(Target("test", add_norm, inputs, {})).welds
    bench = Bench.on_gpu(tune=True)
    found = bench.figures(one, count)
    (entry,) = bench.entries
    assert found.us["tuned"] == entry.us <= entry.default_us
    tuning = Tuning("here").including(bench.entries)
    assert tuning.launch_of(one.program) == entry.launch
    default, tuned = one.draw(device="cuda"), one.draw(device="cuda")
    one.launch(default)
    one.launch(tuned, entry.launch)
    for a, b in zip(one.outputs(default), one.outputs(tuned), strict=True):
        assert torch.equal(a, b)
