"""Identifiers of a generated kernel: readable, unique, never a word of Python or of the file around them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from kernelweld.codegen.helpers import HELPERS

_TAKEN = frozenset(
    {"tl", "triton", "pid", "math", "libdevice", "float", "int", "min", "max", "abs", "sum", "range", "print"}
)


def identifier(text: str) -> str:
    """``text`` with everything that an identifier cannot hold turned into underscores."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "v"
    return f"v_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


class NameTable:
    """Hands out each name once; a second request for the same name gets a suffix."""

    def __init__(self, arguments: Iterable[str]) -> None:
        self._arguments = frozenset(arguments)
        self._used = set(_TAKEN) | set(HELPERS) | self._arguments

    def fresh(self, text: str, suffix: str = "") -> str:
        """A new identifier close to ``text``: ``_tile`` is added beside an argument, else ``suffix``,
        else a number.
        """
        base = identifier(text)
        if base in self._arguments:
            base = f"{base}_tile"
        if base in self._used and suffix:
            base = f"{base}_{suffix}"
        name, number = base, 2
        while name in self._used:
            name, number = f"{base}_{number}", number + 1
        self._used.add(name)
        return name
