"""Time of ``index_topk`` against ``torch.topk`` (unsorted), under CUDA graphs, and with other sizes.

Every figure is the median of graph replays in microseconds a call; the scores are where the kernel before
leaves them, in the L2 cache as far as it holds them. ``--check`` first holds the results to the reference, on
the rows of ``tests/kernels/topk_cases.py``.

    python benchmarks/index_topk.py [--check] [--sweep] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import triton
from hf_layers import environment

from kernelweld.kernels import index_topk
from kernelweld.kernels.index_topk import DEFAULT, Sizes, launch, reference

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))

from topk_cases import LENGTHS, SCORES

K, BLOCK = 2048, 64
#: Rows, length of each, columns there are.
SHAPES = [
    *((rows, 8192, 8192) for rows in (1, 16, 64, 256)),
    *((rows, 8192, 163840) for rows in (1, 16, 64, 256)),
    *((1, length, 163840) for length in (2048, 4096, 6000, 12000, 16384, 20000, 32768, 65536)),
    *((1, 131072, 131072), (4, 131072, 131072), (4, 32768, 32768), (32, 131072, 131072)),
    *((64, 131072, 131072), (16, 32768, 163840), (64, 32768, 163840), (1024, 8192, 8192)),
]
OF_ALL_SCORES = [(1, 8192, 8192), (64, 8192, 8192), (4, 131072, 131072)]
SHORT = [(1, 8192, 8192), (64, 8192, 8192), (256, 8192, 8192)]
SWEPT = [
    *((1, 8192, 163840), (64, 8192, 163840), (1, 16384, 163840), (1, 131072, 131072)),
    *((4, 131072, 131072), (4, 32768, 32768), (32, 131072, 131072)),
]
TILE = replace(DEFAULT, tile=8192)
SIZES = {
    "default": (DEFAULT, [*SHORT, *SWEPT]),
    "small: 16 warps": (replace(DEFAULT, small_warps=16), SHORT),
    "small: 4 warps": (replace(DEFAULT, small_warps=4), SHORT),
    "small: late": (replace(DEFAULT, early=False), SHORT),
    "132 programs": (replace(DEFAULT, programs=132), SWEPT),
    "tile 8K": (TILE, SWEPT),
    "tile 8K, 132 programs": (replace(TILE, programs=132), SWEPT),
    "tile 8K, chunk 4K": (replace(TILE, chunk=4096), SWEPT),
    "tile 8K, chunk 4K, 132 programs": (replace(TILE, chunk=4096, programs=132), SWEPT),
    "tile 8K, chunk 4K, sample 2K, 8 warps": (replace(TILE, chunk=4096, sample=2048, warps=8), SWEPT),
    "the same, 132 programs": (replace(TILE, chunk=4096, sample=2048, warps=8, programs=132), SWEPT),
    "tile 8K, late": (replace(TILE, early=False), SWEPT),
}


def noise(rows: int, columns: int) -> torch.Tensor:
    """Standard normal scores."""
    return torch.randn(rows, columns, device="cuda")


def full(rows: int, length: int) -> torch.Tensor:
    """The same length for all rows."""
    return torch.full((rows,), length, dtype=torch.int32, device="cuda")


def pages(rows: int, columns: int) -> torch.Tensor:
    """A table of pages in disorder."""
    return torch.randint(0, 1 << 20, (rows, -(-columns // BLOCK)), dtype=torch.int32, device="cuda")


Case = tuple[str, torch.Tensor, torch.Tensor, int, bool]


def cases() -> Iterator[Case]:
    """Name, scores, lengths, k, and whether there is a table. Few kinds of launch: each is compiled."""
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
    rows, most = len(LENGTHS), max(LENGTHS)
    for name, scores in SCORES.items():
        yield f"{name}, all lengths", scores(noise(rows, -(-most // 16) * 16)), lengths, K, True
        padded = noise(rows, most + 13)[:, 1 : most + 1]
        yield f"{name}, padded and misaligned", padded.copy_(scores(padded)), lengths.flip(0), K, False
        for rows_, columns in ((1, 8192), (1, 131072), (3, 163840), (300, 20000)):
            yield f"{name} {rows_} x {columns}", scores(noise(rows_, columns)), full(rows_, columns), K, True
    for name, k in (("special", 1), ("normal", 5000)):
        yield f"{name} 3 x 163840", SCORES[name](noise(3, 163840)), full(3, 163840), k, False
    yield "special 2 x 8191", SCORES["special"](noise(2, 8191)), full(2, 8191), K, False
    for rows in (2, 7, 64, 255, 256):
        yield f"{rows} rows", noise(rows, 33008), torch.randint_like(full(rows, 0), 0, 33100), K, True


def check(sizes: Sizes, given: Iterator[Case]) -> int:
    """How many cases differ from the reference."""
    wrong, count = 0, 0
    for name, scores, lengths, k, paged in given:
        count += 1
        table, block = (pages(*scores.shape), BLOCK) if paged else (None, 0)
        expected = reference(scores, lengths, table, k=k, block=block)
        actual = launch(scores, lengths, table, k, block, sizes)
        if not torch.equal(actual, expected):
            wrong += 1
            rows = (actual != expected).any(1).nonzero().flatten().tolist()
            print(f"WRONG: {name}, k = {k}, table {paged}: rows {rows[:40]}", flush=True)
    print(f"{count} cases, {wrong} wrong ({sizes})", flush=True)
    return wrong


def some_cases(short: bool) -> Iterator[Case]:
    """Those that a timed launch of other sizes can be held to without compiling it again."""
    kinds = ("1 x 8192",) if short else ("all lengths", "300 x 20000")
    names = tuple(SCORES) if short else ("normal", "ties", "special", "sampled low")
    return (case for case in cases() if case[0].startswith(names) and case[0].endswith(kinds))


def check_replay() -> int:
    """Whether a graph captured with short rows is right with longer ones, at each of many replays."""
    scores, lengths = noise(4, 163840), full(4, 100)
    launch(scores, lengths, None, K, 0, DEFAULT)
    index_topk._rings.clear()  # as if the first call were in the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch(scores, lengths, None, K, 0, DEFAULT)
    wrong = 0
    for turn in range(60):
        lengths.copy_(full(4, 163840 if turn % 2 else 3000 + 2000 * turn) - torch.arange(4, device="cuda"))
        scores.copy_(noise(4, 163840))
        graph.replay()
        wrong += not torch.equal(out, reference(scores, lengths, k=K))
    print(f"60 replays, {wrong} wrong", flush=True)
    return wrong


def time(function: Callable[[], object]) -> float:
    """Microseconds of a call."""
    return float(triton.testing.do_bench_cudagraph(function, rep=10, return_mode="median")) * 1000


def timed(rows: int, length: int, columns: int, scores: str, sizes: Sizes) -> float:
    """Microseconds of ``index_topk`` with a table."""
    given, lengths, table = SCORES[scores](noise(rows, columns)), full(rows, length), pages(rows, columns)
    return time(lambda: launch(given, lengths, table, K, BLOCK, sizes))


def peer(rows: int, length: int) -> float:
    """Microseconds of ``torch.topk`` on rows of just this length."""
    given = noise(rows, length)
    return time(lambda: torch.topk(given, min(K, length), sorted=False))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="hold the results to the reference first")
    parser.add_argument("--sweep", action="store_true", help="also time other sizes")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/index_topk.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    wrong = check(DEFAULT, cases()) + check_replay() if arguments.check else 0
    results: dict[str, dict[str, float]] = {}
    report: dict[str, object] = {"environment": environment(), "k": K, "wrong": wrong, "us": results}

    def add(name: str, **figures: float) -> None:
        results[name] = figures
        print(f"{name:44}", "  ".join(f"{k} {v:7.2f}" for k, v in figures.items()), flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    for rows, length, columns in SHAPES:
        ours = timed(rows, length, columns, "normal", DEFAULT)
        add(f"{rows} x {length} of {columns}", kernelweld=ours, torch=peer(rows, length))
    for name, (sizes, shapes) in SIZES.items() if arguments.sweep else ():
        if arguments.check and sizes != DEFAULT:
            report["wrong"] = wrong = wrong + check(sizes, some_cases(shapes is SHORT))
        add(name, **{f"{r}x{n}/{c}": timed(r, n, c, "normal", sizes) for r, n, c in shapes})
    for shape in OF_ALL_SCORES:
        add(f"{shape} by scores", **{name: timed(*shape, name, DEFAULT) for name in SCORES})
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
