"""vLLM's test_fusion_attn and test_mla_attn_quant_fusion. There the attention kernel writes codes itself;
here attention stays what it is, and the quantization behind it is a weld that reads its output.
"""

from __future__ import annotations

import pytest
import torch
from graphs import rand
from harness import weld
from spellings import QUANTS, scaled_mm
from torch import Tensor, nn

HEADS, SIZE = 8, 16


class Attention(nn.Module):
    """The write to the cache, attention with its output in a buffer, the linear layer in fp8."""

    def __init__(self, quant: str, gated: bool = False) -> None:
        super().__init__()
        self.quantize, self.gated = QUANTS[quant], gated
        self.linear = nn.Parameter(rand(HEADS * SIZE, 32) * 0.1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        heads = [x.view(-1, HEADS, SIZE) for x in (q, k, v, out)]
        dummy = torch.ops.vllm.unified_kv_cache_update(*heads[1:3], "layer 0")
        torch.ops.vllm.unified_attention_with_output(*heads, "layer 0", None, None, dummy)
        attended = out * torch.sigmoid(q) if self.gated else out
        return scaled_mm(*self.quantize(attended, scale), self.linear, q.dtype)


class LatentAttention(Attention):
    """The same with a latent."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        dummy = torch.ops.vllm.unified_mla_kv_cache_update(k, v, "layer 0", "auto", torch.ones(1))
        torch.ops.vllm.unified_mla_attention_with_output(q, k, v, out, "layer 0", None, None, dummy)
        return scaled_mm(*self.quantize(out, scale), self.linear, q.dtype)


def inputs() -> list[Tensor]:
    return [*(rand(7, HEADS * SIZE) for _ in "qkv"), torch.tensor([0.02])]


@pytest.mark.parametrize(
    ("model", "quant"),
    [(Attention, "static"), (LatentAttention, "native static"), (LatentAttention, "group 128")],
)
def test_codes_of_the_output_are_a_weld_behind_attention(model: type[Attention], quant: str) -> None:
    outcome = weld(model(quant), inputs(), dynamic=(0, 1, 2) if model is Attention else ())
    assert outcome.welds == ["quant_scale_quant" if "group" in quant else "quant"]
    (miss,) = outcome.misses
    assert miss.kind in ("vllm.unified_kv_cache_update", "vllm.unified_mla_kv_cache_update")
    assert outcome.log == ["write layer 0", "attend layer 0"]
    outcome.check()


def test_the_gate_of_an_output_is_welded_with_its_codes() -> None:
    """Which vLLM has no pattern for."""
    outcome = weld(Attention("static", gated=True), inputs())
    assert outcome.welds == ["gate_mul_quant"]
    outcome.check()


def test_attention_still_waits_for_the_cache() -> None:
    """#33945: a replacement without the dummy let the write to the cache be dropped as dead."""
    outcome = weld(Attention("static"), inputs())
    operators = torch.ops.vllm.unified_kv_cache_update, torch.ops.vllm.unified_attention_with_output
    (attend,) = (n for n in outcome.graph.gm.graph.nodes if operators[1].default in n.args[:1])
    assert attend.kwargs["kv_cache_dummy_dep"].target is operators[0].default
    assert attend.kwargs["output_scale"] is None
