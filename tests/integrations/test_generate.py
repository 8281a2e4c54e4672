"""Users' own loop: ``fuse`` then ``generate``. Same greedy tokens as the untouched model, and nothing
is compiled late.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch import nn

import kernelweld
from kernelweld.cli.targets import resolve
from kernelweld.passes.merge_gemms import packed_groups

pytestmark = pytest.mark.hf

TARGETS = ("deepseek_v32", "minimax_m2", "qwen3_5_moe", "qwen3_next", "qwen3_5")
#: Attention as in qwen3_5_moe.
ALIKE = ("qwen3_next", "qwen3_5")
STEPS = 32


def prompt(batch: int) -> dict[str, torch.Tensor]:
    """Token ids; in a batch the rows have different lengths and are padded on the left."""
    torch.manual_seed(batch)
    ids, mask = torch.randint(3, 100, (batch, 9)), torch.ones(batch, 9, dtype=torch.long)
    for row in range(1, batch):
        ids[row, : 2 * row], mask[row, : 2 * row] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def greedy(model: nn.Module, batch: int, cache: str) -> torch.Tensor:
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    with torch.no_grad():
        return generate(
            **prompt(batch),
            max_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=cache,
        )


class CompileLog:
    """How many graphs had been compiled after each call of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.counts: list[int] = []
        self._fused = model._compiled_call_impl
        self.model = model
        model._compiled_call_impl = self  # type: ignore[assignment]

    def __call__(self, *args: object, **kwargs: object) -> object:
        result = self._fused(*args, **kwargs)  # type: ignore[misc]
        self.counts.append(len(self._fused.report.graphs))  # type: ignore[union-attr]
        return result


def cases() -> Iterator[ParameterSet]:
    """Each target with either cache and either batch; half of most of them in ``make test``."""
    for target in TARGETS:
        for cache, batch in (("static", 1), ("dynamic", 3), ("dynamic", 1), ("static", 3)):
            sampled = (cache, batch) in (("static", 1), ("dynamic", 3)) and target not in ALIKE
            yield pytest.param(target, cache, batch, marks=() if sampled else pytest.mark.nightly)


@pytest.mark.parametrize(("target", "cache", "batch"), cases())
def test_same_tokens_and_no_late_compilation(target: str, cache: str, batch: int) -> None:
    torch._dynamo.reset()
    model = resolve(f"hf:{target}", dtype=torch.float32).fn
    assert isinstance(model, nn.Module)
    expected = greedy(copy.deepcopy(model), batch, cache)
    log = CompileLog(kernelweld.fuse(model, backend="eager", strict=True))
    tokens = greedy(model, batch, cache)
    assert torch.equal(tokens, expected)
    assert log.counts[2] == log.counts[-1], f"graphs compiled after each call: {log.counts}"
    graphs = log._fused.report.graphs  # type: ignore[union-attr]
    assert all(g.welds for g in graphs), "every graph holds welds"
    assert packed_groups(model), "sibling projections were merged"
