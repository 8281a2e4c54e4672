"""Checking many programs, one after the other or on several processes, and saying what was found."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from graphfuzz.compose import compose
from graphfuzz.oracle import Failure, Outcome, Settings, check
from graphfuzz.program import Program
from graphfuzz.shrink import shrunk


@dataclass
class Tally:
    """What many programs added up to."""

    programs: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spelled: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    welds: int = 0
    tasks: int = 0
    second_looks: int = 0

    def add(self, other: Tally) -> None:
        """Adds the counts of ``other``."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.programs} programs, {len(self.failures)} failures, {self.seconds:.0f} s of CPU time",
                f"words spelled: {_listed(self.spelled)}",
                f"words raised:  {_listed(self.raised)}",
                f"{self.welds} welds of {self.tasks} tasks; {self.second_looks} results looked at twice",
            ]
        )


def run(seeds: Iterable[int], interpret_every: int = 10, workers: int = 1) -> Iterator[Tally]:
    """The tally of each of ``seeds``, in order."""
    one = partial(run_one, interpret_every=interpret_every)
    if workers == 1:
        yield from map(one, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=200) as pool:
        yield from pool.map(one, seeds, chunksize=10)


def run_one(seed: int, interpret_every: int = 10, shrink: bool = True) -> Tally:
    """Composes and checks the program of ``seed``; a failure is reported with the smallest program
    that shows it.
    """
    start = time.process_time()
    settings, program = Settings.of(seed, interpret_every), compose(seed)
    outcome = attempt(program, seed, settings)
    tally = Tally(1, [], 0.0, program.meant, outcome.words, outcome.misses)
    tally.welds, tally.tasks, tally.second_looks = outcome.welds, outcome.tasks, outcome.second_looks
    if outcome.failure is not None:
        tally.failures.append(report(program, seed, settings, outcome.failure, shrink=shrink))
    tally.seconds = time.process_time() - start
    return tally


def attempt(program: Program, seed: int, settings: Settings) -> Outcome:
    """``check``, with errors of any kind as failures."""
    try:
        return check(program, seed, settings)
    except Exception as error:  # a crash is a finding like any other
        detail = "".join(traceback.format_exception(error))
        return Outcome(Failure(f"crash {type(error).__name__}", detail))


def report(program: Program, seed: int, settings: Settings, failure: Failure, *, shrink: bool = True) -> str:
    """What went wrong, on which program, and how to see it again."""
    if shrink:
        program = shrunk(program, lambda p: _kind(attempt(p, seed, settings)) == failure.kind)
        failure = attempt(program, seed, settings).failure or failure
    every = int(settings.interpret)
    return (
        f"seed {seed}, {failure.kind}: {failure.detail}\n"
        f"to see it again: python tests/fuzz --seed {seed} --interpret {every}    ({settings})\n"
        f"{program.source(seed)}\n"
    )


def _kind(outcome: Outcome) -> str:
    return outcome.failure.kind if outcome.failure is not None else ""


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))
