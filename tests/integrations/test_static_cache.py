"""A decode step of transformers models into a static cache: one kernel rotates and writes, same logits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

import kernelweld
from kernelweld.cli.zoo import ZOO
from kernelweld.codegen.interpreter import interpreting

pytestmark = pytest.mark.skipif(not interpreting(), reason="kernels are compiled here")


def logits(model: nn.Module, ids: torch.Tensor) -> tuple[list[torch.Tensor], StaticCache]:
    """Prefill of six tokens and two decode steps."""
    cache = StaticCache(config=model.config, max_cache_len=12)
    with torch.no_grad():
        found = [model(part, past_key_values=cache).logits for part in (ids, ids[:, :1], ids[:, 1:2])]
    return found, cache


@pytest.mark.parametrize("name", ["minimax_m2", pytest.param("deepseek_v32", marks=pytest.mark.nightly)])
def test_keys_and_values_are_written_by_the_kernel_that_rotates(name: str) -> None:
    config = AutoConfig.for_model(ZOO[name].model_type, **ZOO[name].fields(full=False, layers=1))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    ids = torch.randint(0, 100, (2, 6))
    expected, cache = logits(model, ids)
    fused = kernelweld.fuse(copy.deepcopy(model), backend="interpret")
    actual, mine = logits(fused, ids)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    for layer, other in zip(mine.layers, cache.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.values, other.values, rtol=1e-4, atol=1e-5)
    decode = kernelweld.report(fused).graphs[-1]
    writes = [weld for weld in decode.welds if "cache_write" in weld.name]
    assert len(writes) == 1 and "rope" in writes[0].name
    assert decode.words["cache_write"] == sum(task.count("cache_write") for task in writes[0].tasks)
