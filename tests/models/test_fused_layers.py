"""A fused decoder layer against the unfused one: 64 layers of random weights.

On the CPU every weld computes the bits of what it replaces, but for products with one row, which are summed
in another order: where a choice depends on bits the batch is larger. Otherwise what differs is Inductor's:
the output projection and the sum with the residual become one ``addmm``, which rounds once where the model
rounds twice. Whatever comes before is the same, and layers of codes, where there is no ``addmm``, are the
same to the end.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import kernelweld
from kernelweld.codegen.interpreter import interpreting
from kernelweld.models.caches import PAGE, Batch, Cache
from kernelweld.models.config import TINY
from kernelweld.models.example import example

LAYERS, KEPT = 64, 60  # and how many tokens a request has in the caches
ULP = torch.finfo(torch.bfloat16).eps
ALL = replace(TINY, index_topk=PAGE, num_experts_per_tok=8, topk_group=4)
Pair = tuple[torch.Tensor, torch.Tensor]


class Step(NamedTuple):
    """A layer and the arguments of its decode step, with the caches as they are before."""

    layer: nn.Module
    tensors: tuple[torch.Tensor, ...]
    batch: Batch
    cache: Cache

    def run(self, layer: nn.Module) -> tuple[Pair, Cache]:
        """What ``layer`` returns, and its caches afterwards."""
        latent, keys, scale = self.cache
        cache = Cache(latent.clone(), keys.clone(), scale)
        return layer(*self.tensors, self.batch, cache), cache


@dataclass(frozen=True)
class Kind:
    """Layers that one compilation serves; ``all``: they choose every position and every expert, so that no
    choice between near equals depends on roundings.
    """

    index: int  # 0: a dense MLP, 1: experts
    batch: int
    all: bool
    formats: dict[str, Any]

    def step(self, seed: int, device: str = "cpu") -> Step:
        model, (_, batch, caches), _ = example(
            config=ALL if self.all else TINY,
            layers=self.index + 1,
            batch=self.batch,
            cache=KEPT,
            seed=seed,
            device=device,
            **self.formats,
        )
        layer = model.model.layers[self.index]
        cos, sin = (half.contiguous() for half in model.model.rope_table[batch.positions].chunk(2, -1))
        shape, generator = (self.batch, model.config.hidden_size), torch.Generator().manual_seed(seed)
        x, residual = (torch.randn(shape, generator=generator).bfloat16().to(device) for _ in range(2))
        return Step(layer, (x, residual, cos, sin), batch, caches[0])


KINDS = {
    "dense": Kind(0, 4, False, {"keys": "plain"}),
    "experts, caches in fp8": Kind(1, 1, True, {"latent": "fp8"}),
}
MORE = {
    "dense, batch 1": Kind(0, 1, True, {"keys": "plain"}),
    "experts, caches in fp8, batch 4": Kind(1, 4, True, {"latent": "fp8"}),
    "dense, caches in fp8": Kind(0, 4, True, {"latent": "fp8"}),
    "dense, all in fp8": Kind(0, 4, False, {"fp8": True}),
    "experts, all in fp8": Kind(1, 4, False, {"fp8": True}),
    "experts": Kind(1, 4, True, {"keys": "plain"}),
}


def rows(cache: Cache) -> list[torch.Tensor]:
    """Views of all that a slot holds, each ``[slots, n]``: codes, scales and values."""
    latent, keys, _ = cache
    e4m3, flat = torch.float8_e4m3fn, latent.view(-1, latent.shape[-1])
    found = [flat]
    if latent.dtype == torch.uint8:
        kinds = e4m3, torch.float32, torch.bfloat16
        found = [part.view(kind) for part, kind in zip(flat.split([512, 16, 128], -1), kinds, strict=True)]
    if keys.dtype != torch.uint8:
        return [*found, keys.view(-1, keys.shape[-1])]
    codes, scales = keys.flatten(1).split([PAGE * 128, PAGE * 4], 1)
    codes = codes.view(e4m3).unflatten(1, (PAGE, 128)).flatten(0, 1)
    return [*found, codes, scales.view(torch.float32).reshape(-1, 1)]


def ranks(x: torch.Tensor) -> torch.Tensor:
    """The place of each number among those of its dtype: neighbours differ by one."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    bits = x.contiguous().view(kinds[x.dtype.itemsize])
    return torch.where(bits < 0, torch.iinfo(bits.dtype).min - bits.long(), bits)


def check_caches(step: Step, fused: Cache, unfused: Cache) -> None:
    """Other rows than those of the slots keep their bytes; written values are at most one rounding off."""
    for parts in zip(rows(step.cache), rows(fused), rows(unfused), strict=True):
        before, mine, theirs = map(ranks, parts)
        kept = torch.ones(len(before), dtype=torch.bool, device=before.device)
        kept[step.batch.slots] = False
        assert torch.equal(mine[kept], before[kept])
        # Scales of keys are few powers of two.
        assert before.shape[1] == 1 or not torch.equal(mine[~kept], before[~kept])
        assert (mine - theirs).abs().max() <= 1


def exact(step: Step, slots: torch.Tensor) -> Pair:
    """The layer with everything widened to float32, attending to ``slots``."""
    latent, keys, scale = step.cache
    codes_and_scales = rows(step.cache)[1:]
    if keys.dtype == torch.uint8:
        codes, scales = codes_and_scales
        keys = (codes.float() * scales).view(-1, PAGE, codes.shape[1])
    cache = Cache(latent.float() * (1 if scale is None else scale), keys.float())
    wide = copy.deepcopy(step.layer).float()
    wide.self_attn.indexer.register_forward_hook(lambda *_: slots)
    result: Pair = wide(*(tensor.float() for tensor in step.tensors), step.batch, cache)
    return result


def errors(outputs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> torch.Tensor:
    """Root mean square and maximum of the differences of each output, as parts of those of ``exact``."""

    def size(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.square().mean().sqrt(), x.abs().amax()])

    return torch.stack([size(a.float() - b) / size(b) for a, b in zip(outputs, exact, strict=True)])


def check_layer(step: Step, fused: nn.Module, bits: bool) -> torch.Tensor:
    """Errors ``[2, 2, 2]`` of the fused and of the unfused layer, the former at most a unit in the last place
    above the latter; with ``bits`` there is no difference.
    """
    seen: list[torch.Tensor] = []
    hook = step.layer.self_attn.indexer.register_forward_hook(lambda *call: seen.append(call[2]))
    theirs, unfused_cache = step.run(step.layer)
    hook.remove()
    mine, cache = step.run(fused)
    check_caches(step, cache, unfused_cache)
    if bits:
        assert all(map(torch.equal, mine, theirs))
        return torch.zeros(2, 2, 2)
    wide = exact(step, seen[0])
    found = torch.stack([errors(mine, wide), errors(theirs, wide)])
    assert (found[0] <= found[1] + ULP).all(), found
    return found


def check(kind: Kind, seeds: Sequence[int], backend: str = "eager", device: str = "cpu") -> None:
    """Layers of ``seeds`` in one compilation, into which their weights are copied. On average over many the
    fused ones are no further from float32.
    """
    torch._dynamo.reset()
    module = kind.step(seeds[0], device).layer
    fused = kernelweld.fuse(copy.deepcopy(module), dynamic=False, strict=True, backend=backend)
    found = []
    for seed in seeds:
        step = kind.step(seed, device)
        fused.load_state_dict(step.layer.state_dict())
        found.append(check_layer(step, fused, bits=bool(kind.formats.get("fp8")) and device == "cpu"))
    (graph,) = kernelweld.report(fused).graphs
    assert graph.welds
    mean = torch.stack(found).mean(0)
    # Means of 32 ratios vary by 1.5 %; one rounding more of the residual would add 20 %.
    assert len(seeds) < 32 or (mean[0, :, 0] <= 1.05 * mean[1, :, 0]).all(), mean


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_layers(name: str) -> None:
    check(KINDS[name], range([*KINDS].index(name), LAYERS, len(KINDS)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*KINDS, *MORE])
@torch.no_grad()
def test_all_layers(name: str) -> None:
    check((KINDS | MORE)[name], range(LAYERS))


@pytest.mark.nightly
@pytest.mark.skipif(not interpreting(), reason="kernels are compiled here")
@pytest.mark.parametrize("name", [*KINDS, "experts, all in fp8"])
@torch.no_grad()
def test_layers_by_interpreted_kernels(name: str) -> None:
    check((KINDS | MORE)[name], range(3), backend="interpret")


@pytest.mark.gpu
@pytest.mark.skipif(interpreting(), reason="kernels are interpreted here; set TRITON_INTERPRET=0")
@pytest.mark.parametrize("name", [name for name, kind in (KINDS | MORE).items() if "fp8" not in kind.formats])
@torch.no_grad()
def test_layers_on_a_gpu(name: str) -> None:
    check((KINDS | MORE)[name], range(LAYERS), backend="auto", device="cuda")
