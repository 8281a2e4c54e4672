"""Writes ``docs/performance.md`` from the results in ``benchmarks/results/``.

python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hf_layers.json"
CHAINS = ROOT / "benchmarks" / "results" / "kernels.json"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance

Every figure on this page is written by `benchmarks/performance_page.py` from `benchmarks/results/*.json`.

## One decoder layer of transformers models, one decode step

Real dimensions, heads and experts of one tensor-parallel rank, a dynamic cache of {cache} tokens, batch 1,
bfloat16, random weights. A layer is half the difference between models of three layers and of one. Kernels by
the profiler, time as the median of CUDA-graph replays, all in one run of `benchmarks/hf_layers.py`.

| layer | eager | Inductor | kernelweld | against Inductor | error of the logits: kernelweld, Inductor |
|---|---|---|---|---|---|
"""

TAIL = """
The error is the largest difference to eager's logits over their largest magnitude, after three layers of
random weights: routing and top-k of random experts flip easily, for Inductor as for us.

{environment}
"""

CHAINS_HEAD = """
## Chains

One kernel of kernelweld against what Inductor makes of the same plain torch, and against the hand-written
kernels of vLLM, FlashInfer and Liger where they have one: microseconds, median of CUDA-graph replays in turn,
inputs that rotate through more memory than the L2 cache holds, all in one run of `benchmarks/kernels.py`.
Below each time, the time with inputs that stay in the cache as far as they fit. The last column is the memory
that has to be read and written, over time and the bandwidth of a copy kernel ({bandwidth:.2f} TB/s).
FlashInfer's norms are those that it compiles from CUDA; those in its DSL for Python were not installed.

{absent}| chain | tokens | {contenders} | of the fastest other | of copy bandwidth |
|---|---|{rule}---|---|
"""

#: How contenders are called, in the order of the columns.
CONTENDERS = {
    "kernelweld": "kernelweld",
    "inductor": "Inductor",
    "vllm": "vLLM",
    "flashinfer": "FlashInfer",
    "liger": "Liger",
}

MEANS = """
Geometric mean over the chains of the time relative to the fastest of the others, without the one that ends in
a paged cache, for which there is Inductor alone, with several kernels:

| tokens | {tokens} |
|---|{rule}|
| rotating | {rotating} |
| hot | {hot} |

![Time relative to the fastest of the others](kernels.png)

{environment}
"""


def page() -> str:
    """The text of the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = "\n".join(_row(kind, record) for kind, record in results["layers"].items())
    environment = ", ".join(f"{name} {value}" for name, value in results["environment"].items())
    layers = HEAD.format(cache=results["cache_tokens"]) + rows + "\n" + TAIL.format(environment=environment)
    return layers + chains(json.loads(CHAINS.read_text(encoding="utf-8")))


def chains(results: dict[str, Any]) -> str:
    """The part of the page about chains."""
    shown = _contenders(results["chains"])
    rows = "\n".join(_chain(name, record, shown) for name, record in results["chains"].items())
    means = {kind: _means(results["chains"], kind) for kind in ("us", "hot_us")}
    tokens = list(means["us"])
    texts = {kind: " | ".join(f"{mean:.2f}" for mean in found.values()) for kind, found in means.items()}
    environment = ", ".join(f"{name} {value}" for name, value in results["environment"].items())
    return (
        CHAINS_HEAD.format(
            bandwidth=results["copy_bytes_per_us"] / 1e6,
            absent=_absent(results["chains"]),
            contenders=" | ".join(CONTENDERS[peer] for peer in shown),
            rule="---|" * len(shown),
        )
        + rows
        + "\n"
        + MEANS.format(
            tokens=" | ".join(map(str, tokens)),
            rule="---|" * (len(tokens) - 1) + "---",
            rotating=texts["us"],
            hot=texts["hot_us"],
            environment=environment,
        )
    )


def ratio(record: dict[str, Any], kind: str = "us") -> float:
    """The time of kernelweld over that of its fastest peer, of those that compute the same."""
    times, others = record[kind], {"kernelweld", *record.get("differing", ())}
    return times["kernelweld"] / min(time for peer, time in times.items() if peer not in others)


def _contenders(records: dict[str, Any]) -> list[str]:
    """Those that were timed on some chain."""
    return [peer for peer in CONTENDERS if any(peer in record["us"] for record in records.values())]


def _absent(records: dict[str, Any]) -> str:
    """A sentence on the libraries that have kernels for these chains and were not installed."""
    names = dict.fromkeys(
        CONTENDERS[peer] for record in records.values() for peer in record.get("absent", ())
    )
    return f"Not installed there: {', '.join(names)}.\n\n" if names else ""


def _chain(name: str, record: dict[str, Any], contenders: list[str]) -> str:
    chain, _, tokens = name.partition(" @ ")
    us, hot = record["us"], record["hot_us"]
    cells = [f"{us[p]:.1f}<br>{hot[p]:.1f}" if p in us else "" for p in contenders]
    return (
        f"| {chain} | {tokens} | {' | '.join(cells)} | {ratio(record):.2f} | {record['copy_fraction']:.0%} |"
    )


def _means(records: dict[str, Any], kind: str) -> dict[int, float]:
    """The geometric mean over the chains, for each number of tokens."""
    found: dict[int, list[float]] = defaultdict(list)
    for name, record in records.items():
        chain, _, tokens = name.partition(" @ ")
        if "paged kv" not in chain:
            found[int(tokens)].append(ratio(record, kind))
    return {tokens: geometric_mean(ratios) for tokens, ratios in found.items()}


def _row(kind: str, record: dict[str, dict[str, float]]) -> str:
    cells = [
        f"{record[n]['launches']:g} launches, {record[n]['us']:.0f} µs"
        for n in ("eager", "inductor", "kernelweld")
    ]
    faster = record["inductor"]["us"] / record["kernelweld"]["us"]
    errors = record["errors"]["3"]  # type: ignore[index]
    columns = [kind, *cells, f"{faster:.2f}×", f"{errors['kernelweld']:.1e}, {errors['inductor']:.1e}"]  # type: ignore[index]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
