"""``kernelweld bench``: the time of each weld's kernel beside that of the nodes it replaces."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import messages, output
from kernelweld.errors import NeedsGPU

if TYPE_CHECKING:
    from kernelweld.cli.benching import Bench, Figures
    from kernelweld.cli.targets import Target
    from kernelweld.cli.welded import Welded


EXAMPLES = """Examples:

kernelweld bench hf:minimax_m2 --full --layers 2 --phase decode --rows 1,16,256

kernelweld bench hf:qwen3_5_moe --dry-run

kernelweld bench hf:llama --full --layers 1 --weld rms_norm_rope --inductor --tune
"""


def command(
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    rows: o.Rows = None,
    weld: o.WeldName = None,
    inductor: o.Inductor = False,
    tune: o.Tune = False,
    dry_run: o.DryRun = False,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Time every weld of a model under CUDA graphs, beside the nodes it replaces.

    Random inputs that rotate through more memory than the L2 cache holds; bytes are those that have to be
    read and written, and "of copy" is them over the time and the bandwidth of a copy kernel. The model is
    captured where inspect captures it; only its welds run on the GPU. With --dry-run nothing is timed. With
    --tune the fastest launch of each weld is kept for fuse(options={"tuned": True}).
    """
    if dry_run and tune:
        raise typer.BadParameter("it does not go with --dry-run", param_hint="--tune")
    wanted = _rows(rows)
    if wanted != [None] and batch != 1:
        raise typer.BadParameter("it does not go with --batch", param_hint="--rows")
    bench = None if dry_run else _bench(inductor, tune)
    runs = []
    for count in wanted:
        start, title = time.monotonic(), _title(target, phase, count)
        with messages().status(f"{title}: building, capturing and fusing"):
            resolved = _build(target, phase, layers, full, batch, dtype, cache, count)
            found = _welded(resolved, merge_gemms, full).named(weld)
        taken = list(_timed(title, found, bench))
        messages().print(f"[dim]{title}: {time.monotonic() - start:.0f} s[/]")
        runs.append(_shown(title, count, found, taken, as_json))
    if as_json:
        typer.echo(json.dumps({**_environment(bench), "runs": runs}, indent=2))
    if bench is not None and tune:
        _keep(bench)


def _rows(text: str | None) -> list[int | None]:
    """The numbers of rows to take in turn; one None is the target as it is."""
    if text is None:
        return [None]
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter("give positive numbers such as 1,64,2048", param_hint="--rows")
    return [int(part) for part in parts]


def _title(target: str, phase: o.Phase, rows: int | None) -> str:
    return f"{target} {phase}" if rows is None else f"{target} {phase}, {rows} rows"


def _build(
    target: str,
    phase: o.Phase,
    layers: int | None,
    full: bool,
    batch: int,
    dtype: o.Dtype,
    cache: o.Cache,
    rows: int | None,
) -> Target:
    from kernelweld.cli.inspect import build

    return build(target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache, rows=rows)


def _welded(target: Target, merge: bool, full: bool) -> Welded:
    from kernelweld.cli.welded import welded

    return welded(target, merge=merge, stop=full)


def _bench(inductor: bool, tune: bool) -> Bench:
    """How this machine times welds. One that cannot shows before a model is built."""
    _need_gpu()
    from kernelweld.cli.benching import Bench

    with messages().status("measuring the bandwidth of a copy"):
        return Bench.on_gpu(inductor=inductor, tune=tune)


def _environment(bench: Bench | None) -> dict[str, object]:
    """Where figures were taken; nothing where none were."""
    from kernelweld.codegen.tuning_file import gpu_name

    return {} if bench is None else {"gpu": gpu_name(), "copy_gb_per_s": bench.bandwidth / 1e3}


def _keep(bench: Bench) -> None:
    """Adds the launches that were found to those kept for this GPU."""
    from kernelweld.codegen.tuning_file import gpu_name, read_tuning, write_tuning

    path = write_tuning(read_tuning(gpu_name()).including(bench.entries))
    faster = sum(entry.us < entry.default_us for entry in bench.entries)
    messages().print(f"{faster} of {len(bench.entries)} launches are faster than the default: {path}")


def _need_gpu() -> None:
    import torch

    from kernelweld.codegen.interpreter import interpreting

    if not torch.cuda.is_available():
        raise NeedsGPU("torch sees no CUDA device")
    if interpreting():
        raise NeedsGPU("TRITON_INTERPRET is set, so Triton interprets them")


def _timed(title: str, found: Welded, bench: Bench | None) -> Iterator[Figures]:
    from kernelweld.cli.benching import figures

    measure = figures if bench is None else bench.figures
    for number, (one, count) in enumerate(found.welds, 1):
        with messages().status(f"{title}: {one.name} ({number} of {len(found.welds)})"):
            yield measure(one, count)


def _shown(
    title: str, rows: int | None, found: Welded, taken: list[Figures], as_json: bool
) -> dict[str, object]:
    from dataclasses import asdict

    from kernelweld.cli.benching import show

    if not as_json:
        show(output(), title, found, taken)
    launches = [asdict(graph.launches) for graph in found.graphs]
    return {
        "run": title,
        "rows": rows,
        "launches": launches,
        "welds": [figure.as_dict() for figure in taken],
    }
