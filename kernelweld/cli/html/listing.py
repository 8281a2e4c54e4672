"""Lines of a model, file by file, with their numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from kernelweld.cli.code import Code
from kernelweld.cli.html.highlight import highlighted
from kernelweld.cli.html.markup import Html, element, joined


def listing(code: Sequence[Code]) -> Html:
    """Each file with its lines; a gap between lines is drawn."""
    return joined(_file(name, list(lines)) for name, lines in groupby(code, key=lambda one: one.file))


def _file(name: str, lines: Sequence[Code]) -> Html:
    known = [one for one in lines if one.text is not None]
    caption = element("figcaption", name if known else f"{name}:{', '.join(str(one.line) for one in lines)}")
    body = element("pre", element("code", *_lines(known)), tabindex=0) if known else ""
    return element("figure", caption, body, class_="lines")


def _lines(lines: Sequence[Code]) -> Iterator[Html]:
    """Each run of lines without its common indentation: runs may be of several functions."""
    first = True
    for _, run in groupby(enumerate(lines), key=lambda entry: entry[1].line - entry[0]):
        block = [one for _, one in run]
        texts = textwrap.dedent("\n".join(one.text or "" for one in block)).split("\n")
        for i, (one, line) in enumerate(zip(block, texts, strict=True)):
            gap = "" if first or i else " gap"
            number = element("span", str(one.line), class_="no")
            yield element("span", number, highlighted(line.rstrip()), class_=f"line{gap}")
        first = False
