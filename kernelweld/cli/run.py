"""``kernelweld run``: a pipeline on the graphs of a target, and the graphs that come out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import inspect
from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages
from kernelweld.cli.verify import interpret
from kernelweld.errors import NotInterpreting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelweld.cli.running import Ran, Running
    from kernelweld.cli.watching import Check, Watch

EXAMPLES = """Examples:

\b
kernelweld run hf:qwen3_5_moe --layers 1
kernelweld run -p canonicalize,raise my_module:my_function
kernelweld run my_module:my_function --print-after changed --verify-each --time
kernelweld run hf:llama --dump-dir passes --overwrite
"""


def command(
    target: o.TargetName,
    pipeline: o.Passes = None,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    graph: o.GraphNumber = None,
    merge_gemms: o.Merge = True,
    print_before: o.PrintBefore = None,
    print_after: o.PrintAfter = None,
    verify_each: o.VerifyRun = False,
    dump_dir: o.DumpTo = None,
    overwrite: o.Overwrite = False,
    time: o.Time = False,
    as_json: o.AsJson = False,
) -> None:
    """Run a pipeline on the graphs of a model and print the graphs that come out.

    --verify-each runs each graph before the passes and after every one on the same random inputs, kernels in
    Triton's interpreter; with --full, where nothing can run, it checks the rules of the IR alone. Exits with
    1 if a pass failed, whose graph is not printed.
    """
    _refuse_mixed(print_before, print_after, as_json)
    check = _checked(verify_each, full)  # before anything imports triton
    from kernelweld.cli.watching import Watch, instruments

    text = inspect.checked(pipeline)
    watch = Watch(print_before, print_after, check, dump_dir, overwrite)
    watching = instruments(watch, text)
    with messages().status(f"building {target}"):
        resolved = inspect.build(
            target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache
        )
    with messages().status(f"capturing {target} and running its passes"):
        from kernelweld.cli.running import run

        runs = run(resolved, text, watching, graph=graph, merge=merge_gemms, stop=full)
        ran = [_shown(one, watch, quiet=as_json) for one in runs]
    if as_json:
        graphs = [one.as_dict() for one in ran]
        typer.echo(json.dumps({"target": target, "pipeline": text, "graphs": graphs}, indent=2))
    _finish(ran, time)


def _refuse_mixed(print_before: str | None, print_after: str | None, as_json: bool) -> None:
    for option, given in (("--print-before", print_before), ("--print-after", print_after)):
        if as_json and given:
            raise typer.BadParameter("it does not go with --json", param_hint=option)


def _checked(verify_each: bool, full: bool) -> Check | None:
    """What is checked of each pass; makes this process interpret kernels if graphs are to run."""
    if verify_each and full:
        note = "--full has no numbers to run: --verify-each checks the rules of the IR, and no results"
        typer.echo(note, err=True)
        return "rules"
    if verify_each and not interpret():
        raise NotInterpreting("kernelweld run --verify-each")
    return "results" if verify_each else None


def _shown(run: Running, watch: Watch, *, quiet: bool) -> Ran:
    """Runs the passes on one graph and prints what comes out of them."""
    if not quiet:
        typer.echo(f"# graph {run.number} of {run.among}: {run.pipeline}")
    ran = run.done()
    if not quiet and ran.text is not None:
        headed = watch.print_before is not None or watch.print_after is not None
        typer.echo(f"# result\n{ran.text}" if headed else ran.text)
    return ran


def _finish(ran: Sequence[Ran], time: bool) -> None:
    """Times and failures, on stderr; exit code 1 if there is a failure."""
    from kernelweld.cli.running import show_time

    if time:
        show_time(messages(), ran)
    failures = [one.result.failure for one in ran if one.result.failure is not None]
    for failure in failures:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise typer.Exit(EXIT_FAILED)
