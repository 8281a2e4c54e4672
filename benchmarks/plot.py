"""Draws ``docs/kernels.png`` from ``benchmarks/results/kernels.json``; needs matplotlib (extra ``bench``).

python benchmarks/plot.py
"""

from __future__ import annotations

import json
from collections import defaultdict

import matplotlib.pyplot as plt
from performance_page import CHAINS, ROOT, ratio

PLOT = ROOT / "docs" / "kernels.png"


def main() -> None:
    """One line a chain: time relative to the fastest peer over tokens; 1 is the peer."""
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for name, record in json.loads(CHAINS.read_text(encoding="utf-8"))["chains"].items():
        chain, _, tokens = name.partition(" @ ")
        lines[chain][int(tokens)] = ratio(record)
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    axes.set_prop_cycle(color=plt.get_cmap("tab20").colors)
    for chain, points in lines.items():
        axes.plot(list(points), list(points.values()), marker="o", markersize=4, label=chain)
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set(
        xscale="log",
        ylim=(0, 1.45),
        xlabel="tokens",
        ylabel="time, relative to the fastest of the others",
    )
    axes.set_xticks(sorted({t for points in lines.values() for t in points}))
    axes.get_xaxis().set_major_formatter("{x:.0f}")
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(PLOT, dpi=110)


if __name__ == "__main__":
    main()
