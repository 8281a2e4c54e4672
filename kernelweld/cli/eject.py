"""``kernelweld eject``: welds as files of their own that need only torch and triton."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import messages, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelweld.cli.ejecting import Ejected
    from kernelweld.cli.welded import Welded

EXAMPLES = """Examples:

\b
kernelweld eject hf:qwen3_5_moe --weld residual_add_rms_norm -o residual_add_rms_norm.py
kernelweld eject hf:minimax_m2 --phase decode --all -o kernels
kernelweld eject my_module:my_function --weld rms_norm_quant_scale_quant
"""


def command(
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    weld: o.EjectedWeld = None,
    every: o.EveryWeld = False,
    path: o.EjectTo = None,
    force: o.Force = False,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Take welds away: each as a file with its kernel, wrapper, torch reference, test and benchmark.

    The file imports torch and triton, and nothing of kernelweld. Without --output it is printed. Welds that
    share a kernel are one file; kernels of one name are numbered as `compile` numbers them.
    """
    _check(weld, every, path, as_json)
    from kernelweld.cli import welded
    from kernelweld.cli.ejecting import chosen

    sizes = {"layers": layers, "full": full, "batch": batch, "dtype": dtype, "cache": cache}
    found = welded.named_on_the_command_line(target, phase, sizes, None, merge=merge_gemms, key=welded.kernel)
    ejected = chosen(found, weld, f"{target} ({phase})", path, as_folder=every)
    if path is None:
        typer.echo(ejected[0].text, nl=False)
    else:
        _write(ejected, force)
        _show(target, phase, ejected, as_json)
    _say_others(found, weld)


def _check(weld: str | None, every: bool, path: Path | None, as_json: bool) -> None:
    """Mistakes show before a model is built."""
    if every == (weld is not None):
        raise typer.BadParameter("give the name of one, or --all for every weld", param_hint="--weld")
    if path is None and (every or as_json):
        wanted = "a folder to write to" if every else "a file to write to"
        raise typer.BadParameter(f"it needs {wanted}: --output", param_hint="--all" if every else "--json")
    if path is not None and path.exists() and path.is_dir() != every:
        kind = "a folder" if path.is_dir() else "not a folder"
        raise typer.BadParameter(f"{path} is {kind}", param_hint="--output")


def _write(ejected: Sequence[Ejected], force: bool) -> None:
    from kernelweld.cli.compiling import refuse_to_overwrite
    from kernelweld.codegen.cache import write_text

    paths = [one.path for one in ejected if one.path is not None]
    if not force:
        refuse_to_overwrite(paths)
    for path, one in zip(paths, ejected, strict=True):
        write_text(path, one.text)


def _show(target: str, phase: o.Phase, ejected: Sequence[Ejected], as_json: bool) -> None:
    from kernelweld.cli.ejecting import show

    if as_json:
        files = [one.as_dict() for one in ejected]
        typer.echo(json.dumps({"target": target, "phase": phase.value, "files": files}, indent=2))
    else:
        show(output(), f"{target} {phase}", ejected)


def _say_others(found: Welded, weld: str | None) -> None:
    """Says on stderr which other kernels bear the name, and how to get them."""
    from kernelweld.cli.ejecting import namesakes

    for text in namesakes(found, weld):
        messages().print(text, markup=False)
