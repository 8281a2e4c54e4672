"""Time of one chain: kernelweld, Inductor, and vLLM's hand-written kernels, in one run under CUDA graphs.

Inputs rotate through more memory than the L2 cache holds; ``hot`` figures are of one set of inputs, which the
cache keeps as far as it fits. Every figure is the median of graph replays, in microseconds a call. vLLM takes
part when ``--vllm`` names its library of operators.

    python benchmarks/kernels.py [--chains NAME ...] [--tokens N ...] [--vllm _C.abi3.so] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from chains import CHAINS, Chain, Inputs
from hf_layers import environment

import kernelweld
from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct
from kernelweld.integrations.aot import capture
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline

TOKENS = (1, 4, 16, 64, 256, 2048, 8192)
ROTATED = 128 << 20
MOST_SETS = 128


def sets_of(chain: Chain, tokens: int) -> list[Inputs]:
    """Inputs of several calls: more bytes than the cache holds, as far as the number of sets allows."""
    torch.manual_seed(0)
    first = chain.inputs(tokens)
    count = max(4, min(MOST_SETS, math.ceil(ROTATED / max(1, chain.moved(tokens)))))
    return [first, *(chain.inputs(tokens) for _ in range(count - 1))]


def microseconds(function: Callable[..., object], inputs: Sequence[Inputs], repeats: int = 9) -> float:
    """The median over ``repeats`` graph replays of the time of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for given in inputs[:2]:
            function(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for given in inputs:
                function(*given)
        graph.replay()
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / len(inputs))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per microsecond that an elementwise kernel moves, read and written: a memcpy is slower."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: torch.neg(source, out=target), [()] * 4)


def launched(chain: Chain, inputs: Inputs, launch: Launch | None = None) -> Callable[..., object]:
    """The chain's only weld as a direct launch."""
    captured = capture(chain.function, tuple(t.clone() for t in inputs))
    gm = captured.graphs[0]
    context = Pipeline.from_text("canonicalize,raise,plan{keep-all=true}", strict=True).run(gm).context
    assert context.plan is not None
    (weld,) = context.plan.welds
    program, arguments = program_of(weld)
    tasks = len(program.tasks)
    kernel = emit(program, launch and replace(launch, rows=launch.rows * tasks))
    names = {n.name: name for n, name in arguments.inputs.items()}
    names |= {cache.name: name for cache, name in arguments.caches.items()}
    places = [names.get(p.name) for p in gm.graph.find_nodes(op="placeholder")]
    order = [_place(value, inputs) for value in captured.inputs[0]]
    values = {name: node.meta["val"] for node, name in arguments.outputs.items()}
    made = {name: torch.empty(v.shape, dtype=v.dtype, device=v.device) for name, v in values.items()}

    def call(*given: torch.Tensor) -> None:
        tensors = {name: given[i] for name, i in zip(places, order, strict=True) if name is not None}
        launch_direct(kernel, {**tensors, **made}, {})

    return call


def _place(value: object, inputs: Inputs) -> int:
    """Which of ``inputs`` a graph input is: a graph takes them in the order in which it uses them."""
    assert isinstance(value, torch.Tensor)
    return next(i for i, t in enumerate(inputs) if t.dtype == value.dtype and torch.equal(t, value))


def sweep(chain: Chain, tokens: int, inputs: Sequence[Inputs]) -> dict[str, float]:
    """The direct launch with other numbers of warps than the chosen one."""
    found = {"direct": microseconds(launched(chain, inputs[0]), inputs)}
    for warps in (4, 8, 16, 32):
        for rows in (1, 2, 4):
            call = launched(chain, inputs[0], Launch(warps, 1, (rows,)))
            found[f"{warps} warps, {rows} rows"] = microseconds(call, inputs)
    return found


def peers_of(chain: Chain, fused: Callable[..., object], *, vllm: bool) -> dict[str, Callable[..., object]]:
    found = {"kernelweld": fused, "inductor": torch.compile(chain.function, dynamic=False)}
    if vllm and chain.vllm is not None:
        found["vllm"] = chain.vllm
    return found


def print_row(
    name: str, tokens: int, times: Mapping[str, float], hot: Mapping[str, float], roofline: float
) -> None:
    texts = [f"{peer} {value:7.2f} (hot {hot[peer]:7.2f})" for peer, value in times.items()]
    print(f"{name:32}{tokens:6}  {'  '.join(texts)}  {roofline:5.0%} of copy bandwidth", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chains", nargs="*", default=list(CHAINS))
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS))
    parser.add_argument("--vllm", type=Path, help="vLLM's library of operators (torch.ops._C)")
    parser.add_argument("--sweep", action="store_true", help="also time other warps and rows")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    arguments = parser.parse_args()
    if arguments.vllm:
        torch.ops.load_library(str(arguments.vllm))
    torch.set_grad_enabled(False)
    bandwidth, results = copy_bandwidth(), {}
    for name in arguments.chains:
        chain = CHAINS[name]
        for tokens in arguments.tokens:
            torch._dynamo.reset()
            fused = kernelweld.fuse(chain.function, dynamic=False)
            inputs, peers = sets_of(chain, tokens), peers_of(chain, fused, vllm=bool(arguments.vllm))
            times = {peer: microseconds(call, inputs) for peer, call in peers.items()}
            hot = {peer: microseconds(call, inputs[:1] * len(inputs)) for peer, call in peers.items()}
            welds = [w.name for g in kernelweld.report(fused).graphs for w in g.welds]
            fraction = chain.moved(tokens) / times["kernelweld"] / bandwidth
            record: dict[str, object] = {
                "us": times,
                "hot_us": hot,
                "copy_fraction": fraction,
                "welds": welds,
            }
            print_row(name, tokens, times, hot, fraction)
            if arguments.sweep:
                found = sweep(chain, tokens, inputs)
                record["sweep"] = found
                best = sorted(found.items(), key=lambda item: item[1])[:4]
                print("    ", ", ".join(f"{k} {v:.2f}" for k, v in best), f"| direct {found['direct']:.2f}")
            results[f"{name} @ {tokens}"] = record
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"environment": environment(), "copy_bytes_per_us": bandwidth, "chains": results}
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
