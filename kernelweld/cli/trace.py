"""``kernelweld trace``: where the time of a profiled run went, by weld and line of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelweld.cli import complete
from kernelweld.cli import options as o
from kernelweld.cli.render import messages, output

if TYPE_CHECKING:
    from kernelweld.cli.tracing import Traced

EXAMPLES = """Examples:

kernelweld trace run.json.gz hf:qwen3_5_moe --phase decode

kernelweld trace run.json graphs --top 40 --json
"""

TracePath = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="What export_chrome_trace of torch.profiler wrote: .json or .json.gz.",
        show_default=False,
        autocompletion=complete.traces,
    ),
]
Top = Annotated[int, typer.Option("--top", min=1, help="Show so many kernels.")]


def command(
    trace: TracePath,
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    pipeline: o.Passes = None,
    merge_gemms: o.Merge = True,
    top: Top = 20,
    as_json: o.AsJson = False,
) -> None:
    """Attribute the GPU kernels of a torch.profiler trace to welds and lines of the model.

    TARGET is what ran: the same model and phase, or better the folder that KERNELWELD_DUMP wrote in that run.
    Kernels that are no welds are told apart by their names; where the trace was recorded with with_stack=True
    they have the place of the function that launched them.
    """
    traced = _traced(
        trace,
        target,
        phase,
        pipeline,
        merge=merge_gemms,
        sizes={"layers": layers, "full": full, "batch": batch, "dtype": dtype, "cache": cache},
    )
    if as_json:
        typer.echo(json.dumps(_as_dict(trace, target, traced), indent=2))
    else:
        _show(trace, traced, top)


def _traced(
    trace: Path, target: str, phase: o.Phase, pipeline: str | None, *, merge: bool, sizes: dict[str, Any]
) -> Traced:
    from kernelweld.cli import inspect, tracing

    kernels = tracing.read(trace)  # before a model is built: mistakes show at once
    with messages().status(f"{target} {phase}: building, capturing and fusing"):
        resolved = inspect.build(target, phase, **sizes)
        found = inspect.inspect(resolved, pipeline, merge=merge, stop=sizes["full"])
    return tracing.attribute(kernels, found.report)


def _as_dict(trace: Path, target: str, traced: Traced) -> dict[str, object]:
    kinds = {kind: {"count": count, "us": round(us, 3)} for kind, (count, us) in traced.by_kind().items()}
    rows = [row.as_dict() for row in traced.rows]
    found = {"us": round(traced.us, 3), "kinds": kinds, "kernels": rows, "missing": traced.missing}
    return {"trace": str(trace), "target": target, **found}


def _show(trace: Path, traced: Traced, top: int) -> None:
    from kernelweld.cli.tracing import show

    show(output(), trace.name, traced, top)
