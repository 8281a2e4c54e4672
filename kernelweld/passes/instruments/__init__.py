"""Instruments: what can be watched of a pipeline run, one a file."""

from __future__ import annotations

from kernelweld.passes.instruments.base import Instrument, Step
from kernelweld.passes.instruments.dump_dir import DumpDir
from kernelweld.passes.instruments.print_ir import PrintIR
from kernelweld.passes.instruments.stats import PassStats, Stats
from kernelweld.passes.instruments.timing import Timing
from kernelweld.passes.instruments.verify_each import VerifyEach

__all__ = ["DumpDir", "Instrument", "PassStats", "PrintIR", "Stats", "Step", "Timing", "VerifyEach"]
