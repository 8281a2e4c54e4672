"""The model computes what transformers' computes: from paged caches, in chunks, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import YARN, Server

from kernelweld.models import deepseek_v32, indexer
from kernelweld.models.caches import slots_of, write_latent
from kernelweld.models.checkpoint import load

transformers = pytest.importorskip("transformers")
STEPS = 32


def expected(folder: Path, sequences: Sequence[Sequence[int]], dtype: torch.dtype) -> list[torch.Tensor]:
    """Logits of transformers' model, each sequence by itself in one pass without a cache."""
    model = transformers.DeepseekV32ForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        return [model(torch.tensor([tokens])).logits[0] for tokens in sequences]


def rms(x: Sequence[torch.Tensor]) -> float:
    return torch.cat([part.double() for part in x]).square().mean().sqrt().item()


def distance(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    """Root mean square of the differences, as a part of that of ``b``."""
    return rms([x.double() - y.double() for x, y in zip(a, b, strict=True)]) / rms(b)


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": YARN}], ids=["plain", "yarn"])
def test_prefill_and_greedy_decode(
    checkpoint: Callable[..., Path], prompts: list[list[int]], rope: dict[str, Any]
) -> None:
    """Eight positions of up to a hundred are selected. The prompts come in two chunks, the decode steps with
    padding behind; transformers sees the sequences that came of it at once.
    """
    folder = checkpoint(**rope)
    server = Server(load(folder, dtype=torch.float32), len(prompts), dtype=torch.float32, keys="plain")
    parts = [server.step([p[:cut] for p, cut in zip(prompts, (20, 5, 1), strict=True)])]
    parts += [server.step([p[cut:] for p, cut in zip(prompts, (20, 5, 1), strict=True)])]
    sequences = [list(prompt) for prompt in prompts]
    last = [next(x[-1:] for x in found[::-1] if len(x)) for found in zip(*parts, strict=True)]
    for _ in range(STEPS):
        tokens = [int(x.argmax()) for x in last]
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        last = server.step([[token] for token in tokens], padding=1)
        parts.append(last)
    logits = [torch.cat(found) for found in zip(*parts, strict=True)]
    for ours, theirs in zip(logits, expected(folder, sequences, torch.float32), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_bfloat16(checkpoint: Callable[..., Path], prompts: list[list[int]]) -> None:
    """As near to the float32 model as transformers' bfloat16 is: both round at the same places, but that keys
    and values are projected from latents here and there. The half more is for selections that rounding turns.
    """
    folder = checkpoint()
    exact = expected(folder, prompts, torch.float32)
    ours = Server(load(folder), len(prompts), keys="plain").step(prompts)
    assert ours[0].dtype == torch.bfloat16
    assert distance(ours, exact) < 1.5 * distance(expected(folder, prompts, torch.bfloat16), exact)


def as_codes(x: torch.Tensor) -> torch.Tensor:
    """``x`` with each 128 values as e4m3 codes and their scale hold them."""
    groups = x.unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True) / 448
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def as_ds_mla(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return as_codes(latent), rotated.bfloat16().float()


def as_scaled(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return latent.to(torch.float8_e4m3fn).float(), rotated.to(torch.float8_e4m3fn).float()


@pytest.mark.parametrize(("latent", "rounded"), [("fp8", as_scaled), ("fp8_ds_mla", as_ds_mla)])
def test_latents_of_codes(
    checkpoint: Callable[..., Path],
    prompts: list[list[int]],
    latent: str,
    rounded: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache of codes is a plain one of the values that the codes stand for, but for float32's roundings.
    Codes are off by some percent, and so is what comes of them, amplified by the softmax.
    """
    model = load(checkpoint(index_topk=128), dtype=torch.float32)
    plain = {"dtype": torch.float32, "keys": "plain"}
    ours = Server(model, len(prompts), **plain, latent=latent).step(prompts)
    exact = Server(model, len(prompts), **plain).step(prompts)
    monkeypatch.setattr(
        deepseek_v32, "write_latent", lambda cache, x, y, slots: write_latent(cache, *rounded(x, y), slots)
    )
    twin = Server(model, len(prompts), **plain).step(prompts)
    assert distance(ours, twin) < 1e-5
    assert 1e-3 < distance(ours, exact) < 0.2


def test_keys_of_codes(
    checkpoint: Callable[..., Path], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes are off by about 2.6 % in the root mean square, so a product of 128 of them by 3.7 % of what
    products are; of 8 positions in 70 few change places. Where all are selected nothing changes at all.
    """
    selected: list[torch.Tensor] = []
    monkeypatch.setattr(indexer, "slots_of", lambda *given: selected.append(slots_of(*given)) or selected[-1])
    for topk in (8, 128):
        model = load(checkpoint(index_topk=topk), dtype=torch.float32)
        exact = Server(model, len(prompts), dtype=torch.float32, keys="plain").step(prompts)
        ours = Server(model, len(prompts), dtype=torch.float32).step(prompts)
    assert distance(ours, exact) == 0
    first, second = selected[0], selected[2]  # of the first layer, whose inputs are the same
    same = [len({*a} & {*b}) / 8 for a, b in zip(first.tolist(), second.tolist(), strict=True) if -1 not in a]
    assert 0.9 < sum(same) / len(same) < 1
