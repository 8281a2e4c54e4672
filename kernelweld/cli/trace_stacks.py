"""Which function of Python launched a kernel: the stacks that a profile ``with_stack`` has."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

TraceEvent = Mapping[str, object]

_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})

_FUNCTION = re.compile(r"(?P<file>.+\.py)\((?P<line>\d+)\): ")
_NOT_THE_USERS = re.compile(r"(^|/)(torch|triton|kernelweld)/|(^|/)(threading|runpy|contextlib)\.py")
_INDUCTORS = "torchinductor_"


class Launchers:
    """The innermost function of the user's that was running when a kernel was launched, as ``file:line``."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self._lines = dict(_lines(events))

    def line_of(self, kernel: TraceEvent) -> str | None:
        return self._lines.get(_correlation(kernel))


def _lines(events: Iterable[TraceEvent]) -> Iterable[tuple[object, str]]:
    """The correlation of each launch with the function around it; threads have stacks of their own."""
    threads: dict[object, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and (_is_function(event) or _is_launch(event)):
            threads[event.get("pid"), event.get("tid")].append(event)
    for thread in threads.values():
        stack: list[TraceEvent] = []
        for event in sorted(thread, key=lambda e: (_start(e), -_end(e))):
            while stack and _end(stack[-1]) <= _start(event):
                stack.pop()
            if _is_function(event):
                stack.append(event)
            elif line := _users_line(stack):
                yield _correlation(event), line


def _users_line(stack: Sequence[TraceEvent]) -> str | None:
    """The innermost function that is the user's. Inductor's code has none: the whole model has called it."""
    for found in filter(None, (_FUNCTION.match(str(frame["name"])) for frame in reversed(stack))):
        if _INDUCTORS in found["file"]:
            return None
        if not _NOT_THE_USERS.search(found["file"]):
            return f"{found['file']}:{found['line']}"
    return None


def _is_function(event: TraceEvent) -> bool:
    return event.get("cat") == "python_function"


def _is_launch(event: TraceEvent) -> bool:
    return (
        event.get("cat") in ("cuda_runtime", "cuda_driver", "hip_runtime") and _correlation(event) is not None
    )


def _correlation(event: TraceEvent) -> object:
    arguments = event.get("args")
    return arguments.get("correlation") if isinstance(arguments, Mapping) else None


def _start(event: TraceEvent) -> float:
    return float(str(event["ts"]))


def _end(event: TraceEvent) -> float:
    return _start(event) + float(str(event.get("dur", 0)))
