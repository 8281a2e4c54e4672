"""Kernels and time of one decoder layer in a decode step: transformers eager, Inductor alone, kernelweld.

Real dimensions, a dynamic cache of 4096 tokens, batch 1. A layer's figure is half the difference between
a model of three layers and one of one layer. Kernels are counted by the profiler; time is the median of
CUDA-graph replays. All variants of a layer run in one process.

    python benchmarks/hf_layers.py [--layers NAME ...] [--out benchmarks/results/hf_layers.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
import triton
from layer_models import LAYERS, build
from torch.profiler import ProfilerActivity, profile

import kernelweld

CACHE = 4096
DEPTHS = (1, 3)
Step = Callable[[], torch.Tensor]


def make_step(model: torch.nn.Module, call: Callable[..., object]) -> Step:
    """One decode step after ``CACHE`` tokens. Each call gets the same cache tensors in fresh cache
    objects.
    """
    config = model.config
    torch.manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (1, CACHE), device="cuda")
    filled = transformers.DynamicCache(config=config)
    model(ids, past_key_values=filled, use_cache=True)
    token = torch.randint(0, config.vocab_size, (1, 1), device="cuda")

    def step() -> torch.Tensor:
        cache = copy.copy(filled)
        cache.layers = [copy.copy(layer) for layer in filled.layers]
        return call(token, past_key_values=cache, use_cache=True).logits

    return step


def kernels(step: Step) -> list[str]:
    """The names of the GPU kernels that one step launches, in order."""
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    events = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    launched = [e for e in events if not e.name.startswith(("Memcpy", "Memset"))]
    return [e.name for e in sorted(launched, key=lambda e: e.time_range.start)]


def graph_time(step: Step, repeats: int = 7, replays: int = 200) -> float:
    """Microseconds of one step under a CUDA graph: the median over ``repeats`` of the mean over
    ``replays``.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / replays)
    return statistics.median(times)


def variants(model: torch.nn.Module) -> dict[str, Step]:
    """Eager, Inductor alone, and kernelweld, in this order: fusing packs the model's weights in place."""
    return {
        "eager": make_step(model, model._call_impl),
        "inductor": make_step(model, torch.compile(model._call_impl, dynamic=False)),
    }


def measure(kind: str, ready: Path, go: Path) -> dict[str, object]:
    """All variants of one kind of layer. Times are taken only once ``go`` exists: until then others
    compile on the same GPU.
    """
    steps: dict[tuple[str, int], Step] = {}
    record: dict[str, object] = {"errors": {}}
    counts: dict[str, dict[int, list[str]]] = {"eager": {}, "inductor": {}, "kernelweld": {}}
    for depth in DEPTHS:
        model = build(kind, depth)
        for name, step in variants(model).items():
            steps[name, depth] = step
            counts[name][depth] = kernels(step)
        expected = steps["eager", depth]().float()
        other = steps["inductor", depth]().float()
        fused = kernelweld.fuse(copy.deepcopy(model), dynamic=False)
        steps["kernelweld", depth] = make_step(fused, fused)
        counts["kernelweld"][depth] = kernels(steps["kernelweld", depth])
        got = steps["kernelweld", depth]().float()
        scale = expected.abs().max()
        record["errors"][depth] = {  # type: ignore[index]
            "kernelweld": float((got - expected).abs().max() / scale),
            "inductor": float((other - expected).abs().max() / scale),
        }
        record["merged"] = fused._compiled_call_impl.merge.report.to_json()  # type: ignore[union-attr]
        record["report"] = json.loads(kernelweld.report(fused).to_json())["graphs"][-1]
    ready.touch()
    while not go.exists():
        time.sleep(0.2)
    times = {(name, depth): graph_time(step) for (name, depth), step in steps.items()}
    for name in counts:
        per = (len(counts[name][3]) - len(counts[name][1])) / 2
        record[name] = {"launches": per, "us": (times[name, 3] - times[name, 1]) / 2}
    record["kernels"] = counts["kernelweld"][3]
    record["inductor_kernels"] = counts["inductor"][3]
    return record


def worker(kind: str, folder: Path) -> None:
    """One kind of layer in its own process."""
    slug = kind.replace(" ", "_")
    torch.set_grad_enabled(False)
    try:
        result = measure(kind, folder / f"{slug}.ready", folder / f"{slug}.go")
    except BaseException:
        (folder / f"{slug}.ready").touch()
        raise
    text = json.dumps(result).replace(
        f"{Path(torch.__file__).parents[1]}/", ""
    )  # sources without folders of this machine
    (folder / f"{slug}.json").write_text(text)


def environment() -> dict[str, str]:
    """What the figures were taken on."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip().splitlines()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "kernelweld": kernelweld.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), help="kinds of layers to measure")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/hf_layers.json"))
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker[0], Path(arguments.worker[1]))
        return 0
    results, failed = run_all(arguments.layers)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"environment": environment(), "cache_tokens": CACHE, "layers": results}, indent=1) + "\n"
    )
    print_table(results)
    return 1 if failed else 0


def run_all(kinds: list[str]) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Compiles all kinds side by side, then times them one after another."""
    folder = Path(tempfile.mkdtemp())
    processes = {}
    for kind in kinds:
        log = (folder / f"{kind.replace(' ', '_')}.log").open("w")
        command = [sys.executable, __file__, "--worker", kind, str(folder)]
        processes[kind] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    slugs = {kind: kind.replace(" ", "_") for kind in kinds}
    while not all(
        (folder / f"{slug}.ready").exists() or processes[kind].poll() is not None
        for kind, slug in slugs.items()
    ):
        time.sleep(0.5)
    results, failed = {}, []
    for kind, slug in slugs.items():
        (folder / f"{slug}.go").touch()
        processes[kind].wait()
        path = folder / f"{slug}.json"
        if path.exists():
            results[kind] = json.loads(path.read_text())
        else:
            failed.append(kind)
            print(f"--- {kind} failed\n{(folder / f'{slug}.log').read_text()[-3000:]}")
    return results, failed


def print_table(results: dict[str, dict[str, object]]) -> None:
    """The figures a layer, and the relative error of the logits against eager beside Inductor's own."""
    print(f"{'layer':24}{'eager':>16}{'inductor':>16}{'kernelweld':>16}{'error':>12}{'inductor':>12}")
    for kind, r in results.items():
        cells = "".join(
            f"{r[n]['launches']:>6g} {r[n]['us']:>7.1f}us" for n in ("eager", "inductor", "kernelweld")
        )  # type: ignore[index]
        errors = r["errors"]["3"]  # type: ignore[index]
        print(f"{kind:24}{cells}{errors['kernelweld']:>12.2e}{errors['inductor']:>12.2e}")


if __name__ == "__main__":
    raise SystemExit(main())
