"""``kernelweld passes``: which passes there are and what their options mean."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelweld.cli.render import output, plain_table

app = typer.Typer(no_args_is_help=True, help="Which passes there are, and their options.")


@app.command("list")
def list_passes() -> None:
    """List all passes in the order in which they usually run, those of plug-ins last."""
    from kernelweld.passes.table import load, passes

    table = plain_table("pass", "what it does")
    for name in passes():
        table.add_row(name, _summary(load(name).__doc__))
    output().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="PASS", show_default=False)]) -> None:
    """Show one pass: its documentation, and its options with their defaults."""
    from inspect import getdoc

    from kernelweld.passes.spec import describe_options
    from kernelweld.passes.table import load

    cls = load(name)
    typer.echo(f"{name}\n\n{getdoc(cls)}\n")
    options = describe_options(cls)
    typer.echo("options: none" if not options else "options:")
    for option in options:
        typer.echo(f"  {option}")


def _summary(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
