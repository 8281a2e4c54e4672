"""``kernelweld verify``: every weld of a model against the nodes it replaces, on drawn inputs."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output
from kernelweld.errors import NotInterpreting

if TYPE_CHECKING:
    from kernelweld.cli.checking import Checked
    from kernelweld.cli.welded import Welded

EXAMPLES = """Examples:

kernelweld verify hf:qwen3_5_moe

kernelweld verify hf:llama --phase decode --samples 8 --json
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
    samples: o.Samples = 1,
    seed: o.Seed = 0,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Check every weld of a model against the nodes it replaces, on random inputs.

    Kernels run on the GPU, and where there is none in Triton's interpreter. Errors are the largest absolute
    ones against a float64 run. The contract: a weld is at most as wrong as its nodes and one unit in the last
    place. Exits with 1 if it does not hold.
    """
    device, start = _device(), time.monotonic()
    from kernelweld.cli import welded

    sizes = {"layers": layers, "full": full, "batch": batch, "dtype": dtype, "cache": cache}
    found = welded.named_on_the_command_line(
        target, phase, sizes, weld, merge=merge_gemms, key=welded.work_and_nodes
    )
    checked = _checked(target, found, samples, seed, device)
    messages().print(f"[dim]{target} {phase}: {time.monotonic() - start:.0f} s[/]")
    if as_json:
        run = {"target": target, "phase": phase.value, "samples": samples, "seed": seed, "device": device}
        typer.echo(json.dumps({**run, "holds": checked.holds, **_welds(checked)}, indent=2))
    else:
        _show(f"{target} {phase}", checked)
    _fail(checked)


def interpret() -> bool:
    """Makes this process interpret Triton kernels; False if Triton is there already and compiles them."""
    os.environ["TRITON_INTERPRET"] = "1"
    from kernelweld.codegen.interpreter import interpreting

    return interpreting()


def _device() -> str:
    """Where kernels run: "cuda", or "cpu" in the interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        import torch

        if torch.cuda.is_available():
            return "cuda"
    if not interpret():
        raise NotInterpreting("kernelweld verify without a GPU")
    return "cpu"


def _checked(target: str, found: Welded, samples: int, seed: int, device: str) -> Checked:
    from kernelweld.cli.checking import check

    with messages().status(target) as status:
        return check(
            found,
            samples=samples,
            seed=seed,
            device=device,
            starting=lambda text: status.update(f"{target}: {text}"),
        )


def _welds(checked: Checked) -> dict[str, object]:
    return {"welds": [verdict.as_dict() for verdict in checked.verdicts]}


def _show(title: str, checked: Checked) -> None:
    from kernelweld.cli.checking import show

    show(output(), title, checked)


def _fail(checked: Checked) -> None:
    """Each broken weld with its source line on stderr, and exit code 1 if there is one."""
    for verdict in checked.verdicts:
        if not verdict.holds:
            typer.echo(f"error: {verdict.failure}", err=True)
    if not checked.holds:
        raise typer.Exit(EXIT_FAILED)
