"""``kernelweld doctor``: what of this machine kernelweld can use, and what to do about the rest."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import typer

from kernelweld.cli import options as o
from kernelweld.cli.render import EXIT_FAILED, messages, output, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelweld.cli.examining import Finding

COLOURS = {"ok": "green", "missing": "dim", "broken": "red"}


def command(as_json: o.AsJson = False) -> None:
    """Show versions, GPU, cache folder, compilers and plug-ins: what works, and the remedy for what does not.

    What is optional and not here is "missing". Exits with 1 if something that kernelweld needs is broken.
    """
    from kernelweld.cli.examining import CHECKS

    start = time.monotonic()
    found: list[Finding] = []
    with messages().status("examining") as status:
        for name, check in CHECKS.items():
            status.update(f"examining: {name}")
            found.extend(check())
    messages().print(f"[dim]doctor: {time.monotonic() - start:.0f} s[/]")
    _show(found, as_json)
    if any(one.fails for one in found):
        raise typer.Exit(EXIT_FAILED)


def _show(found: Sequence[Finding], as_json: bool) -> None:
    from dataclasses import asdict

    from rich.markup import escape

    if as_json:
        holds = not any(one.fails for one in found)
        typer.echo(json.dumps({"ok": holds, "findings": [asdict(one) for one in found]}, indent=2))
        return
    table = plain_table("", "what", "found", "how to proceed")
    for one in found:
        cells = map(escape, (one.what, one.found, one.remedy))
        table.add_row(f"[{COLOURS[one.state]}]{one.state}[/]", *cells)
    output().print(table)
