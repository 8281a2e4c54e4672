from __future__ import annotations

import gc
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kernelweld.passes.merge_gemms import MergeOnFirstCall, merge_gemms, prepare, unmerge

pytestmark = pytest.mark.gpu
QKV = ("q", "k", "v")
BYTES = 24576 * 4096 * 2


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


class Wide(nn.Module):
    def __init__(self) -> None:  # 192 MiB in bfloat16, several times a workspace of cuBLAS
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4096, rows, bias=False) for rows in (16384, 4096, 4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1).sin()


def test_memory_values_and_saving() -> None:
    model = Wide().to("cuda", torch.bfloat16)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before = allocated()
    assert merge_gemms(model, [QKV]).gemms_saved == 2
    assert allocated() == before
    assert_close(dict(model.state_dict()), values, rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(model.k.weight.detach(), file)
    assert len(file.getvalue()) < 1.01 * model.k.weight.nbytes
    unmerge(model)
    assert allocated() == before
    assert_close(dict(model.state_dict()), values, rtol=0, atol=0)


def test_moves_between_devices_pack_again() -> None:
    model = Wide().to(torch.bfloat16)
    merge_gemms(model, [QKV])
    start = allocated()
    for device in ("cuda", "cpu", "cuda"):
        model.to(device)
        slot: Any = model.q.kernelweld_slot
        assert slot.packed.device.type == device
        with torch.no_grad():
            model.v.weight.fill_(3.0)
        assert_close(slot.packed[20480:], model.v.weight.detach(), rtol=0, atol=0)
        assert allocated() - start == (0 if device == "cpu" else BYTES)


@pytest.mark.slow
def test_cuda_graphs_read_the_packed_weight_in_place() -> None:
    torch._dynamo.reset()
    model, x = Wide().to("cuda", torch.bfloat16), torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    before_call, run = MergeOnFirstCall(model), torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        prepare(model, (x,))
        before = allocated()
        for step in range(6):
            model.k.weight.mul_(1.5 if step % 2 else 0.75)
            before_call((x,))
            assert_close(run(x).clone(), model(x), rtol=2e-2, atol=2e-2)
    assert allocated() - before < BYTES
