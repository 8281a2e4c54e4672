"""Lines of generated source with indentation and trailing comments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Source:
    """Collects lines; ``indented`` opens a block."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "", comment: str = "") -> None:
        body = f"{text}  # {comment}" if text and comment else text or (f"# {comment}" if comment else "")
        self._lines.append(f"{'    ' * self._depth}{body}" if body else "")

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def printable(comment: str) -> str:
    """``comment`` on one line and without the characters that a kernel file may not contain."""
    return (
        " ".join(comment.split())
        .replace("\\", "/")
        .replace("'''", '"')
        .replace('"""', '"')
        .encode("ascii", "replace")
        .decode()
    )
