"""Python source as HTML, coloured by Python's own tokenizer."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterator
from contextlib import suppress

from kernelweld.cli.html.markup import Html, element, joined

_CLASSES = {tokenize.STRING: "s", tokenize.COMMENT: "c", tokenize.NUMBER: "n"}
_STRINGS = frozenset({"FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"})


def highlighted(source: str) -> Html:
    """``source`` with keywords, strings, comments and numbers in ``span``s.

    From where it stops to be Python it stays plain, as a line of a longer statement does.
    """
    lines, parts = source.splitlines(keepends=True), list[str]()
    row, column = 1, 0
    for kind, start, end in _coloured(source):
        parts += [
            _between(lines, (row, column), start),
            element("span", _between(lines, start, end), class_=kind),
        ]
        row, column = end
    return joined([*parts, _between(lines, (row, column), (len(lines) + 1, 0))])


def _coloured(source: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Class, start and end of what is not plain, row from 1 and column from 0."""
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = "s" if tokenize.tok_name[token.type] in _STRINGS else _CLASSES.get(token.type)
            if token.type == tokenize.NAME and keyword.iskeyword(token.string):
                kind = "k"
            if kind is not None:
                yield kind, token.start, token.end


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, left), (last, right) = start, end
    if first == last:
        return "".join(lines[first - 1 : first])[left:right]
    middle = lines[first : last - 1]
    ending = lines[last - 1][:right] if last <= len(lines) else ""
    return "".join([*(line[left:] for line in lines[first - 1 : first]), *middle, ending])
