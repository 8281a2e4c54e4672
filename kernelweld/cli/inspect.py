"""``kernelweld inspect``: what the passes do to a model, found without compiling or running a kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, layers_of, messages, output, show_graph, show_timing
from kernelweld.errors import PassFailed

if TYPE_CHECKING:
    from kernelweld.cli.attention_path import AttentionPath
    from kernelweld.cli.targets import Target
    from kernelweld.ir.report import Report
    from kernelweld.passes.instruments import Instrument


EXAMPLES = """Examples:

kernelweld inspect hf:qwen3_5_moe --phase decode

kernelweld inspect hf:deepseek_v32 --full --layers 4 --json

kernelweld inspect models:deepseek_v32 --phase decode --json

KERNELWELD_DUMP=graphs python serve.py; kernelweld inspect graphs
"""


@dataclass(frozen=True)
class Inspected:
    """What was found in one target: graph by graph the report, failures of passes, and graph breaks."""

    report: Report
    failures: tuple[PassFailed, ...]
    breaks: tuple[str, ...]


def command(
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    pipeline: o.Passes = None,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
    print_after: o.PrintAfter = None,
    dump_dir: o.DumpTo = None,
    overwrite: o.Overwrite = False,
    verify_each: o.Verify = False,
    timing: o.ShowTiming = False,
) -> None:
    """Show the words, welds, kernel launches and near misses of a model.

    Launches are predicted: those of Inductor on CUDA without kernelweld, and with it. Exits with 1 if
    a pass failed.
    """
    if as_json and print_after:
        raise typer.BadParameter("it does not go with --json", param_hint="--print-after")
    passes = checked(pipeline)
    instruments = _instruments(passes, print_after, dump_dir, overwrite, verify_each)
    with messages().status(f"building {target}"):
        resolved = build(target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache)
    with messages().status(f"capturing and fusing {target}"):
        found = inspect(resolved, passes, instruments, merge=merge_gemms, stop=full)
        path = path_of(resolved, merge=merge_gemms, stop=full) if resolved.is_served else None
    _show(resolved, found, path, as_json, timing)


def checked(pipeline: str | None) -> str:
    """The pipeline of the command line; mistakes in it show before a model is built."""
    from kernelweld.cli.captured import pipeline_of

    return pipeline_of(pipeline)


def build(
    target: str,
    phase: o.Phase,
    *,
    layers: int | None,
    full: bool,
    batch: int,
    dtype: o.Dtype,
    cache: o.Cache,
    rows: int | None = None,
) -> Target:
    """The target of the command line; whatever its own code raises comes as ``BadTarget``."""
    import torch

    from kernelweld.cli.captured import refusing
    from kernelweld.cli.targets import resolve

    with refusing(target):
        return resolve(
            target,
            phase=phase.value,
            layers=layers,
            full=full,
            batch=batch,
            dtype=getattr(torch, dtype),
            cache=cache.value,
            rows=rows,
        )


def inspect(
    target: Target,
    pipeline: str | None = None,
    instruments: Sequence[Instrument] = (),
    *,
    merge: bool = True,
    stop: bool = False,
) -> Inspected:
    """Runs the passes on every graph of one call of ``target``. ``stop``: see ``captured``."""
    from kernelweld.cli.captured import PIPELINE, captured
    from kernelweld.ir.report import Report
    from kernelweld.passes.pipeline import Pipeline
    from kernelweld.passes.summary import run_reported

    passes = Pipeline.from_text(PIPELINE if pipeline is None else pipeline, instruments)
    found = captured(target, merge=merge, stop=stop)
    runs = [run_reported(passes, graph) for graph in found.graphs]
    failures = tuple(result.failure for result, _ in runs if result.failure is not None)
    return Inspected(Report(tuple(report for _, report in runs)), failures, found.breaks)


def path_of(target: Target, *, merge: bool, stop: bool) -> AttentionPath | None:
    """The launches of a served layer's attention, by the pipeline of ``fuse``."""
    from kernelweld.cli.attention_path import attention_path
    from kernelweld.cli.reporting import run

    return attention_path(run(target, merge=merge, stop=stop))


def _instruments(
    pipeline: str, print_after: str | None, dump_dir: Path | None, overwrite: bool, verify_each: bool
) -> list[Instrument]:
    from kernelweld.cli.watching import Watch, instruments

    check: Literal["rules"] | None = "rules" if verify_each else None
    watch = Watch(print_after=print_after, check=check, dump_dir=dump_dir, overwrite=overwrite)
    return instruments(watch, pipeline)


def _show(
    target: Target, found: Inspected, path: AttentionPath | None, as_json: bool, timing: bool
) -> None:
    if as_json:
        extra = {} if path is None else {"attention_path": path.to_json()}
        typer.echo(json.dumps(json.loads(found.report.to_json()) | extra, indent=2))
    else:
        console, layers = output(), layers_of(target)
        for number, graph in enumerate(found.report.graphs, 1):
            show_graph(console, f"{target.name}, graph {number}", graph, layers)
            if timing:
                show_timing(console, graph)
        if path is not None:
            counts = f"{len(path.unfused)} one by one, {len(path.before)} → {len(path.after)} predicted"
            console.print(f"  attention of {path.layer}: {counts}", soft_wrap=True)
    for reason in found.breaks:
        typer.echo(f"warning: graph break: {reason}", err=True)
    for failure in found.failures:
        typer.echo(f"error: {failure}", err=True)
    if found.failures:
        raise typer.Exit(EXIT_FAILED)
