"""Random programs with and without the passes: 2,000, or as many as ``KERNELWELD_FUZZ`` says."""

from __future__ import annotations

import os

import pytest
from graphfuzz.campaign import run_one

PROGRAMS = int(os.environ.get("KERNELWELD_FUZZ", "2000"))
CHUNK = 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_passes_change_nothing_but_speed(first: int) -> None:
    tallies = map(run_one, range(first, min(first + CHUNK, PROGRAMS)))
    failures = [failure for tally in tallies for failure in tally.failures]
    assert not failures, "\n\n".join(failures)
