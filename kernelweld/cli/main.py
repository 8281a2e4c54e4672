"""The command line: one verb a module, put together here."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer import Context
from typer.core import TyperGroup

import kernelweld
from kernelweld.cli import (
    bench,
    bisect,
    compile,
    demo,
    diff,
    doctor,
    eject,
    explain,
    inspect,
    passes,
    patterns,
    report,
    run,
    trace,
    verify,
    vllm_config,
)
from kernelweld.cli.render import EXIT_USAGE, exit_code
from kernelweld.errors import KernelweldError


class Commands(TyperGroup):
    """Shows errors that a user can act on as text; any other is a defect and keeps its traceback."""

    def invoke(self, ctx: Context) -> object:  # type: ignore[override] # typer keeps its base class private
        try:
            return super().invoke(ctx)
        except KernelweldError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(exit_code(error)) from error
        except BrokenPipeError:  # who reads has seen enough; what is still to be written goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except OSError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_USAGE) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.command)
app.command("explain", epilog=explain.EXAMPLES)(explain.command)
app.command("run", epilog=run.EXAMPLES)(run.command)
app.command("diff", epilog=diff.EXAMPLES)(diff.command)
app.command("bench", epilog=bench.EXAMPLES)(bench.command)
app.command("verify", epilog=verify.EXAMPLES)(verify.command)
app.command("bisect", epilog=bisect.EXAMPLES)(bisect.command)
app.command("compile", epilog=compile.EXAMPLES)(compile.command)
app.command("eject", epilog=eject.EXAMPLES)(eject.command)
app.command("trace", epilog=trace.EXAMPLES)(trace.command)
app.command("report", epilog=report.EXAMPLES)(report.command)
app.command("vllm-config", epilog=vllm_config.EXAMPLES)(vllm_config.command)
app.command("demo", epilog=demo.EXAMPLES)(demo.command)
app.command("doctor", epilog="Example: kernelweld doctor --json")(doctor.command)
app.add_typer(passes.app, name="passes")
app.add_typer(patterns.app, name="patterns")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kernelweld {kernelweld.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Fuse the kernels of LLM inference, and see what was fused.

    Results go to stdout, everything else to stderr. NO_COLOR turns colours off. Exit codes: 0 done, 1 a check
    failed, 2 the command cannot be carried out as it was given. --install-completion lets the shell complete
    verbs, targets and options.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it advises on running a model fast
