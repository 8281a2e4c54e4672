"""Writes ``docs/performance.md`` from the results in ``benchmarks/results/``.

python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hf_layers.json"
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


def page() -> str:
    """The text of the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = "\n".join(_row(kind, record) for kind, record in results["layers"].items())
    environment = ", ".join(f"{name} {value}" for name, value in results["environment"].items())
    return HEAD.format(cache=results["cache_tokens"]) + rows + "\n" + TAIL.format(environment=environment)


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
