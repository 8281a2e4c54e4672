"""``kernelweld bisect``: the weld, or else the pass, with which a user's own check fails."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import inspect
from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages

if TYPE_CHECKING:
    from kernelweld.cli.bisecting import Candidates, Found
    from kernelweld.cli.targets import Target
    from kernelweld.cli.trials import Check, Trial
    from kernelweld.passes.editing import Passes

EXAMPLES = """Examples:

\b
kernelweld bisect --check 'python compare.py' my_module:my_function
kernelweld bisect --check 'pytest -x tests/test_model.py' hf:llama --phase decode --timeout 300
kernelweld bisect --check 'kernelweld verify hf:llama' hf:llama -p canonicalize,my-pass,raise,plan,lower
"""


def command(
    target: o.TargetName,
    check: o.CheckBy,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    pipeline: o.Passes = None,
    merge_gemms: o.Merge = True,
    timeout: o.Timeout = None,
    verbose: o.ShowOutput = False,
    as_json: o.AsJson = False,
) -> None:
    """Find the weld, or else the pass, with which a check fails.

    CMD runs again and again, each time with another pipeline in KERNELWELD_PIPELINE, which fuse and the verbs
    take in place of their own: first with everything, then without the welds of TARGET. If that helps, their
    first half is tried, and so on; otherwise the passes are. Exits with 1 if the check fails without any
    pass, and with 2 if it never fails, cannot tell, takes too long, or compiles another graph than TARGET's.
    """
    passes = _passes(pipeline)
    with messages().status(f"building {target}"):
        resolved = inspect.build(
            target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache
        )
    with messages().status(f"capturing and fusing {target}"):
        known = _candidates(resolved, passes, merge=merge_gemms, stop=full)
    runs = _check(check, timeout, verbose)
    found = _search(target, passes, known, runs)
    _show(target, found, runs, as_json)


def _passes(pipeline: str | None) -> Passes:
    """The passes to search: those of the option, or of ``fuse``."""
    from kernelweld.passes.pipeline import DEFAULT, Pipeline

    return Pipeline.from_text(DEFAULT if pipeline is None else pipeline).passes


def _candidates(target: Target, passes: Passes, *, merge: bool, stop: bool) -> Candidates:
    from kernelweld.cli.bisecting import candidates

    known = candidates(target, passes, merge=merge, stop=stop)
    for failure in known.failures:
        typer.echo(f"warning: {failure.what}; the welds of that graph are not searched", err=True)
    return known


def _check(command: str, timeout: float | None, verbose: bool) -> Check:
    from kernelweld.cli.trials import Check

    logs = None if verbose else Path(tempfile.mkdtemp(prefix="kernelweld-bisect-"))
    if logs is not None:
        typer.echo(f"what the checks write is in {logs}", err=True)
    return Check(command, timeout, logs, _tell)


def _tell(trial: Trial) -> None:
    verdict = "passes" if trial.passes else "fails"
    typer.echo(f"check {trial.number}: {trial.on}: {verdict} ({trial.seconds:.1f} s)", err=True)


def _search(target: str, passes: Passes, known: Candidates, check: Check) -> Found:
    from kernelweld.cli.bisecting import search

    if check.logs is None:
        return search(target, passes, known.welds, check)
    with messages().status(f"bisecting {len(known.welds)} welds of {target}"):
        return search(target, passes, known.welds, check)


def _show(target: str, found: Found, check: Check, as_json: bool) -> None:
    from kernelweld.cli.bisecting import NotFound
    from kernelweld.cli.culprit import as_dict, lines

    if as_json:
        typer.echo(json.dumps(as_dict(target, found, check), indent=2))
    else:
        typer.echo("\n".join(lines(target, found, check)))
    if isinstance(found, NotFound):
        raise typer.Exit(EXIT_FAILED)
