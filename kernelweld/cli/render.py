"""How results look: tables for people, exit codes for scripts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console

from kernelweld.errors import (
    CodegenFailed,
    InvalidGraph,
    KernelweldError,
    PassFailed,
    VerificationFailed,
)
from kernelweld.tables import launches, places, plain_table, show_graph, show_timing, word_counts

if TYPE_CHECKING:
    from kernelweld.cli.targets import Target

__all__ = [
    "EXIT_FAILED",
    "EXIT_USAGE",
    "exit_code",
    "launches",
    "layers_of",
    "messages",
    "output",
    "places",
    "plain_table",
    "show_graph",
    "show_timing",
    "word_counts",
]

EXIT_FAILED = 1
EXIT_USAGE = 2

_FAILURES = (PassFailed, VerificationFailed, InvalidGraph, CodegenFailed)
_PIPED_WIDTH = 160


def exit_code(error: KernelweldError) -> int:
    """1 for a check that failed, 2 for a command that cannot be carried out as it was given."""
    return EXIT_FAILED if isinstance(error, _FAILURES) else EXIT_USAGE


def output() -> Console:
    """Where results go."""
    return _console(stderr=False)


def messages() -> Console:
    """Where everything else goes."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def layers_of(target: Target) -> int | None:
    """How many layers a ``transformers`` model has; None for what is none."""
    return None if target.config is None else int(target.config.get_text_config().num_hidden_layers)
