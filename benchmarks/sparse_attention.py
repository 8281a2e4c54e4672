"""Sparse attention at decode: ``index_logits`` and ``sparse_mla`` checked against their references and timed.

Times are medians of CUDA-graph replays in microseconds, of inputs that stay where the cache keeps them. Every
tiling that ``--sweep`` tries is listed; the one that the operator chooses by itself is marked.

    python benchmarks/sparse_attention.py --out FILE.json [--check] [--sweep]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))
import index_cases
import mla_cases

from kernelweld.kernels import index_logits, sparse_mla
from kernelweld.kernels.sparse_mla import Tiling

COPY = 4.2e6  # bytes a microsecond that an H200 copies
CONTEXTS = (8192, 32768, 131072)
TOKENS = (1, 16, 64)
PACKED, BF16, E4M3 = torch.uint8, torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Index:
    """One shape of ``index_logits``, and how it is launched."""

    tokens: int
    context: int
    options: tuple[tuple[str, Any], ...] = ()

    def inputs(self) -> dict[str, Any]:
        lengths = [self.context] * self.tokens
        return index_cases.case(lengths, 64, 128, 64, self.context // 64, device="cuda")

    def call(self, inputs: dict[str, Any]) -> torch.Tensor:
        return index_logits.kernel(**inputs, **dict(self.options))

    @property
    def shape(self) -> str:
        return f"index_logits {self.tokens} x {self.context}"

    @property
    def floor(self) -> float:
        return self.tokens * self.context * (132 + 4) / COPY

    @property
    def launch(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.options) or "chosen"


@dataclass(frozen=True)
class Mla:
    """One shape of ``sparse_mla``, and how it is launched."""

    tokens: int
    heads: int
    kind: torch.dtype = BF16
    tiling: Tiling | None = None

    def inputs(self) -> dict[str, Any]:
        pages = max(2048, 2048 * self.tokens) // 64
        return mla_cases.case(self.tokens, self.heads, 2048, 512, 64, 64, pages, (BF16, self.kind), "cuda")

    def call(self, inputs: dict[str, Any]) -> torch.Tensor:
        return sparse_mla.kernel(**inputs, tiling=self.tiling)

    @property
    def shape(self) -> str:
        return f"sparse_mla {self.tokens} x {self.heads} {str(self.kind).removeprefix('torch.')}"

    @property
    def floor(self) -> float:
        width = {BF16: 1152, E4M3: 576, PACKED: 656}[self.kind]
        return self.tokens * (2048 * 0.8 * width + self.heads * 1088 * 2) / COPY

    @property
    def launch(self) -> str:
        t = self.tiling
        return f"h{t.heads} t{t.tile} s{t.splits} p{t.parts} w{t.warps} n{t.stages}" if t else "chosen"


def indices(sweep: bool) -> Iterator[Index]:
    """What is timed of ``index_logits``."""
    for tokens, context in itertools.product(TOKENS, CONTEXTS):
        yield Index(tokens, context)
        if not sweep or context != CONTEXTS[0]:
            continue
        for tile, warps in ((64, 4), (128, 4), (128, 8)):
            yield Index(tokens, context, (("tile", tile), ("warps", warps)))
        for tile in (64, 128):
            yield Index(tokens, context, (("tile", tile), ("dot", tl.float16)))


def tilings(tokens: int, heads: int) -> Iterator[Tiling]:
    """What is tried for a shape of ``sparse_mla``."""
    if heads == 16:
        splits = {1: (16, 32), 16: (2, 4, 8), 64: (1, 2, 4)}[tokens]
        parts = {1: (2, 4), 16: (1, 2, 4), 64: (1, 2)}[tokens]
        for s, p in itertools.product(splits, parts):
            yield Tiling(16, 64, s, p, 8, 2)
            if p in (1, 4):
                yield Tiling(16, 32, s, p, 4, 3)
        return
    for s in {1: (8, 16), 16: (1, 2), 64: (1, 2)}[tokens]:
        yield Tiling(16, 32, s, 2, 4, 2)
        yield Tiling(64, 32, s, 1, 8, 3)


def attentions(sweep: bool) -> Iterator[Mla]:
    """What is timed of ``sparse_mla``."""
    for tokens, heads, kind in itertools.product(TOKENS, (16, 128), (BF16, PACKED, E4M3)):
        yield Mla(tokens, heads, kind)
        if sweep and kind != E4M3:
            yield from (Mla(tokens, heads, kind, tiling) for tiling in tilings(tokens, heads))


def compiled(case: Index | Mla) -> str:
    """Compiles one case, so that another process finds it in Triton's cache; what prevents it, if any."""
    small = replace(case, context=8192) if isinstance(case, Index) else case
    try:
        case.call(small.inputs())
        torch.cuda.synchronize()
    except Exception as error:  # Triton raises many types; all mean that this tiling is none
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


def microseconds(call: Callable[[], object]) -> float:
    """The median of replays of a CUDA graph of the call."""
    return triton.testing.do_bench_cudagraph(call, rep=10, return_mode="median") * 1000


def timed(cases: list[Index | Mla], out: dict[str, dict[str, Any]]) -> None:
    """Times every case, after all have been compiled side by side; prints and records each shape's."""
    distinct = list({(type(c), c.shape, c.launch): c for c in cases}.values())
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        failures = dict(zip(distinct, pool.map(compiled, distinct), strict=True))
    for shape, group in itertools.groupby(distinct, key=lambda c: c.shape):
        members = list(group)
        inputs, times = members[0].inputs(), {}
        for case in members:
            if failures[case]:
                times[case.launch] = failures[case]
                continue
            times[case.launch] = microseconds(partial(case.call, inputs))
        out[shape] = {"us": times, "floor_us": members[0].floor}
        figures = sorted((t, n) for n, t in times.items() if not isinstance(t, str))
        best = ", ".join(f"{n} {t:.2f}" for t, n in figures[:6])
        chosen = times["chosen"]
        text = f"{chosen:8.2f}" if isinstance(chosen, float) else chosen
        print(f"{shape:34} {text}  floor {members[0].floor:7.2f} | {best}", flush=True)
        for name, text in times.items():
            if isinstance(text, str):
                print(f"    {name}: {text}")


def check_index() -> Iterator[tuple[str, float, float]]:
    """Name, error and bound of every check of ``index_logits``; errors in the row's largest logit."""
    for kinds, (lengths, heads, width, block, pages) in itertools.product(
        index_cases.KINDS,
        [([0, 1, 63, 64, 65, 1000], 64, 128, 64, 16), ([5, 200], 3, 48, 8, 30), ([900], 128, 64, 1, 901)],
    ):
        case = index_cases.case(lengths, heads, width, block, pages, kinds, "cuda")
        expected = index_logits.reference(**case)
        finite = expected.isfinite()
        size = expected.masked_fill(~finite, 0).abs().amax(1, keepdim=True)
        for tile in (None, 128):
            actual = index_logits.kernel(**case, tile=tile)
            error = ((actual - expected).abs() / size)[finite].max().item()
            same = torch.equal(actual.isneginf(), ~finite)
            yield f"index {kinds} H{heads} D{width} block {block} tile {tile}", error if same else 9.0, 1e-3


def check_rows() -> Iterator[tuple[str, float, float]]:
    """That a row of logits has the same bits in any batch and with any tile."""
    case = index_cases.case([3000] * 64, 64, 128, 64, 64, device="cuda")
    whole = index_logits.kernel(**case)
    for tile, warps in ((64, 4), (128, 4), (128, 8)):
        one = {n: x[5:6] if torch.is_tensor(x) and n != "cache" else x for n, x in case.items()}
        alone = index_logits.kernel(**one, tile=tile, warps=warps)
        yield f"index row alone, tile {tile}, {warps} warps", float((alone != whole[5:6]).sum()), 0.0


def check_mla() -> Iterator[tuple[str, float, float]]:
    """Checks of ``sparse_mla`` for every kind of cache; errors in the row's largest element."""
    for kinds in mla_cases.KINDS:
        for tokens, heads, count in [
            (1, 16, 2048),
            (3, 5, 100),
            (2, 128, 300),
            (200, 16, 64),
            (64, 16, 2048),
        ]:
            if tokens * count > 9999 and torch.float32 in kinds:
                continue
            case = mla_cases.case(tokens, heads, count, 512, 64, 64, 40, kinds, "cuda")
            case["slots"][-1, : count // 2] = -1
            yield f"mla {kinds} T{tokens} H{heads} K{count}", *mla_error(case)
    for tiling in (Tiling(16, 64, 16, 4), Tiling(16, 32, 32, 1), Tiling(64, 32, 4, 2, 8)):
        case = mla_cases.case(2, 20, 2048, 512, 64, 64, 40, device="cuda")
        yield f"mla {tiling}", *mla_error(case, tiling)
    case = mla_cases.case(3, 16, 2048, 512, 64, 64, 40, device="cuda")
    case["slots"][1] = -1
    yield "mla without slots", float(sparse_mla.kernel(**case)[1].ne(0).sum()), 0.0


def mla_error(case: dict[str, Any], tiling: Tiling | None = None) -> tuple[float, float]:
    actual, expected = sparse_mla.kernel(**case, tiling=tiling).float(), sparse_mla.reference(**case).float()
    size = expected.abs().amax(-1, keepdim=True).clamp_min(1e-20)
    narrow = torch.float32 not in (case["q"].dtype, case["cache"].dtype)
    bound = (1e-2 if narrow else 1e-4) + (2**-7 if case["q"].dtype == BF16 else 0)  # a unit in the last place
    return ((actual - expected).abs() / size).nan_to_num(9.0).max().item(), bound


def check_repeats() -> Iterator[tuple[str, float, float]]:
    """The same bits in 200 launches, on two streams at once and in replays of a graph with other inputs."""
    case = mla_cases.case(4, 16, 2048, 512, 64, 64, 40, device="cuda")
    tiling = Tiling(16, 64, 16, 4)
    first = sparse_mla.kernel(**case, tiling=tiling)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for i in range(200):
        with torch.cuda.stream(streams[i % 2]):
            results.append(sparse_mla.kernel(**case, tiling=tiling))
    torch.cuda.synchronize()
    yield "mla 200 launches", float(sum(not torch.equal(first, r) for r in results)), 0.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = sparse_mla.kernel(**case, tiling=tiling)
    for turn in range(3):
        case["q"].copy_(torch.randn_like(case["q"]))
        case["slots"].copy_(case["slots"].roll(7, 1))
        graph.replay()
        again = sparse_mla.kernel(**case, tiling=tiling)
        yield f"mla replay {turn}", float((again != replayed).sum()), 0.0


def check_far() -> Iterator[tuple[str, float, float]]:
    """Pages more than 2^31 elements (and 2^32 bytes) away."""
    block, pages = 64, (1 << 31) // (576 * 64) + 20
    case = mla_cases.case(1, 16, 2048, 512, 64, block, 30, device="cuda")
    far = torch.empty(pages, block, 576, dtype=BF16, device="cuda")
    far[-30:] = case["cache"]
    expected = sparse_mla.kernel(**case)
    case["slots"] = torch.where(case["slots"] < 0, -1, case["slots"] + (pages - 30) * block)
    yield "mla far pages", float((sparse_mla.kernel(**case | {"cache": far}) != expected).sum()), 0.0
    del far
    case = index_cases.case([1000], 64, 128, 64, 16, device="cuda")
    far = torch.empty((1 << 31) // (132 * 64) + 20, 64, 132, dtype=PACKED, device="cuda")
    far[-17:] = case["cache"]
    expected = index_logits.kernel(**case)
    used = torch.where(case["table"] < 1 << 20, case["table"] + len(far) - 17, case["table"])
    actual = index_logits.kernel(**case | {"cache": far, "table": used})
    yield "index far pages", float((actual != expected).sum()), 0.0


def guarded(checks: Iterator[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    """The checks; one that raises is one that failed, and the last of its kind."""
    try:
        yield from checks
    except Exception:  # what comes after it is to run all the same
        traceback.print_exc()
        yield "raised", math.inf, 0.0


def check() -> list[dict[str, Any]]:
    """Runs all checks; prints those that fail and the largest error."""
    records = []
    for checks in (check_index, check_rows, check_mla, check_repeats, check_far):
        for name, error, bound in guarded(checks()):
            records.append({"check": name, "error": error, "bound": bound})
            if not error <= bound:
                print(f"FAILED {name}: {error:.3g} > {bound:.3g}", flush=True)
        worst = max(r["error"] / r["bound"] if r["bound"] else r["error"] for r in records)
        print(f"{checks.__name__}: {len(records)} so far, worst error {worst:.3f} of its bound", flush=True)
    return records


def accuracy() -> dict[str, float]:
    """The largest error of logits, in the row's largest, by the type of the products."""
    case = index_cases.case([8192], 64, 128, 64, 128, device="cuda")
    exact = index_logits.reference(**case).double()
    errors = {}
    for name, dot in (("float8e4nv", tl.float8e4nv), ("float16", tl.float16)):
        actual = index_logits.kernel(**case, dot=dot).double()
        errors[name] = ((actual - exact).abs().max() / exact.abs().max()).item()
    print("index_logits, largest error against float32 by type of products:", errors, flush=True)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="first compare with the references")
    parser.add_argument("--sweep", action="store_true", help="also time other tilings")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attention.json"))
    arguments = parser.parse_args()
    from hf_layers import environment  # here: processes that compile need not import transformers

    torch.set_grad_enabled(False)
    report: dict[str, Any] = {"environment": environment(), "index_logits": {}, "sparse_mla": {}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.check:
        report["checks"], report["accuracy"] = check(), accuracy()
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    timed(list(attentions(arguments.sweep)), report["sparse_mla"])
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    timed(list(indices(arguments.sweep)), report["index_logits"])
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
