"""``kernelweld passes``: which passes there are and what their options mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kernelweld.cli import complete
from kernelweld.cli import options as o
from kernelweld.cli.render import output, plain_table

if TYPE_CHECKING:
    from kernelweld.passes.base import Pass

app = typer.Typer(no_args_is_help=True, help="Which passes there are, and their options.")


@app.command("list", epilog="Example: kernelweld passes list")
def list_passes(as_json: o.AsJson = False) -> None:
    """List all passes in the order in which they usually run, those of plug-ins last."""
    from kernelweld.passes.table import offered_by, passes

    found = [(name, _summary(name), offered_by(name)) for name in passes()]
    if as_json:
        keys = ("name", "summary", "from")
        typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in found], indent=2))
        return
    table = plain_table("pass", "what it does", "from")
    for row in found:
        table.add_row(*row)
    output().print(table, markup=False)


@app.command(epilog="Example: kernelweld passes show plan")
def show(
    name: Annotated[str, typer.Argument(metavar="PASS", show_default=False, autocompletion=complete.passes)],
    as_json: o.AsJson = False,
) -> None:
    """Show one pass: what it does before and after, its options with their defaults, where it comes from."""
    from kernelweld.passes.table import load, offered_by

    cls = load(name)
    options, origin = _options(cls), offered_by(name)
    if as_json:
        shown = {"name": name, "from": origin, "documentation": documentation(cls), "options": options}
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"{name}, of {origin}\n\n{documentation(cls)}\n")
    typer.echo("options:" if options else "options: none")
    for option in options:
        typer.echo(f"  {option}")


def _summary(name: str) -> str:
    """What a pass does in a line, or why one of another distribution cannot be used."""
    from kernelweld.errors import BadOffer
    from kernelweld.passes.table import load

    try:
        return summary(load(name))
    except BadOffer as error:
        return f"broken: {error.reason}"


def _options(cls: type[Pass]) -> list[str]:
    from kernelweld.passes.spec import describe_options

    return describe_options(cls)


def documentation(cls: type) -> str:
    """The docstring of a class without its indentation; one that inherits it has none."""
    from inspect import cleandoc

    return cleandoc(cls.__dict__.get("__doc__") or "")


def summary(cls: type) -> str:
    """The first line of the documentation."""
    return documentation(cls).partition("\n")[0]
