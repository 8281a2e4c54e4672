"""A decode step of two layers of DeepSeek-V3.2 (one dense, one with experts), a rank's slice of eight: eager,
Inductor alone, kernelweld. Results are compared first, and with those of a CPU for the tiny model.

    python benchmarks/deepseek_v32.py [--batch 8 64] [--cache 4096 65536] [--bf16] [--out FILE.json]

Times are medians of CUDA-graph replays, in microseconds, with the embedding and the head; nothing is summed
over ranks.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench_cudagraph

import kernelweld
from kernelweld.models.example import example
from kernelweld.models.parallel import Parallel

Model = Callable[..., torch.Tensor]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Root mean square of the differences, as a part of that of ``b``."""
    a, b = a.double().cpu(), b.double().cpu()
    return ((a - b).square().mean().sqrt() / b.square().mean().sqrt()).item()


def variants(model: torch.nn.Module) -> dict[str, Model]:
    """Ways to run the model; each compiles at its first call."""
    return {
        "eager": model,
        "inductor": torch.compile(model, fullgraph=True, dynamic=False),
        "kernelweld": kernelweld.fuse(model, dynamic=False),
    }


def compared_with_cpu(fp8: bool) -> float:
    """The tiny model's distance from the references on a CPU, from the same weights and caches."""
    model, args, _ = example(batch=4, cache=100, fp8=fp8)
    expected = model(*copy.deepcopy(args))
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cuda(), args)
    return distance(model.cuda()(*moved), expected)


def measured(batch: int, cache: int, fp8: bool) -> dict[str, Any]:
    """Times of all variants, and their distances from eager."""
    model, args, _ = example(
        full=True, batch=batch, cache=cache, fp8=fp8, device="cuda", parallel=Parallel(0, 8)
    )
    found: dict[str, Any] = {"batch": batch, "cache": cache, "fp8": fp8}
    expected = None
    for name, run in variants(model).items():
        try:
            out = run(*args)
            expected = out if expected is None else expected
            found[name] = {
                "us": 1000 * do_bench_cudagraph(partial(run, *args), rep=100, return_mode="median"),
                "distance": distance(out, expected),
            }
        except Exception as error:  # the next variant is of interest all the same
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--cache", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--bf16", action="store_true", help="plain weights and caches instead of codes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = [{"distance from CPU": compared_with_cpu(not options.bf16)}]
    print(results[0], flush=True)
    for batch, cache in product(options.batch, options.cache):
        results.append(measured(batch, cache, not options.bf16))
        print(results[-1], flush=True)
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
