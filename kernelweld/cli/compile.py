"""``kernelweld compile``: the kernels of a model compiled for GPUs that this machine need not have."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelweld.cli.compiling import Built, Wanted
    from kernelweld.cli.welded import Welded

EXAMPLES = """Examples:

kernelweld compile hf:qwen3_5_moe --target sm_90

kernelweld compile hf:llama --full --layers 1 --emit source,ptx,sass -o kernels
"""


def command(
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    weld: o.WeldName = None,
    gpus: o.GpuTargets = "sm_90,sm_100,gfx942",
    emit: o.Emit = None,
    folder: o.OutputTo = None,
    force: o.Force = False,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Compile the kernel of every weld of a model, without a GPU.

    Registers and spilled bytes are per thread, shared memory per program. Equal kernels are one line. With
    --output the texts of --emit become files, KERNEL.GPU.STAGE. Exits with 1 if a kernel does not compile.
    """
    wanted, start = _wanted(gpus, emit, folder), time.monotonic()
    from kernelweld.cli import welded

    sizes = {"layers": layers, "full": full, "batch": batch, "dtype": dtype, "cache": cache}
    found = welded.named_on_the_command_line(target, phase, sizes, weld, merge=merge_gemms, key=welded.kernel)
    if folder is not None and not force:
        _refuse_to_overwrite(found, wanted, folder)
    built = _built(target, found, wanted)
    if folder is not None:
        _write(built, wanted, folder)
    messages().print(f"[dim]{target} {phase}: {time.monotonic() - start:.0f} s[/]")
    _show(target, phase, built, as_json)


def _wanted(gpus: str, emit: str | None, folder: Path | None) -> Wanted:
    from kernelweld.cli.compiling import SOURCE, Wanted
    from kernelweld.codegen.crosscompile import disassembles

    if emit is not None and folder is None:
        raise typer.BadParameter("it needs a folder to write to: --output DIR", param_hint="--emit")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder", param_hint="--output")
    wanted = Wanted.parsed(gpus, SOURCE if emit is None and folder is not None else emit or "")
    if "sass" in wanted.stages and not disassembles():
        reason = "this triton comes without nvdisasm; emit ptx, or install a triton that has it"
        raise typer.BadParameter(reason, param_hint="--emit")
    if not wanted.targets:
        raise typer.BadParameter("give GPUs such as sm_90,gfx942", param_hint="--target")
    return wanted


def _refuse_to_overwrite(found: Welded, wanted: Wanted, folder: Path) -> None:
    from kernelweld.cli.compiling import files, refuse_to_overwrite

    refuse_to_overwrite(files(found, wanted, folder))


def _built(target: str, found: Welded, wanted: Wanted) -> list[Built]:
    from kernelweld.cli.compiling import build_all

    with messages().status(target) as status:
        return list(build_all(found, wanted, lambda text: status.update(f"{target}: {text}")))


def _write(built: Sequence[Built], wanted: Wanted, folder: Path) -> None:
    from kernelweld.cli.compiling import write

    count = write(built, wanted, folder)
    messages().print(f"{count} files are written to {folder}", markup=False)


def _show(target: str, phase: o.Phase, built: Sequence[Built], as_json: bool) -> None:
    from kernelweld.cli.compiling import show

    if as_json:
        kernels = [one.as_dict() for one in built]
        typer.echo(json.dumps({"target": target, "phase": phase.value, "kernels": kernels}, indent=2))
    else:
        show(output(), f"{target} {phase}", built)
    for one in built:
        if one.failure is not None:
            typer.echo(f"error: {one.target}: {one.failure}", err=True)
    if any(one.failure is not None for one in built):
        raise typer.Exit(EXIT_FAILED)
