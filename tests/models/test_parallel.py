"""The addends of two ranks are what one rank computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from serving import Server, run_rank

from kernelweld.errors import BadOption
from kernelweld.models.checkpoint import load
from kernelweld.models.deepseek_v32 import DecoderLayer, DeepseekV32
from kernelweld.models.parallel import Parallel


def test_ranks_add_up(checkpoint: Callable[..., Path], prompts: list[list[int]]) -> None:
    folder = checkpoint()
    whole, *ranks = (
        load(folder, dtype=torch.float32, parallel=parallel)
        for parallel in (Parallel(), Parallel(0, 2), Parallel(1, 2))
    )
    addends = _addends(whole, whole, prompts), *(_addends(whole, rank, prompts) for rank in ranks)
    for expected, first, second in zip(*addends, strict=True):
        assert not torch.allclose(first, expected, atol=1e-2)
        torch.testing.assert_close(first + second, expected, rtol=1e-5, atol=1e-5)


def _addends(whole: DeepseekV32, rank: DeepseekV32, prompts: list[list[int]]) -> list[torch.Tensor]:
    """What a rank's attention and feed-forward return for the inputs that those of ``whole`` get."""
    found: list[torch.Tensor] = []
    hooks = []
    for module, other in zip(whole.modules(), rank.modules(), strict=True):
        if isinstance(module, DecoderLayer) and isinstance(other, DecoderLayer):
            for name in ("self_attn", "mlp"):
                part = getattr(other, name).forward
                hooks.append(
                    getattr(module, name).register_forward_pre_hook(
                        lambda _, args, part=part: found.append(part(*args))
                    )
                )
    Server(whole, len(prompts), dtype=torch.float32).step(prompts)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.nightly
def test_a_group_sums(checkpoint: Callable[..., Path], prompts: list[list[int]], tmp_path: Path) -> None:
    """Two processes compute what one does."""
    folder, out = checkpoint(), tmp_path / "logits.pt"
    given = (2, str(tmp_path / "store"), str(folder), prompts[2], str(out))
    torch.multiprocessing.spawn(run_rank, given, nprocs=2)
    (expected,) = Server(load(folder, dtype=torch.float32), 1, dtype=torch.float32).step([prompts[2]])
    torch.testing.assert_close(torch.load(out), expected, rtol=1e-4, atol=1e-4)


def test_a_size_that_does_not_divide(checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(BadOption, match="option 'size' cannot be 3") as error:
        load(checkpoint(), parallel=Parallel(0, 3))
    assert error.value.remedy == "Give a divisor of the number of heads, 4."
