"""``.pt2`` files as a user has them: programs, dumped graphs, and files that are neither."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import is_zipfile

from kernelweld.errors import BadTarget
from kernelweld.integrations import graph_file
from kernelweld.integrations.graph_file import Saved


def load(target: str, path: Path) -> Saved:
    """The program or graph in ``path``. Raises ``BadTarget`` for a file that torch cannot read as one."""
    if not path.is_file():
        raise BadTarget(target, "there is no such file", "Give a file that torch.export.save wrote.")
    if not is_zipfile(path):
        advice = "Give a file that torch.export.save wrote; if it is one, copy it again."
        raise BadTarget(target, f"{path.name} is no archive, or only the beginning of one", advice)
    with _first_failure() as failures:
        try:
            return graph_file.load(path)
        except Exception as error:  # torch.export raises many types for a file that it cannot read
            reason = _first_sentence([*failures, error][0])
            advice = "Write it with torch.export.save of the torch that is installed here."
            raise BadTarget(target, f"{path.name} holds no exported program: {reason}", advice) from error


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def _first_failure() -> Iterator[list[BaseException]]:
    """What torch.export logs before it tries an older format, and then hides behind a general error."""
    failures: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            failures.append(record.exc_info[1])
        return False

    log = logging.getLogger("torch.export")
    log.addFilter(keep)
    try:
        yield failures
    finally:
        log.removeFilter(keep)
