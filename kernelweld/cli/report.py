"""``kernelweld report``: what became of a model, as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import inspect
from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output

if TYPE_CHECKING:
    from kernelweld.cli.compiling import Wanted
    from kernelweld.cli.reported import Shown
    from kernelweld.cli.targets import Target
    from kernelweld.cli.times import Times

EXAMPLES = """Examples:

\b
kernelweld report hf:qwen3_5_moe --html report.html
kernelweld report hf:deepseek_v32 --full --phase decode --html report.html --force
kernelweld report hf:llama --target sm_90,gfx942 --html report.html
kernelweld report hf:llama --bench bench.json --html report.html
kernelweld report my_module:my_function --no-compile
"""


def command(
    target: o.TargetName,
    html: o.HtmlTo = None,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    gpus: o.GpuTargets = "sm_90",
    compiles: o.Compiles = True,
    bench: o.BenchFile = None,
    force: o.Force = False,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Show a model's launches layer by layer, its welds, and what is not welded, as one HTML file.

    The file works without a network. Each kernel is compiled for --target, without a GPU; times are those of
    --bench and those that bench --tune kept. Without --html a summary is printed. Exits with 1 if a pass
    failed.
    """
    _refuse_to_replace(html, force)
    wanted, times, start = _wanted(gpus if compiles else ""), _times(bench), time.monotonic()
    sizes = {"layers": layers, "full": full, "batch": batch, "dtype": dtype, "cache": cache}
    with messages().status(f"building {target}"):
        resolved = inspect.build(target, phase, **sizes)  # type: ignore[arg-type]
    facts = _facts(resolved, phase, full=full, batch=batch, dtype=dtype, cache=cache)
    shown = _shown(resolved, facts, wanted, times, merge=merge_gemms, stop=full)
    if html is not None:
        _write(shown, html)
    messages().print(f"[dim]{target}: {time.monotonic() - start:.0f} s[/]")
    _print(shown, html, as_json)
    _fail(shown)


def _refuse_to_replace(html: Path | None, force: bool) -> None:
    """Before anything is built."""
    from kernelweld.cli.compiling import refuse_to_overwrite

    if html is None:
        return
    if html.is_dir():
        raise typer.BadParameter(f"{html} is a folder", param_hint="--html")
    if not force:
        refuse_to_overwrite([html])


def _wanted(gpus: str) -> Wanted:
    from kernelweld.cli.compiling import Wanted

    return Wanted.parsed(gpus, "")


def _times(bench: Path | None) -> Times:
    from kernelweld.cli.times import Times

    try:
        return Times.known(bench)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--bench") from error


def _facts(
    resolved: Target, phase: o.Phase, *, full: bool, batch: int, dtype: o.Dtype, cache: o.Cache
) -> dict[str, str]:
    """How the target was built; of one that brings its own inputs nothing is known."""
    from kernelweld.cli.hf import PREFILL_TOKENS

    if resolved.config is None:
        return {}
    tokens = {"tokens": str(PREFILL_TOKENS)} if phase is o.Phase.prefill else {}
    dimensions = {} if not resolved.name.startswith("hf:") else {"dimensions": "real" if full else "tiny"}
    shaped = {"batch": str(batch), "dtype": dtype.value, "cache": cache.value}
    return {"phase": phase.value, **tokens, **shaped, **dimensions}


def _shown(
    resolved: Target, facts: dict[str, str], wanted: Wanted, times: Times, *, merge: bool, stop: bool
) -> Shown:
    from kernelweld.cli.reporting import run, shown

    name = resolved.name
    with messages().status(f"capturing and fusing {name}") as status:
        found = run(resolved, merge=merge, stop=stop)
        return shown(resolved, found, facts, wanted, times, lambda text: status.update(f"{name}: {text}"))


def _write(shown: Shown, html: Path) -> None:
    from kernelweld.cli.html.page import page

    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(page(shown), encoding="utf-8")
    messages().print(f"the report is written to {html}", markup=False)


def _print(shown: Shown, html: Path | None, as_json: bool) -> None:
    from kernelweld.cli.summarising import show

    if as_json:
        typer.echo(json.dumps(shown.as_dict(), indent=2))
    elif html is None:
        show(output(), shown)


def _fail(shown: Shown) -> None:
    """What went wrong on the way, on stderr; only a failure of a pass fails the command."""
    for built in (one for weld in shown.welds for one in weld.built if one.failure is not None):
        typer.echo(f"warning: {built.target}: {built.failure}", err=True)
    for reason in shown.breaks:
        typer.echo(f"warning: graph break: {reason}", err=True)
    for failure in shown.failures:
        typer.echo(f"error: {failure}", err=True)
    if shown.failures:
        raise typer.Exit(EXIT_FAILED)
