"""``kernelweld explain``: what a line or a kind of word became, and why what is not welded is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output

if TYPE_CHECKING:
    from kernelweld.cli.explaining import Explanation
    from kernelweld.cli.selection import Question

EXAMPLES = """Examples:

\b
kernelweld explain hf:qwen3_5_moe --near-misses
kernelweld explain hf:llama --line modeling_llama.py:66
kernelweld explain hf:minimax_m2 --kind rms_norm --phase decode
kernelweld explain my_module:my_function --line my_module.py:12 --json
"""


def command(
    target: o.TargetName,
    line: o.SourceLine = None,
    kind: o.Kind = None,
    near_misses: o.NearMissesOnly = False,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    pipeline: o.Passes = None,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Explain what a source line or a kind of word became, and why the rest was not welded.

    For each word: its weld, kernel, predicted launches before and after, and source lines, or the rule or the
    cost that kept it out. For each near miss: the node at fault, its line, the reason, and what to change.
    Exits with 1 if a pass failed.
    """
    from kernelweld.cli import inspect
    from kernelweld.cli.selection import Line, Question, checked_kind

    asked = Question(None if line is None else Line.parse(line), checked_kind(kind), near_misses)
    passes = inspect.checked(pipeline)
    with messages().status(f"building {target}"):
        resolved = inspect.build(
            target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache
        )
    with messages().status(f"capturing and fusing {target}"):
        from kernelweld.cli.explaining import explain

        found = explain(resolved, passes, merge=merge_gemms, stop=full)
    _show(target, asked, found, as_json)


def _show(target: str, asked: Question, found: Explanation, as_json: bool) -> None:
    from kernelweld.cli.answers import as_dict, show

    if as_json:
        typer.echo(json.dumps(as_dict(target, asked, found), indent=2))
    else:
        show(output(), target, asked, found)
    for reason in found.breaks:
        typer.echo(f"warning: graph break: {reason}", err=True)
    for failure in found.failures:
        typer.echo(f"error: {failure}", err=True)
    if found.failures:
        raise typer.Exit(EXIT_FAILED)
