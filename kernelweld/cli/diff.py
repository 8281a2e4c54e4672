"""``kernelweld diff``: what passes change in the graphs of a target, and in their launches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import inspect
from kernelweld.cli import options as o
from kernelweld.cli.render import messages, output

if TYPE_CHECKING:
    from kernelweld.cli.diffing import Difference, Span

EXAMPLES = """Examples:

\b
kernelweld diff hf:qwen3_5_moe --layers 1
kernelweld diff my_module:my_function --from canonicalize --to raise
kernelweld diff my_module:my_function --unified -U 1
kernelweld diff hf:llama -p canonicalize,raise,canonicalize --from raise --to canonicalize#2
"""


def command(
    target: o.TargetName,
    start: o.FromPoint = "input",
    end: o.ToPoint = None,
    unified: o.Unified = False,
    around: o.Around = 3,
    graph: o.GraphNumber = None,
    pipeline: o.Passes = None,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Compare the graphs of a model at two points of the pipeline, and the launches that are predicted there.

    Values that are the same at both points have one name, and so has what takes the place of another: a line
    that no pass touched is the same on both sides. Side by side where the terminal is wide enough. Exits with
    0 if there is a difference, and with 1 if a pass failed.
    """
    text = inspect.checked(pipeline)
    span = _span(text, start, end)
    with messages().status(f"building {target}"):
        resolved = inspect.build(
            target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache
        )
    with messages().status(f"capturing {target} and running its passes"):
        from kernelweld.cli.diffing import differences

        found = differences(resolved, text, span, graph=graph, merge=merge_gemms, stop=full)
    _show(target, span, found, around=around, unified=unified, as_json=as_json)


def _span(pipeline: str, start: str, end: str | None) -> Span:
    """The two points; mistakes show before a model is built."""
    from kernelweld.cli.diffing import Span

    return Span.parsed(pipeline, start, end)


def _show(
    target: str, span: Span, found: list[Difference], *, around: int, unified: bool, as_json: bool
) -> None:
    from kernelweld.cli.sides import as_dict, show

    if as_json:
        graphs = [as_dict(one, around) for one in found]
        points = {"from": span.start, "to": span.end}
        typer.echo(json.dumps({"target": target, **points, "graphs": graphs}, indent=2))
        return
    for one in found:
        show(output(), f"{target}, graph {one.graph}", span, one, around=around, unified=unified)
