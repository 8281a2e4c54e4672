"""The time of kernelweld's own passes on DeepSeek-V3.2 of real dimensions, by depth: no weights, no GPU.

    python benchmarks/pass_time.py [--layers 6 61] [--out benchmarks/results/pass_time.json]

The model is captured on the meta device (minutes for 61 layers: that is the capture, not the passes). Passes
run with the kernels lowered, as for a GPU. Time is process CPU time, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from pathlib import Path

import torch
import triton
from torch import fx

from kernelweld.cli.targets import resolve
from kernelweld.integrations.aot import capture
from kernelweld.passes.pipeline import Pipeline

PIPELINE = "canonicalize,dialect,raise,route{target=triton},page-slots,skinny-gemm,plan,lower{target=triton}"


def captured(layers: int) -> fx.GraphModule:
    """The decode graph of ``layers`` layers."""
    target = resolve("hf:deepseek_v32", phase="decode", layers=layers, full=True)
    return capture(target.fn, target.args, target.kwargs, stop=True).graphs[0]


def measure(layers: int) -> dict[str, object]:
    """Seconds of each pass, and in all, on one fresh graph."""
    start = time.process_time()
    gm = captured(layers)
    capture_seconds = time.process_time() - start
    nodes = len(gm.graph.nodes)
    gc.collect()  # what the capture left behind is not the passes' to clear away
    start = time.process_time()
    result = Pipeline.from_text(PIPELINE, strict=True).run(gm)
    total = time.process_time() - start
    return {
        "layers": layers,
        "nodes": nodes,
        "capture_s": round(capture_seconds, 1),
        "passes_s": {text: round(s, 3) for text, s in result.seconds.items()},
        "total_s": round(total, 3),
        "welds": len(result.context.plan.welds) if result.context.plan else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="*", type=int, default=[6, 61])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pass_time.json"))
    arguments = parser.parse_args()
    measure(4)  # imports, decomposition tables and the generated kernels' modules are loaded once
    runs = [measure(layers) for layers in arguments.layers]
    environment = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    arguments.out.write_text(json.dumps({"environment": environment, "runs": runs}, indent=1) + "\n")
    for run in runs:
        print(f"{run['layers']} layers, {run['nodes']} nodes, {run['welds']} welds: {run['total_s']} s")
        print(f"  {run['passes_s']}")
    first, last = runs[0], runs[-1]
    scale = last["layers"] / first["layers"]  # type: ignore[operator]
    print(f"{last['total_s'] / first['total_s'] / scale:.2f} times the cost a layer")  # type: ignore[operator]


if __name__ == "__main__":
    main()
