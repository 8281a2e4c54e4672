"""The lists and tables of ``docs/deepseek-v32.md``, between its markers.

python benchmarks/deepseek_page.py

Launches are those of ``kernelweld inspect models:deepseek_v32 --phase decode --json``, which runs here; times
are of ``benchmarks/results/``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "deepseek-v32.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKER = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Json = Mapping[str, Any]


def inspected() -> Json:
    """The attention path, as the command line prints it."""
    command = [sys.executable, "-m", "kernelweld.cli", "inspect", "models:deepseek_v32", "--phase", "decode"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
    found: Json = json.loads(done.stdout)["attention_path"]
    return found


def results(name: str) -> Json:
    """A file of ``benchmarks/results``."""
    found: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def after(path: Json) -> Iterator[str]:
    """Every launch with welds, and the line of the model that its last result is of."""
    yield "| # | launch | of | line |"
    yield "|---|---|---|---|"
    for number, launch in enumerate(path["after"], 1):
        yield f"| {number} | `{launch['kernel']}` | {_module(launch)} | {_line(launch)} |"


def before(path: Json) -> Iterator[str]:
    """Every launch of Inductor alone."""
    yield "| # | launch | of | line |"
    yield "|---|---|---|---|"
    for number, launch in enumerate(path["before"], 1):
        yield f"| {number} | {launch['kernel']} | {_module(launch)} | {_line(launch)} |"


def unfused(path: Json) -> Iterator[str]:
    """Every operator of the model as it is written, by its line."""
    yield "| line | launches | operators |"
    yield "|---|---|---|"
    for line, group in groupby(path["unfused"], key=_line):
        names = [launch["kernel"] for launch in group]
        yield f"| {line} | {len(names)} | {', '.join(names)} |"


def layer(record: Json) -> Iterator[str]:
    """Times and kernels of a layer by batch."""
    yield "| part | batch | unfused, µs | Inductor, µs | kernelweld, µs | against Inductor | kernels |"
    yield "|---|---|---|---|---|---|---|"
    for row in record["measured"]:
        us, counts = row["us"], row["kernels"]
        times = " | ".join(f"{us[name]:.1f}" for name in ("unfused", "inductor", "kernelweld"))
        kernels = " → ".join(str(counts[name]) for name in ("unfused", "inductor", "kernelweld"))
        gain = us["inductor"] / us["kernelweld"]
        yield f"| {row['part']} | {row['batch']} | {times} | {gain:.2f}x | {kernels} |"


def packs(record: Json) -> Iterator[str]:
    """Times of the packs beside vLLM's kernels."""
    yield "| pack | tokens | kernelweld, µs | vLLM, µs | |"
    yield "|---|---|---|---|---|"
    for name, row in record["packs"].items():
        pack, tokens = name.split(" @ ")
        ours, theirs = row["us"]["kernelweld"], row["us"]["vllm"]
        yield f"| {pack} | {tokens} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |"


def routers(record: Json) -> Iterator[str]:
    """Times of routing: the best configuration, and the GEMM of the library with a choice of ours."""
    yield "| router | rows | one launch, µs | cuBLAS, then the choice, µs |"
    yield "|---|---|---|---|"
    for name, row in record["routers"].items():
        router, rows = name.split(" @ ")
        best = min(one["us"] for one in row["route"])
        yield f"| {router} | {rows} | {best:.2f} | {row['others']['library + choice']:.2f} |"


def selection(record: Json) -> Iterator[str]:
    """Times of the selection with the sizes that were the default when all shapes were timed."""
    yield "| rows x scores | kernelweld, µs | torch.topk, µs |"
    yield "|---|---|---|"
    for name, us in record["us"].items():
        if isinstance(us, dict) and set(us) == {"kernelweld", "torch"}:
            yield f"| {name.replace(' x ', ' × ')} | {us['kernelweld']:.1f} | {us['torch']:.1f} |"


def environment(record: Json) -> Iterator[str]:
    """What the figures were taken on."""
    found = record["environment"]
    yield ", ".join(f"{name} {value}" for name, value in found.items()) + "."


def page(text: str, path: Json) -> str:
    """``text`` with what stands between its markers written anew."""
    parts: dict[str, Sequence[str]] = {
        "after": list(after(path)),
        "before": list(before(path)),
        "unfused": list(unfused(path)),
        "layer": list(layer(results("deepseek_v32"))),
        "environment": list(environment(results("deepseek_v32"))),
        "packs": list(packs(results("deepseek_packs"))),
        "routers": list(routers(results("router"))),
        "selection": list(selection(results("index_topk"))),
    }
    return MARKER.sub(lambda m: m[1] + "\n".join(parts[m[2]]) + "\n" + m[3], text)


def _module(launch: Json) -> str:
    module = str(launch["module"]).removeprefix("self_attn").lstrip(".")
    return module or "attention"


def _line(launch: Json) -> str:
    return str(launch["source"]).rpartition("kernelweld/models/")[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), inspected()))
