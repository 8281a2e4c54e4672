"""``kernelweld demo``: the main job on three models and on any machine: weld, check, compile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output
from kernelweld.cli.verify import interpret

if TYPE_CHECKING:
    from kernelweld.cli.checking import Checked
    from kernelweld.codegen.emit import Kernel

EXAMPLES = """Examples:

kernelweld demo

kernelweld demo hf:llama
"""

MODELS = ("hf:deepseek_v32", "hf:minimax_m2", "hf:qwen3_5_moe")
GPUS = ("sm_90", "sm_100", "gfx942")
_LONGEST = 120  # lines of a kernel that is shown

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TARGET]...", help="Other targets than the three models.", show_default=False),
]


def command(targets: Targets = None) -> None:
    """Fuse tiny DeepSeek-V3.2, MiniMax-M2 and Qwen3.5 models, and check every kernel.

    For prefill and decode: words, predicted launches, welds, and the largest error of each against a float64
    run, its kernel run by Triton's interpreter. Then one generated kernel, compiled for GPUs that need not be
    there. Exits with 1 if a weld is less exact than the nodes it replaces.
    """
    if not interpret():
        raise typer.Exit(_in_new_process(targets or ()))
    ran = [_one(target, phase) for target in targets or MODELS for phase in o.Phase]
    kernels = [kernel for _, found in ran for kernel in found]
    if kernels:
        _show_kernel(_choose(kernels))
    if not all(checked.holds for checked, _ in ran):
        raise typer.Exit(EXIT_FAILED)


def _in_new_process(targets: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "kernelweld.cli", "demo", *targets], check=False).returncode


def _one(target: str, phase: o.Phase) -> tuple[Checked, list[Kernel]]:
    from kernelweld.cli.checking import check, show
    from kernelweld.cli.inspect import build
    from kernelweld.cli.welded import welded, work_and_nodes
    from kernelweld.codegen.emit import emit

    start = time.monotonic()
    with messages().status(f"{target} {phase}: building, fusing and interpreting"):
        resolved = build(
            target, phase, layers=None, full=False, batch=2, dtype=o.Dtype.bfloat16, cache=o.Cache.dynamic
        )
        found = welded(resolved, key=work_and_nodes)
        checked = check(found)
    show(output(), f"{target} {phase}", checked)
    messages().print(f"[dim]{target} {phase}: {time.monotonic() - start:.0f} s[/]")
    return checked, [emit(one.program) for one, _ in found.welds]


def _choose(kernels: Sequence[Kernel]) -> Kernel:
    """The kernel that shows most: of those that fit on a page or two, the one of the most tensors."""
    short = [k for k in kernels if k.source.count("\n") <= _LONGEST]
    return max(short or kernels, key=lambda k: (len(k.tensors), k.name))


def _show_kernel(kernel: Kernel) -> None:
    from rich.syntax import Syntax

    from kernelweld.cli.render import plain_table
    from kernelweld.codegen.crosscompile import compile_for

    console = output()
    console.print("\n[bold]One of the generated kernels[/]\n")
    if console.is_terminal:
        console.print(Syntax(kernel.source, "python", background_color="default", word_wrap=True))
    else:  # a file or a pipe gets the text as it is
        console.print(kernel.source, markup=False, soft_wrap=True)
    with messages().status(f"compiling {kernel.name} for {', '.join(GPUS)}"):
        compiled = compile_for(kernel, GPUS)
    table = plain_table("compiled for", "registers", "spills", "shared memory", "binary")
    for one in compiled:
        sizes = (f"{one.stack_bytes} B", f"{one.shared_bytes} B", f"{one.binary_bytes} B")
        table.add_row(one.target, str(one.registers), *sizes)
    console.print(table)
