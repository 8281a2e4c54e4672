"""The options of the command line, each with its help, so that verbs share them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from kernelweld.cli import complete
from kernelweld.cli.zoo import ZOO


class Phase(StrEnum):
    """A phase of generation."""

    prefill = "prefill"
    decode = "decode"


class Dtype(StrEnum):
    """A dtype of parameters."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Cache(StrEnum):
    """A kind of key-value cache."""

    dynamic = "dynamic"
    static = "static"


_TARGET = (
    f"hf:NAME (NAME: {', '.join(ZOO)}), a folder with a transformers config.json, FILE.pt2, "
    "MODULE:CALLABLE that returns (model_or_fn, args, kwargs), or what KERNELWELD_DUMP wrote: a folder of "
    "graphs or one of them."
)

TargetName: TypeAlias = Annotated[
    str,
    Argument(metavar="TARGET", help=_TARGET, show_default=False, autocompletion=complete.targets),
]
PhaseOf: TypeAlias = Annotated[Phase, Option("--phase", help="Prefill of 7 tokens, or a decode step after.")]
Layers: TypeAlias = Annotated[int | None, Option("--layers", min=1, help="Keep only the first layers.")]
Full: TypeAlias = Annotated[bool, Option("--full", help="Real dimensions, without weights.")]
Batch: TypeAlias = Annotated[int, Option("--batch", min=1, help="Sequences in the batch.")]
DtypeOf: TypeAlias = Annotated[Dtype, Option("--dtype", help="Dtype of the parameters.")]
CacheOf: TypeAlias = Annotated[Cache, Option("--cache", help="Kind of key-value cache.")]
Passes: TypeAlias = Annotated[
    str | None,
    Option("--pipeline", "-p", help="The passes, as text. Default: those of fuse, with kernels anywhere."),
]
Merge: TypeAlias = Annotated[
    bool, Option("--merge-gemms/--no-merge-gemms", help="Merge sibling linear layers first, as fuse does.")
]
Rows: TypeAlias = Annotated[
    str | None,
    Option(
        "--rows",
        metavar="N,…",
        help="Rows of the model in turn: tokens of a prefill, sequences of a decode step, or what "
        "MODULE:CALLABLE makes of its argument `rows`.",
    ),
]
SourceLine: TypeAlias = Annotated[
    str | None,
    Option("--line", metavar="FILE.py:LINE", help="Only what this line of the model became."),
]
Kind: TypeAlias = Annotated[
    str | None,
    Option(
        "--kind",
        metavar="KIND",
        help="Only words of this kind, such as rms_norm.",
        autocompletion=complete.kinds,
    ),
]
NearMissesOnly: TypeAlias = Annotated[
    bool, Option("--near-misses", help="Only what is not welded, and what is nearly a word.")
]
WeldName: TypeAlias = Annotated[
    str | None, Option("--weld", metavar="NAME", help="Only the welds of this name. Default: all.")
]
Inductor: TypeAlias = Annotated[
    bool, Option("--inductor", help="Also time the replaced nodes compiled by Inductor.")
]
Tune: TypeAlias = Annotated[
    bool, Option("--tune", help="Also search for each weld's fastest launch, and keep it for this GPU.")
]
DryRun: TypeAlias = Annotated[
    bool, Option("--dry-run", help="Time nothing: welds, bytes and predicted launches, without a GPU.")
]
CheckBy: TypeAlias = Annotated[
    str,
    Option(
        "--check",
        metavar="CMD",
        show_default=False,
        help="A shell command that runs the model with kernelweld and exits with 0 if all is well; 125: it "
        "cannot tell.",
    ),
]
Timeout: TypeAlias = Annotated[
    float | None, Option("--timeout", metavar="SECONDS", min=0, help="The longest that a check may take.")
]
ShowOutput: TypeAlias = Annotated[bool, Option("--verbose", help="Show what the checks write.")]
Samples: TypeAlias = Annotated[int, Option("--samples", min=1, help="Draws of inputs for each weld.")]
Seed: TypeAlias = Annotated[
    int, Option("--seed", min=0, help="The first draw's seed; each next is one more.")
]
GpuTargets: TypeAlias = Annotated[
    str, Option("--target", metavar="GPU,…", help="GPUs to compile for: sm_<n> of NVIDIA, gfx<n> of AMD.")
]
Emit: TypeAlias = Annotated[
    str | None,
    Option(
        "--emit",
        metavar="STAGE,…",
        help="Texts to write to --output: source, ttir, ttgir, ptx, sass, amdgcn. Default: source.",
    ),
]
OutputTo: TypeAlias = Annotated[
    Path | None, Option("--output", "-o", metavar="DIR", help="Write the kernels as files to this folder.")
]
HtmlTo: TypeAlias = Annotated[
    Path | None, Option("--html", metavar="FILE", help="Write the report to this file. Default: a summary.")
]
Compiles: TypeAlias = Annotated[
    bool, Option("--compile/--no-compile", help="Compile each kernel for --target, without a GPU.")
]
BenchFile: TypeAlias = Annotated[
    Path | None, Option("--bench", metavar="FILE", help="Times that kernelweld bench --json printed.")
]
EjectedWeld: TypeAlias = Annotated[
    str | None,
    Option("--weld", metavar="NAME", help="The weld to take away, by its name in `compile`."),
]
EveryWeld: TypeAlias = Annotated[bool, Option("--all", help="Take every weld away, each as a file.")]
EjectTo: TypeAlias = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="The file to write; with --all, the folder."),
]
Force: TypeAlias = Annotated[bool, Option("--force", help="Replace files that exist.")]
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print the report as JSON.")]
GraphNumber: TypeAlias = Annotated[
    int | None, Option("--graph", metavar="N", min=1, help="Only the graph of this number. Default: all.")
]
PrintBefore: TypeAlias = Annotated[
    str | None, Option("--print-before", metavar="PASS,…|all", help="Print the graph before passes.")
]
PrintAfter: TypeAlias = Annotated[
    str | None, Option("--print-after", metavar="PASS,…|all|changed", help="Print the graph after passes.")
]
DumpTo: TypeAlias = Annotated[
    Path | None, Option("--dump-dir", help="Write the graph after every pass to an empty folder.")
]
Overwrite: TypeAlias = Annotated[
    bool, Option("--overwrite", "--force", help="Let --dump-dir replace a dump.")
]
Verify: TypeAlias = Annotated[bool, Option("--verify-each", help="Check the graph after every pass.")]
VerifyRun: TypeAlias = Annotated[
    bool,
    Option("--verify-each", help="Check the graph, and its results on random inputs, after every pass."),
]
ShowTiming: TypeAlias = Annotated[bool, Option("--timing", "--time", help="Show the time of every pass.")]
Time: TypeAlias = Annotated[bool, Option("--time", help="Show the time of every pass, on stderr.")]
FromPoint: TypeAlias = Annotated[
    str,
    Option(
        "--from",
        metavar="PASS",
        help="After this pass; NAME#2 is its second run, input before all.",
        autocompletion=complete.passes,
    ),
]
ToPoint: TypeAlias = Annotated[
    str | None,
    Option(
        "--to",
        metavar="PASS",
        help="After this pass. Default: after the last.",
        autocompletion=complete.passes,
    ),
]
Unified: TypeAlias = Annotated[bool, Option("--unified", help="One column, as in a patch.")]
Around: TypeAlias = Annotated[
    int, Option("-U", metavar="N", min=0, help="Lines that are the same around each change.")
]
