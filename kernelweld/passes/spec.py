"""Pipelines as text: ``canonicalize,raise,plan{max-tasks=8},lower`` to passes and back.

The text is what the command line takes, what tests say they run, and part of the compile cache's key::

    pipeline := pass ("," pass)*
    pass     := name [ "{" option* "}" ]         options with spaces between
    option   := name "=" value                   the items of a tuple with commas between

Names are kebab-case. An option is a field of the pass's dataclass, converted by the field's type; a value has
no space, brace or ``=``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from kernelweld.errors import BadPipeline, UnknownName
from kernelweld.passes.base import Pass
from kernelweld.patterns.pattern import Pattern

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_VALUE = re.compile(r"[^\s{}=]+")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Option:
    """One option as written, and where in the text its name and value start."""

    name: str
    value: str
    name_at: int
    value_at: int


@dataclass(frozen=True)
class PassSpec:
    """One pass as written, and where in the text its name starts."""

    name: str
    options: tuple[Option, ...]
    at: int


def parse(text: str) -> tuple[PassSpec, ...]:
    """The passes that ``text`` names, unresolved. Raises :class:`BadPipeline` at the first mistake."""
    return _Parser(text).pipeline()


def build(text: str, spec: PassSpec, cls: type[Pass]) -> Pass:
    """The pass of class ``cls`` with the options of ``spec``; errors point into ``text``."""
    known = {_kebab(field.name): field for field in fields(cls)}
    types = get_type_hints(cls)
    values: dict[str, object] = {}
    for option in spec.options:
        field = known.get(_kebab(option.name))
        if field is None:
            raise UnknownName(f"option of pass {spec.name!r}", option.name, tuple(known))
        if field.name in values:
            raise BadPipeline(text, option.name_at, f"option {option.name!r} is given twice")
        values[field.name] = _converted(text, option, types[field.name])
    return _constructed(text, spec, cls, values)


def format_pass(p: Pass) -> str:
    """The text of one pass: its name and, in the order of the fields, the options not at their defaults."""
    values = ((f, getattr(p, f.name)) for f in fields(p) if f.compare)  # what a pass records is no option
    options = [f"{_kebab(f.name)}={_format(value)}" for f, value in values if value != _default(f)]
    return f"{p.name}{{{' '.join(options)}}}" if options else p.name


def describe_options(cls: type[Pass] | type[Pattern]) -> list[str]:
    """The options of a pass or a pattern in words, for example ``max-tasks=8: an integer``."""
    types = get_type_hints(cls)
    return [f"{_kebab(f.name)}{_shown_default(f)}: {_describe(types[f.name])}" for f in fields(cls)]


def _shown_default(field: Field[object]) -> str:
    default = _default(field)
    return "" if default is MISSING else f"={_format(default)}"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def pipeline(self) -> tuple[PassSpec, ...]:
        passes = [self._pass()]
        while self._next() == ",":
            self.at += 1
            passes.append(self._pass())
        if self._next():
            raise self._error("expected ',' or the end")
        return tuple(passes)

    def _pass(self) -> PassSpec:
        name, at = self._token(_NAME, "a pass name")
        if self._next() != "{":
            return PassSpec(name, (), at)
        self.at += 1
        options = []
        while self._next() != "}":
            options.append(self._option())
        self.at += 1
        return PassSpec(name, tuple(options), at)

    def _option(self) -> Option:
        name, name_at = self._token(_NAME, "an option name or '}'")
        if self._next() != "=":
            raise self._error(f"expected '=' after option {name!r}")
        self.at += 1
        value, value_at = self._token(_VALUE, f"a value for option {name!r}")
        return Option(name, value, name_at, value_at)

    def _token(self, pattern: re.Pattern[str], what: str) -> tuple[str, int]:
        self._next()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._error(f"expected {what}")
        self.at = match.end()
        return match.group(), match.start()

    def _next(self) -> str:
        """The next character that is no space, "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _error(self, reason: str) -> BadPipeline:
        return BadPipeline(self.text, self.at, reason)


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_SCALARS: Mapping[object, tuple[Callable[[str], object], str, str]] = {
    bool: (_bool, "true or false", "truth values"),
    int: (int, "an integer", "integers"),
    float: (float, "a number", "numbers"),
    str: (str, "a string", "strings"),
}


def _converted(text: str, option: Option, kind: object) -> object:
    try:
        return _convert(option.value, kind)
    except ValueError:
        reason = f"option {option.name!r} takes {_describe(kind)}, not {option.value!r}"
        raise BadPipeline(text, option.value_at, reason) from None


def _convert(value: str, kind: object) -> object:
    if get_origin(kind) is tuple:
        return tuple(_convert(item, get_args(kind)[0]) for item in value.split(","))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(value)
        return value
    return _SCALARS[kind][0](value)


def _describe(kind: object) -> str:
    if get_origin(kind) is tuple:
        return f"{_SCALARS[get_args(kind)[0]][2]} with commas between"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return _SCALARS[kind][1]


def _constructed(text: str, spec: PassSpec, cls: type[Pass], values: Mapping[str, object]) -> Pass:
    missing = [f.name for f in fields(cls) if f.name not in values and _default(f) is MISSING]
    if missing:
        raise BadPipeline(text, spec.at, f"pass {spec.name!r} needs option {_kebab(missing[0])!r}")
    try:
        return cls(**values)
    except ValueError as error:
        raise BadPipeline(text, spec.at, f"pass {spec.name!r}: {error}") from error


def _default(field: Field[object]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _format(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_format, value)) if isinstance(value, tuple) else str(value)


def _kebab(name: str) -> str:
    return name.replace("_", "-")
