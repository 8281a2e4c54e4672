"""vLLM's test_silu_mul_quant_fusion: the gate of an MLP and the quantization behind it."""

from __future__ import annotations

import pytest
import torch
from graphs import bf16, rand
from harness import weld
from spellings import QUANTS, scaled_mm
from torch import Tensor, nn

CASES = [
    ("custom", "static"),
    pytest.param("custom", "native static", marks=pytest.mark.nightly),
    pytest.param("native", "static", marks=pytest.mark.nightly),
    ("native", "native static"),
    ("custom", "group 128"),
    ("native", "group 64"),
]


class Gated(nn.Module):
    """A gated projection and the linear layer in fp8 behind it."""

    def __init__(self, gate: str, quant: str, width: int = 256) -> None:
        super().__init__()
        self.gate, self.quantize, self.width = gate, QUANTS[quant], width
        self.up, self.down = nn.Parameter(rand(64, 2 * width) * 0.1), nn.Parameter(rand(width, 16))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        both = x @ self.up
        if self.gate == "custom":
            gated = torch.empty(both.shape[0], self.width, dtype=both.dtype)
            torch.ops._C.silu_and_mul(gated, both)
        else:
            gated = nn.functional.silu(both[:, : self.width]) * both[:, self.width :]
        return scaled_mm(*self.quantize(gated, scale), self.down, bf16)


@pytest.mark.parametrize(("gate", "quant"), CASES)
def test_gate_and_codes_are_one_weld(gate: str, quant: str) -> None:
    dynamic = (0,) if (gate, quant) == CASES[0] else ()
    outcome = weld(Gated(gate, quant), [rand(32, 64), torch.tensor([0.02])], dynamic=dynamic)
    codes = "quant_scale_quant" if "group" in quant else "quant"
    assert outcome.welds == [f"gate_mul_{codes}"] and outcome.misses == []
    outcome.check()


def test_a_gate_that_is_read_besides_is_welded_too() -> None:
    """An inner node of vLLM's pattern may have no other reader."""

    class Read(Gated):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            both = x @ self.up
            gated = nn.functional.silu(both[:, : self.width]) * both[:, self.width :]
            return scaled_mm(*self.quantize(gated, scale), self.down, bf16) + gated[:, :16]

    outcome = weld(Read("native", "static"), [rand(5, 64), torch.tensor([0.02])])
    assert outcome.welds == ["gate_mul_quant"]
    outcome.check()
