"""What the command line lets one watch of a run of passes: the options of its verbs as instruments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelweld.errors import UnknownName
from kernelweld.passes.instruments import DumpDir, Instrument, PrintIR, VerifyEach
from kernelweld.passes.instruments.print_ir import When
from kernelweld.passes.pipeline import Pipeline

Check = Literal["rules", "results"]


@dataclass(frozen=True)
class Watch:
    """The options: passes as ``PASS,…``, ``all`` or, after them, ``changed``; what of each pass is checked; a
    folder to write to.
    """

    print_before: str | None = None
    print_after: str | None = None
    check: Check | None = None
    dump_dir: Path | None = None
    overwrite: bool = False


def instruments(watch: Watch, pipeline: str) -> list[Instrument]:
    """The instruments that ``watch`` names, for a run of ``pipeline``.

    Raises ``UnknownName`` for a pass that it does not hold and ``FileExistsError`` for a folder in use.
    """
    names = [one.name for one in Pipeline.from_text(pipeline).passes]
    chosen: list[Instrument] = []
    if watch.check is not None:
        chosen.append(VerifyEach(run=watch.check == "results"))
    if watch.print_before is not None:
        chosen.append(_printer("before", watch.print_before, names))
    if watch.print_after is not None:
        chosen.append(_printer("after", watch.print_after, names))
    if watch.dump_dir is not None:
        chosen.append(DumpDir(watch.dump_dir, overwrite=watch.overwrite))
    return chosen


def _printer(when: When, option: str, names: Sequence[str]) -> PrintIR:
    if option == "all":
        return PrintIR(sys.stdout, when)
    if option == "changed" and when == "after":
        return PrintIR(sys.stdout, "changed")
    chosen, whole = option.split(","), ("all", "changed") if when == "after" else ("all",)
    for name in chosen:
        if name not in names:
            raise UnknownName("pass of the pipeline", name, (*whole, *names))
    return PrintIR(sys.stdout, when, chosen)
