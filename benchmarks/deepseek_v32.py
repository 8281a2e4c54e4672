"""One decoder layer of DeepSeek-V3.2 in a decode step: unfused, Inductor alone, kernelweld.

A rank's slice of eight at real dimensions, bfloat16, index keys in fp8, 8192 tokens in the cache. Times are
medians of CUDA-graph replays in microseconds, the variants in turn; kernels are those of the profiler. The
attention path is from the input norm to the output projection; no all-reduce.

    python benchmarks/deepseek_v32.py [--batch 1 16 64] [--cache 8192] [--fp8] [--check N] [--out FILE.json]

``--check N`` also compares outputs of N small layers of random weights: the distance of each variant from the
same layer in float32 with its caches.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hf_layers import environment, kernels
from torch import nn

import kernelweld
from kernelweld.models.caches import PAGE, Batch, Cache
from kernelweld.models.config import TINY
from kernelweld.models.deepseek_v32 import DecoderLayer
from kernelweld.models.example import example
from kernelweld.models.parallel import Parallel

Step = Callable[[], object]
ROUNDS, REPLAYS = 9, 40
#: Dimensions with which every position of a page and every expert is chosen.
CHOOSING_ALL = replace(TINY, index_topk=PAGE, num_experts_per_tok=8, topk_group=4)


class AttentionPath(nn.Module):
    """A layer from its input norm to its output projection."""

    def __init__(self, layer: DecoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: Batch,
        cache: Cache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.layer.input_layernorm.add(x, residual)
        return self.layer.self_attn(x, cos, sin, batch, cache), residual


def parts(batch: int, cache: int, fp8: bool) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """The modules to measure and their arguments."""
    model, (_, scheduled, caches), _ = example(
        full=True, batch=batch, cache=cache - 1, fp8=fp8, device="cuda", parallel=Parallel(0, 8)
    )
    dense, experts = model.model.layers
    cos, sin = model.model.rope_table[scheduled.positions].chunk(2, -1)
    x, residual = (torch.randn(batch, model.config.hidden_size, device="cuda").bfloat16() for _ in range(2))
    args = (x, residual, cos.contiguous(), sin.contiguous(), scheduled)
    return {
        "attention path": (AttentionPath(dense), (*args, caches[0])),
        "dense layer": (dense, (*args, caches[0])),
        "layer with experts": (experts, (*args, caches[1])),
    }


def variants(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """Ways to run a module; each compiles at its first call."""
    fused = copy.copy(module)
    return {
        "unfused": module,
        "inductor": torch.compile(copy.copy(module), fullgraph=True, dynamic=False),
        "kernelweld": kernelweld.fuse(fused, dynamic=False, strict=True),
    }


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Root mean square of the differences, as a part of that of ``b``."""
    return ((a.double() - b.double()).square().mean().sqrt() / b.double().square().mean().sqrt()).item()


def captured(step: Step) -> torch.cuda.CUDAGraph:
    """``step`` as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph


def replay_times(graphs: Mapping[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Microseconds of a replay of each: medians over rounds in which all take their turn."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1000 * start.elapsed_time(end) / REPLAYS)
    return {name: round(statistics.median(own), 2) for name, own in times.items()}


def measured(name: str, module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Times, kernels and distances from the unfused module."""
    steps = {key: (lambda run=run: run(*args)) for key, run in variants(module).items()}
    outputs = {key: step()[0].clone() for key, step in steps.items()}
    names = {key: kernels(step) for key, step in steps.items()}
    times = replay_times({key: captured(step) for key, step in steps.items()})
    return {
        "part": name,
        "us": times,
        "kernels": {key: len(found) for key, found in names.items()},
        "distance": {key: distance(out, outputs["unfused"]) for key, out in outputs.items()},
        "names": {key: [kernel[:90] for kernel in found] for key, found in names.items()},
    }


def compared(seeds: int, batch: int = 4) -> dict[str, Any]:
    """Distances of a layer from itself in float32, over random weights: the worst ratio, the means, and how
    many fused layers give the very bits of the unfused one.

    All positions and all experts are chosen: a choice between near equals that bfloat16 makes otherwise than
    float32, fused or not, would be all that is measured.
    """
    found: dict[str, list[float]] = {"unfused": [], "kernelweld": []}
    same = 0
    for seed in range(seeds):
        model, (_, scheduled, caches), _ = example(
            config=CHOOSING_ALL, batch=batch, cache=60, device="cuda", keys="plain", seed=seed
        )
        layer, cache = model.model.layers[seed % 2], caches[0]
        cos, sin = (t.contiguous() for t in model.model.rope_table[scheduled.positions].chunk(2, -1))
        torch.manual_seed(seed)
        x, residual = (
            torch.randn(batch, model.config.hidden_size, device="cuda").bfloat16() for _ in range(2)
        )
        exact = in_float32(layer, x, residual, cos, sin, scheduled, cache)
        fused = kernelweld.fuse(copy.copy(layer), dynamic=False, strict=True)
        outputs = {
            name: run(x, residual, cos, sin, scheduled, cache)
            for name, run in (("unfused", layer), ("kernelweld", fused))
        }
        assert any(graph.welds for graph in kernelweld.report(fused).graphs)
        same += all(map(torch.equal, *outputs.values()))
        for name, out in outputs.items():
            found[name].append(max(distance(a, b) for a, b in zip(out, exact, strict=True)))
        torch._dynamo.reset()
    worst = max(b / a for a, b in zip(found["unfused"], found["kernelweld"], strict=True))
    return {
        "layers": seeds,
        "worst ratio": worst,
        "mean": {name: statistics.mean(own) for name, own in found.items()},
        "same bits": same,
    }


def in_float32(
    layer: nn.Module,
    x: torch.Tensor,
    residual: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    batch: Batch,
    cache: Cache,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer with everything widened; its caches are copies."""
    widened = Cache(cache.latent.float(), cache.keys.float(), cache.scale)
    args = (t.float() for t in (x, residual, cos, sin))
    result: tuple[torch.Tensor, torch.Tensor] = copy.deepcopy(layer).float()(*args, batch, widened)
    return result


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cache", type=int, default=8192)
    parser.add_argument("--fp8", action="store_true", help="linear layers of codes, latents in fp8_ds_mla")
    parser.add_argument("--check", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/deepseek_v32.json"))
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "cache": options.cache, "fp8": options.fp8}
    if options.check:
        results["compared"] = compared(options.check)
        print(results["compared"], flush=True)
    results["measured"] = []
    for batch in options.batch:
        for name, (module, args) in parts(batch, options.cache, options.fp8).items():
            found = {"batch": batch, **measured(name, module, args)}
            results["measured"].append(found)
            print({key: value for key, value in found.items() if key != "names"}, flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            torch._dynamo.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
