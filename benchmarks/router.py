"""Time of routing: ``route`` in each configuration, cuBLAS with torch's or our choice, and vLLM's kernels.

Figures are medians of ``do_bench_cudagraph`` in microseconds, on weights that the L2 cache keeps; ``cold``
ones rotate through more weights than it holds. ``--check`` first holds results to the reference: ids,
weights, bits of a second run and of graph replays, NaN and infinite rows, strided operands.

    python benchmarks/router.py [--check] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench_cudagraph

from kernelweld.kernels.route import Rule, reference
from kernelweld.kernels.route_configs import Config, config_for, dot, products
from kernelweld.kernels.route_launch import choose, in_one, launch, logits_of

ROWS = (1, 4, 8, 16, 32)
CHECKED = (1, 3, 16, 33)
#: Seconds after which no further configuration is compiled, and after which none is timed.
COMPILING, BUDGET = 45, 100

Call = Callable[[], object]


@dataclass(frozen=True)
class Router:
    """A router of a model: its dimensions and rule."""

    model: str
    width: int
    experts: int
    rule: Rule
    weight: torch.dtype = torch.bfloat16
    rows: tuple[int, ...] = ROWS
    checked: tuple[int, ...] = CHECKED

    @property
    def name(self) -> str:
        """``7168x256 bfloat16``."""
        return f"{self.width}x{self.experts} {str(self.weight).removeprefix('torch.')}"

    def operands(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x, weight and bias, drawn anew."""
        x = torch.randn(rows, self.width, device="cuda").bfloat16()
        weight = (torch.randn(self.experts, self.width, device="cuda") / self.width**0.5).to(self.weight)
        return x, weight, torch.randn(self.experts, device="cuda") * 0.1


FEW = (1, 4, 16)
GROUPED = Rule(8, 8, 4, "sigmoid", True, 2.5)
FLAT = Rule(8, 1, 1, "sigmoid", True, 2.5)
SOFTMAX = Rule(10, 1, 1, "softmax", True, 1.0)
ROUTERS = (
    Router(
        "DeepSeek-V3.2",
        7168,
        256,
        GROUPED,
        rows=(1, 2, *ROWS[1:]),
        checked=(0, 1, 2, 3, 8, 17, 33),
    ),
    Router("MiniMax-M2", 3072, 256, FLAT, torch.float32),
    Router("Qwen3.5-397B", 4096, 512, SOFTMAX),
    Router("Kimi-K2", 7168, 384, FLAT),
    Router("GLM-5", 6144, 256, FLAT),
    Router("MiniMax-M3", 6144, 128, FLAT, torch.float32),
    Router("DeepSeek-V3.2 as in transformers", 7168, 256, GROUPED, torch.float32, FEW),
    Router("6144x128", 6144, 128, FLAT, rows=FEW),
    Router("MiniMax-M2 in bfloat16", 3072, 256, FLAT, rows=FEW),
)


def configs(router: Router, rows: int) -> list[Config]:
    """What to try, the most promising first: one of them is what ``route`` itself uses."""
    wide, width = router.weight == torch.float32, router.width
    used = config_for(rows, width, router.experts, router.weight)
    sums = [
        *([products(2, width, 4), products(2, width, 2, warps=2), products(1, width, 4)]),
        *([products(2, width, 1, warps=4), products(4, width, 4), products(1, width, 1, warps=4)]),
    ]
    few = max(width // 1024, 1)  # parts of 1024 columns
    known: list[Config] = []
    if wide and rows <= 4:
        known = [products(block_e, width, 4, wide=True) for block_e in (2, 1)]
        known += [products(2, width, few, wide=True), products(1, width, 1, wide=True, warps=4)]
    elif wide and rows <= 16:
        known = [dot(64, 128, 1), products(2, width, few, wide=True)]
    elif rows <= 4:
        known = sums
    else:
        known = [dot(16, 256, 2, 2), dot(16, 256, 4), dot(32, 256, 2), dot(16, 256, 4, 2), dot(32, 128, 2)]
        known += [dot(32, 256, 1)] * wide
    return list(dict.fromkeys([*([used] if used else []), *known]))


@dataclass(frozen=True)
class Job:
    """Something to compile: a configuration, None for what ``route`` uses; with a bias or without."""

    router: Router
    rows: int
    config: Config | None = None
    biased: bool = True


def jobs(checked: bool) -> list[Job]:
    """All there is to compile: what is checked, then the first configuration of each case, the second, …"""
    first = [Job(r, m, None, biased) for r in ROUTERS for m in r.checked for biased in (True, False)]
    cases = [[Job(r, m, config) for config in configs(r, m)] for r in ROUTERS for m in r.rows]
    return first * checked + [job for turn in zip_longest(*cases) for job in turn if job]


def compile_one(job: Job) -> str:
    """Compiles into Triton's cache; why it does not, or nothing."""
    x, weight, bias = job.router.operands(job.rows)
    try:
        operands = (x, weight, bias if job.biased else None, job.router.rule)
        in_one(*operands, job.config) if job.config else launch(*operands)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{job}: {type(error).__name__}: {error}"[:300]
    return ""


def precompile(all_jobs: list[Job], seconds: float) -> dict[Job, str]:
    """Compiles in processes of their own, until time is up: what was done, and how it failed if it did."""
    processes = max(min(14, (os.cpu_count() or 2) - 2), 1)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    futures = {job: pool.submit(compile_one, job) for job in all_jobs}
    wait(futures.values(), timeout=seconds)
    pool.shutdown(wait=True, cancel_futures=True)
    return {job: future.result() for job, future in futures.items() if not future.cancelled()}


def check() -> list[str]:
    """What differs from the reference, in words."""
    wrong = []
    for router in ROUTERS:
        for rows in router.checked:
            x, weight, bias = router.operands(rows)
            strided = torch.randn(rows, 2 * router.width, device="cuda").bfloat16()[:, router.width :]
            wrong += [f"{router.name} {rows}: {w}" for w in _differences(router, x, weight, bias)]
            wrong += [
                f"{router.name} {rows} strided: {w}" for w in _differences(router, strided, weight, None)
            ]
            if rows >= 3:
                x[0], x[1], x[2] = torch.nan, torch.inf, 0.0
                wrong += [f"{router.name} {rows} nan: {w}" for w in _differences(router, x, weight, bias)]
        wrong += [
            f"{router.name} replay {rows}: {w}" for rows in (1, 16, 33) for w in _replayed(router, rows)
        ]
    return wrong


def _differences(
    router: Router, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> Iterator[str]:
    """How ``route`` differs from its reference on these operands."""
    weights, ids = launch(x, weight, bias, router.rule)
    again = launch(x, weight, bias, router.rule)
    if not (torch.equal(ids, again[1]) and _same(weights, again[0])):
        yield "two runs differ"
    expected, wanted = reference(x, weight, bias, **asdict(router.rule))
    ordered = ids.sort().values
    if bool((ids < 0).any() | (ids >= router.experts).any() | (ordered[:, 1:] == ordered[:, :-1]).any()):
        yield "ids are not valid and distinct"
    same = (ids == wanted).all(1)
    if bool((~same & ~_is_near(router, x, weight, bias, ids, wanted)).any()):
        yield f"{int((~same).sum())} of {len(ids)} rows have other ids"
    if not torch.allclose(weights[same], expected[same], rtol=1e-4, atol=1e-5, equal_nan=True):
        yield f"weights differ by {(weights - expected)[same].abs().max().item():.2e}"


def _is_near(
    router: Router,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ids: torch.Tensor,
    wanted: torch.Tensor,
) -> torch.Tensor:
    """In which rows the choices of two lists of ids are as good as equal, so that either may come first."""
    scores = router.rule.scores.reference(x, weight)
    choice = scores if bias is None else scores + bias
    return torch.isclose(choice.gather(1, ids), choice.gather(1, wanted), rtol=1e-5, atol=1e-6).all(1)


def _replayed(router: Router, rows: int) -> Iterator[str]:
    """How replays of a captured graph differ from direct launches."""
    x, weight, bias = router.operands(rows)
    launch(x, weight, bias, router.rule)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [launch(x, weight, bias, router.rule) for _ in range(3)]
    for _ in range(5):
        x.copy_(torch.randn_like(x))
        graph.replay()
        direct = launch(x, weight, bias, router.rule)
        if not all(torch.equal(i, direct[1]) and _same(w, direct[0]) for w, i in results):
            yield "a replay differs"


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def microseconds(call: Call) -> float:
    """The median time of a call under CUDA graphs."""
    return round(1e3 * do_bench_cudagraph(call, rep=4, return_mode="median"), 3)


def cold(router: Router, rows: int, call: Callable[..., object]) -> float:
    """The time of a call whose weights are not in the cache."""
    x, weight, bias = router.operands(rows)
    copies = [weight.clone() for _ in range(max(2, (160 << 20) // weight.nbytes))]
    return round(microseconds(lambda: [call(x, copy, bias) for copy in copies]) / len(copies), 3)


def others(router: Router, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> dict[str, Call]:
    """Every other way, and the parts of ours."""
    logits, rule = logits_of(x, weight), router.rule
    known = {
        "library": lambda: logits_of(x, weight),
        "choice": lambda: choose(logits, bias, rule),
        "library + choice": lambda: choose(logits_of(x, weight), bias, rule),
    }
    if len(x) == 1:
        known["library + torch"] = lambda: rule.choice.reference(
            rule.scores.scored(logits_of(x, weight)), bias
        )
    return known | _of_vllm(router, x, weight, bias, logits)


def _of_vllm(router: Router, x: torch.Tensor, *rest: torch.Tensor) -> dict[str, Call]:
    """vLLM's two launches, if it is here and has kernels for the dimensions."""
    weight, bias, logits = rest
    try:
        from vllm import _custom_ops as ops
    except Exception:
        return {}
    rule = router.rule
    arguments = (rule.groups, rule.top_groups, rule.k, rule.renormalise, rule.scale, bias, 1)
    calls = {
        "vllm gemm": lambda: ops.dsv3_router_gemm(x, weight, torch.float32),
        "vllm grouped_topk": lambda: ops.grouped_topk(logits, *arguments),
        "vllm": lambda: ops.grouped_topk(ops.dsv3_router_gemm(x, weight, torch.float32), *arguments),
    }
    return {name: call for name, call in calls.items() if _runs(call)}


def _runs(call: Call) -> bool:
    try:
        call()
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def measure(router: Router, rows: int, known: list[Config], is_late: Callable[[], bool]) -> dict[str, Any]:
    """All figures for one router and number of rows."""
    x, weight, bias = router.operands(rows)
    found = []
    for config in known:
        if not is_late():
            try:
                us = microseconds(lambda c=config: in_one(x, weight, bias, router.rule, c))
            except Exception as error:
                print("  ", config, type(error).__name__, str(error)[:200])
                continue
            found.append({"us": us, "config": asdict(config)})
    found.sort(key=lambda one: one["us"])
    calls = others(router, x, weight, bias) if found else {}
    record: dict[str, Any] = {"route": found, "others": {n: microseconds(c) for n, c in calls.items()}}
    if found and rows in (1, 8):
        best = Config(**found[0]["config"])
        record["cold"] = cold(router, rows, lambda x, w, b: in_one(x, w, b, router.rule, best))
        record["cold library"] = cold(router, rows, lambda x, w, b: choose(logits_of(x, w), b, router.rule))
    return record


def show(router: Router, rows: int, record: dict[str, Any]) -> None:
    """One line a figure: the best configurations, then the others."""
    best = [
        f"{one['us']:.2f} ({_short(**one['config'])})" for one in record["route"][:3] + record["route"][-1:]
    ]
    texts = [f"{name} {us:.2f}" for name, us in record["others"].items()]
    texts += [f"{name} {record[name]:.2f}" for name in ("cold", "cold library") if name in record]
    print(f"{router.name:18}{rows:4}  {', '.join(best)} | {', '.join(texts)}", flush=True)


def table(router: Router, records: dict[int, dict[str, Any]]) -> str:
    """The router's entry in ``route_configs``: the fastest up to each number of rows, as long as one launch
    is faster than the library's and a choice.
    """
    entry: list[tuple[int, Config]] = []
    for rows, record in records.items():
        found = record["route"]
        if not found or found[0]["us"] >= record["others"]["library + choice"]:
            break
        best = Config(**found[0]["config"])
        if entry and entry[-1][1] == best:
            entry.pop()
        entry.append((rows, best))
    return f"({router.width}, {router.experts}, {router.weight == torch.bfloat16}): {tuple(entry)},"


def _short(block_e: int, block_k: int, steps: int, dot: bool, warps: int, **_: object) -> str:
    return f"{'dot ' * dot}{block_e}e {block_k}k x{steps} w{warps}"


def environment() -> dict[str, str]:
    """GPU, driver and versions."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
        "driver": _driver(),
    }


def _driver() -> str:
    import subprocess

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="hold results to the reference first")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/router.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    start = time.monotonic()
    report: dict[str, Any] = {"environment": environment(), "wrong": [], "routers": {}}
    wanted = jobs(arguments.check)
    compiled = precompile(wanted, COMPILING)
    print(
        f"{len(compiled)} of {len(wanted)} kernels compiled in {time.monotonic() - start:.0f} s", flush=True
    )
    print(*filter(None, compiled.values()), sep="\n")
    if arguments.check:
        report["wrong"] = check()
        print("wrong:", *(report["wrong"] or ["nothing"]), f"{time.monotonic() - start:.0f} s", sep="\n  ")
    entries = []
    for router in ROUTERS:
        records: dict[int, dict[str, Any]] = {}
        for rows in router.rows:
            known = [c for c in configs(router, rows) if compiled.get(Job(router, rows, c)) == ""]
            record = measure(router, rows, known, lambda: time.monotonic() - start > BUDGET)
            report["routers"][f"{router.name} @ {rows}"] = records[rows] = record
            show(router, rows, record)
        entries.append(table(router, records))
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(*entries, f"{time.monotonic() - start:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
