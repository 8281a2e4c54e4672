"""Runs the graph fuzzer by hand: ``python tests/fuzz --seed 7`` checks one program."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

import argparse
import sys
import tempfile
import warnings

from graphfuzz.campaign import Tally, run
from graphfuzz.compose import compose


def main() -> int:
    options = _parser().parse_args()
    if options.show:
        print(compose(options.seed).source(options.seed))
    warnings.filterwarnings("ignore", message=".*degrees of freedom")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNELWELD_CACHE_DIR"] = folder
        total = _run(options)
    print(total)
    for reason, count in total.misses.most_common() if options.misses else ():
        print(f"{count:6} {reason}")
    return int(bool(total.failures))


def _run(options: argparse.Namespace) -> Tally:
    total = Tally()
    seeds = range(options.seed, options.seed + options.count)
    for tally in run(seeds, options.interpret, options.workers):
        total.add(tally)
        for failure in tally.failures:
            print(failure, flush=True)
        if total.programs % 1000 == 0:
            print(f"{total.programs} programs, {len(total.failures)} failures", file=sys.stderr)
    return total


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python tests/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="the first program (default 0)")
    parser.add_argument("--count", type=int, default=1, help="how many programs (default 1)")
    parser.add_argument("--workers", type=int, default=1, help="how many processes (default 1)")
    parser.add_argument(
        "--interpret",
        type=int,
        default=10,
        metavar="N",
        help="interpret the kernels of every Nth program; 0: none",
    )
    parser.add_argument("--show", action="store_true", help="print the first program")
    parser.add_argument(
        "--misses", action="store_true", help="print why nearly matching nodes were not raised"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
