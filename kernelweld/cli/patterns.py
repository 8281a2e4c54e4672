"""``kernelweld patterns``: which patterns there are, and what they find in a model."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from kernelweld.cli import complete
from kernelweld.cli import options as o
from kernelweld.cli.passes import documentation
from kernelweld.cli.render import messages, output, plain_table

if TYPE_CHECKING:
    from kernelweld.cli.welded import Welded
    from kernelweld.ir import Word
    from kernelweld.patterns.pattern import Pattern

app = typer.Typer(no_args_is_help=True, help="Which patterns there are, and what they find in a model.")


@app.command("list", epilog="Example: kernelweld patterns list")
def list_patterns(as_json: o.AsJson = False) -> None:
    """List all patterns in the order in which they are tried, those of plug-ins last."""
    from kernelweld.patterns.table import offered_by, patterns

    rows = [(name, cls.kind, _about(cls), offered_by(name)) for name, cls in patterns().items()]
    if as_json:
        keys = ("name", "word", "summary", "from")
        typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    table = plain_table("pattern", "word", "what it finds", "from")
    for row in rows:
        table.add_row(*row)
    output().print(table, markup=False)


@app.command(epilog="Example: kernelweld patterns show rms_norm")
def show(
    name: Annotated[
        str, typer.Argument(metavar="PATTERN", show_default=False, autocompletion=complete.patterns)
    ],
    as_json: o.AsJson = False,
) -> None:
    """Show one pattern: an example before and after, its word, its options, where it starts, its origin."""
    from kernelweld.ir import words
    from kernelweld.ir.vocabulary import offered_by as word_from
    from kernelweld.passes.spec import describe_options
    from kernelweld.patterns.table import load, offered_by

    cls, origin = load(name), offered_by(name)
    word = words()[cls.kind]
    shown = {"name": name, "word": cls.kind, "from": origin, "summary": _about(cls), "example": cls.spelling}
    shown |= {"before": documentation(cls), "after": _call(word)}
    shown |= {"word_from": word_from(cls.kind), "word_documentation": documentation(word)}
    options, anchors = describe_options(cls), [str(anchor) for anchor in cls.anchors]
    if as_json:
        typer.echo(json.dumps({**shown, "options": options, "anchors": anchors}, indent=2))
        return
    typer.echo(f"{name}, of {origin}\n\n{shown['summary']}\n\nBefore: {shown['before']}")
    if cls.spelling:
        typer.echo(f"For example: {cls.spelling}")
    typer.echo(f"After: {shown['after']}\n")
    typer.echo(f"The word {cls.kind}, of {shown['word_from']}: {shown['word_documentation']}\n")
    typer.echo("options:" if options else "options: none")
    for option in options:
        typer.echo(f"  {option}")
    typer.echo("starts from:")
    for anchor in anchors:
        typer.echo(f"  {anchor}")


def _call(word: type[Word]) -> str:
    """A call of ``word`` as the printed graph has it, with the defaults of its parameters."""
    from dataclasses import MISSING, fields

    from kernelweld.ir.word import format_static

    found = [(f.name, "…" if f.default is MISSING else format_static(f.default)) for f in fields(word)]
    parameters = " ".join(f"{name}={value}" for name, value in found)
    operands = ", ".join(word.operands)
    return f"{word.kind}({operands}) {{{parameters}}}" if parameters else f"{word.kind}({operands})"


@app.command(epilog="Example: kernelweld patterns coverage hf:qwen3_5_moe --phase decode")
def coverage(
    target: o.TargetName,
    phase: o.PhaseOf = o.Phase.prefill,
    layers: o.Layers = None,
    full: o.Full = False,
    batch: o.Batch = 1,
    dtype: o.DtypeOf = o.Dtype.bfloat16,
    cache: o.CacheOf = o.Cache.dynamic,
    merge_gemms: o.Merge = True,
    as_json: o.AsJson = False,
) -> None:
    """Count what each pattern finds in a model: its words, how many of them are in welds, and near misses."""
    from kernelweld.cli import inspect, welded

    with messages().status(f"{target} {phase}: building, capturing and fusing"):
        resolved = inspect.build(
            target, phase, layers=layers, full=full, batch=batch, dtype=dtype, cache=cache
        )
        found = welded.welded(resolved, merge=merge_gemms, stop=full, key=welded.kernel)
    rows = _coverage(found)
    if as_json:
        typer.echo(json.dumps({"target": target, "phase": phase.value, "words": rows}, indent=2))
        return
    table = plain_table("word", "patterns", "found", "in welds", "near misses")
    for word, row in rows.items():
        names = ", ".join(map(str, row["patterns"]))  # type: ignore[call-overload]
        table.add_row(word, names, *(str(row[key]) for key in ("found", "welded", "near_misses")))
    output().print(f"{target} {phase}", markup=False)
    output().print(table, markup=False)


def _coverage(found: Welded) -> Mapping[str, Mapping[str, object]]:
    """By kind of word: the patterns that find it, and the counts. Several patterns may share a kind."""
    from kernelweld.patterns.table import patterns

    words: Counter[str] = Counter()
    in_welds: Counter[str] = Counter()
    for graph in found.graphs:
        words.update(graph.words)
        in_welds.update(re.split(r"\W", word)[0] for weld in graph.welds for word in weld.words)
    misses = Counter(miss.kind for miss in found.misses)
    kinds = dict.fromkeys((*(cls.kind for cls in patterns().values()), *words))
    return {
        kind: {
            "patterns": [name for name, cls in patterns().items() if cls.kind == kind],
            "found": words[kind],
            "welded": in_welds[kind],
            "near_misses": misses[kind],
        }
        for kind in kinds
    }


def _about(cls: type[Pattern]) -> str:
    """The first line of the module that says what the pattern reads."""
    text = sys.modules[cls.__module__].__doc__ or documentation(cls)
    return text.strip().partition("\n")[0]
