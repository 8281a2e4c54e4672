"""The table of docs/vllm.md, from benchmarks/results/vllm_engine.json.

python benchmarks/vllm_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "vllm_engine.json"
BATCHES = (1, 8, 64)


def table(record: Mapping[str, Any]) -> str:
    """One row a model and batch: kernels a layer, time per output token, and time that kernels ran."""
    return "\n".join(_lines(record))


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    yield "| model | batch | kernels a layer | time per output token, µs | kernels' own time, µs |"
    yield "|---|---|---|---|---|"
    for name, model in record["models"].items():
        for batch in BATCHES:
            before, after = (model[f"batch {batch}"][variant] for variant in ("vllm", "kernelweld"))
            kernels = [one["kernels"] / model["layers"] for one in (before, after)]
            cells = [
                f"{kernels[0]:.1f} → {kernels[1]:.1f}",
                *(f"{before[key]:.0f} → {after[key]:.0f}" for key in ("us_per_token", "gpu_us")),
            ]
            yield f"| {name} | {batch} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table(json.loads(RESULTS.read_text())))
