"""Time of one chain: kernelweld, Inductor, and the hand-written kernels of vLLM, FlashInfer and Liger, in one
run under CUDA graphs.

Inputs rotate through more memory than the L2 cache holds; ``hot`` figures are of one set of inputs, which the
cache keeps as far as it fits. Every figure is the median of graph replays, in microseconds a call; contenders
are replayed in turn. vLLM takes part when ``--vllm`` names its library of operators, the others when they are
installed; libraries that have a kernel for a chain and do not take part are named as absent. A kernel whose
results are not the chain's is marked with the share of elements that differ.

    python benchmarks/kernels.py [--chains NAME ...] [--tokens N ...] [--vllm _C.abi3.so] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from chains import CHAINS, Chain, Inputs
from hf_layers import environment
from peers import disagreement, peers_of, versions

import kernelweld
from kernelweld.codegen.emit import emit
from kernelweld.codegen.launch import Launch
from kernelweld.codegen.run import launch_direct
from kernelweld.codegen.timing import compared, copy_bandwidth, rotations
from kernelweld.integrations.aot import capture
from kernelweld.passes.launcher import program_of
from kernelweld.passes.pipeline import Pipeline

TOKENS = (1, 4, 16, 64, 256, 2048, 8192)
DIFFERING = 0.01  # a larger share of elements beyond a rounding step is no longer the same chain


def sets_of(chain: Chain, tokens: int) -> list[Inputs]:
    """Inputs of several calls: more bytes than the cache holds, as far as the number of sets allows."""
    torch.manual_seed(0)
    first = chain.inputs(tokens)
    return [first, *(chain.inputs(tokens) for _ in range(rotations(chain.moved(tokens)) - 1))]


def launched(chain: Chain, inputs: Inputs, launch: Launch | None = None) -> Callable[..., object] | None:
    """The chain's only weld as a direct launch; None if it reads what another kernel computes."""
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
    if not {*names.values()} <= {*places}:
        return None
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
    """The direct launch, and with other warps and rows than those chosen; nothing where there is none."""
    launches: dict[str, Launch | None] = {"direct": None}
    launches |= {f"{w} warps, {r} rows": Launch(w, 1, (r,)) for w in (4, 8, 16, 32) for r in (1, 2, 4)}
    calls = {name: launched(chain, inputs[0], launch) for name, launch in launches.items()}
    return compared({name: call for name, call in calls.items() if call is not None}, inputs)


def contenders(name: str, fused: Callable[..., object]) -> tuple[dict[str, Callable[..., object]], list[str]]:
    """What is timed for a chain by name, ourselves first, and which libraries are absent."""
    peers, absent = peers_of(name)
    inductor = torch.compile(CHAINS[name].function, dynamic=False)
    return {"kernelweld": fused, "inductor": inductor, **peers}, absent


def print_row(name: str, tokens: int, record: Mapping[str, Any]) -> None:
    """One line: each contender's time, the absent ones, and what does not compute the chain."""
    hot, differing = record["hot_us"], record["differing"]
    texts = [f"{peer} {value:7.2f} (hot {hot[peer]:7.2f})" for peer, value in record["us"].items()]
    texts += [f"{peer} absent" for peer in record["absent"]]
    texts += [f"{peer} differs in {share:.1%}" for peer, share in differing.items()]
    fraction = record["copy_fraction"]
    print(f"{name:32}{tokens:6}  {'  '.join(texts)}  {fraction:5.0%} of copy bandwidth", flush=True)


def measure(name: str, tokens: int, bandwidth: float) -> dict[str, Any]:
    """All figures of one chain at one number of tokens."""
    chain = CHAINS[name]
    torch._dynamo.reset()
    fused = kernelweld.fuse(chain.function, dynamic=False)
    (calls, absent), inputs = contenders(name, fused), sets_of(chain, tokens)
    shares = {peer: disagreement(chain, call, inputs[0]) for peer, call in peers_of(name)[0].items()}
    times, hot = compared(calls, inputs), compared(calls, inputs[:1] * len(inputs))
    return {
        "us": times,
        "hot_us": hot,
        "copy_fraction": chain.moved(tokens) / times["kernelweld"] / bandwidth,
        "welds": [w.name for g in kernelweld.report(fused).graphs for w in g.welds],
        "absent": absent,
        "differing": {peer: share for peer, share in shares.items() if share > DIFFERING},
    }


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
    report = {"environment": environment() | versions(), "copy_bytes_per_us": bandwidth, "chains": results}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.chains:
        for tokens in arguments.tokens:
            record = measure(name, tokens, bandwidth)
            print_row(name, tokens, record)
            if arguments.sweep and (found := sweep(CHAINS[name], tokens, sets_of(CHAINS[name], tokens))):
                record["sweep"] = found
                best = sorted(found.items(), key=lambda item: item[1])[:4]
                print("    ", ", ".join(f"{k} {v:.2f}" for k, v in best), f"| direct {found['direct']:.2f}")
            results[f"{name} @ {tokens}"] = record
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
