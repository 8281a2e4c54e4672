"""The check of ``kernelweld bisect``: a shell command that is run again and again with other pipelines."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from kernelweld.errors import KernelweldError
from kernelweld.integrations.settings import VARIABLE

#: Exit codes that say nothing of the model: a check that cannot tell, as for ``git bisect``, and those of a
#: shell that cannot run the command.
_CANNOT_TELL, _NOT_EXECUTABLE, _NOT_FOUND = 125, 126, 127

_STDERR = 2
_SHOWN = 6  # lines of a check's output in a message
_SIMPLE = re.compile(r"[\w\s./:=,@%+'\"{}*-]+")


@dataclass(eq=False)
class CannotBisect(KernelweldError):
    """A search that cannot begin or go on. ``advice`` is the whole remedy."""

    reason: str
    advice: str

    @property
    def what(self) -> str:
        return f"cannot bisect: {self.reason}"

    @property
    def remedy(self) -> str:
        return self.advice


@dataclass(frozen=True)
class Trial:
    """One run of the check: what was on, the pipeline, whether the check passed, seconds, and the file that
    has its output, None if that was shown.
    """

    number: int
    on: str
    pipeline: str
    passes: bool
    seconds: float
    log: Path | None

    def as_dict(self) -> Mapping[str, object]:
        """As JSON has it."""
        facts = {"number": self.number, "on": self.on, "passes": self.passes, "seconds": self.seconds}
        return {**facts, "pipeline": self.pipeline, "log": None if self.log is None else str(self.log)}


@dataclass
class Check:
    """Runs ``command`` in a shell of its own; it may take ``timeout`` seconds. Without a folder for ``logs``
    its output goes to stderr. ``told`` hears of each trial.
    """

    command: str
    timeout: float | None = None
    logs: Path | None = None
    told: Callable[[Trial], None] = lambda trial: None
    done: list[Trial] = field(default_factory=list)

    def __call__(self, on: str, pipeline: str) -> bool:
        """Whether the command succeeds with ``pipeline``. Raises ``CannotBisect`` where it does not say."""
        number = len(self.done) + 1
        log = None if self.logs is None else self.logs / f"{number:02d}.log"
        start = time.monotonic()
        code = _run(self.command, pipeline, self.timeout, log)
        seconds = time.monotonic() - start
        trouble = _trouble(code, self.timeout)
        if trouble is not None:
            reason, advice = trouble
            raise CannotBisect(f"check {number} ({on}) {reason}", advice, excerpt=last_lines(log))
        trial = Trial(number, on, pipeline, code == 0, seconds, log)
        self.done.append(trial)
        self.told(trial)
        return trial.passes


def last_lines(log: Path | None) -> str:
    """The end of what a check wrote, for a message."""
    if log is None or not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN:])


def command_line(command: str, pipeline: str) -> str:
    """What to type to run the check once more with ``pipeline``."""
    one = _SIMPLE.fullmatch(command) is not None
    return f"{VARIABLE}={shlex.quote(pipeline)} {command if one else f'sh -c {shlex.quote(command)}'}"


def _run(command: str, pipeline: str, timeout: float | None, log: Path | None) -> int | None:
    """The exit code of the command; None if it was ended because it took too long."""
    environment = {**os.environ, VARIABLE: pipeline}
    with nullcontext(_STDERR) if log is None else log.open("wb") as output:
        process = subprocess.Popen(
            command,
            shell=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the command and of what it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _trouble(code: int | None, timeout: float | None) -> tuple[str, str] | None:
    """Why an exit code says neither yes nor no, and what to do; None if it does."""
    match code:
        case None:
            return (
                f"took longer than {timeout:g} s",
                "Give a larger --timeout, or let the command exit with 1 if being slow is the failure.",
            )
        case code if code == _CANNOT_TELL:
            return (
                "exited with 125, which means that it cannot tell",
                "Let it tell with every pipeline, or name another with --pipeline.",
            )
        case code if code in (_NOT_EXECUTABLE, _NOT_FOUND):
            fault = "was not found" if code == _NOT_FOUND else "cannot be executed"
            return (
                f"exited with {code}: a command {fault}",
                "Give a command that runs from this folder in a shell.",
            )
    return None
