"""``KERNELWELD_OPTIONS``: what a user may choose for the pass, since vLLM's slot takes a name alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from kernelweld.errors import BadOption, KernelweldError, UnknownName

VARIABLE = "KERNELWELD_OPTIONS"

_WANTED = {
    "enabled": "true or false",
    "pipeline": "a text such as 'canonicalize,dialect,raise,plan,lower', or null for kernelweld's own",
    "without": "a list of ids or names of welds, which `kernelweld bisect` and the engine's log show",
    "max_tokens": "a number of tokens of at least 1, or null for no limit",
    "verify": "true or false",
    "strict": "true or false",
    "tuned": "true or false",
    "untested_vllm": "true or false",
}
_OBJECT = 'a JSON object such as {"max_tokens": 256}'


@dataclass(frozen=True)
class Options:
    """What ``KERNELWELD_OPTIONS`` may say.

    Args:
        enabled: Whether graphs are welded at all.
        pipeline: Passes to run in place of kernelweld's own.
        without: Ids or names of welds that are not made.
        max_tokens: Only graphs compiled for at most so many tokens are welded.
        verify: Checks each weld on drawn inputs while it compiles, and drops those that break the contract.
        strict: Raises where kernelweld would log a line and leave the graph as it was.
        tuned: Launches kernels as ``kernelweld bench --tune`` found best on this GPU.
        untested_vllm: Also works inside a release of vLLM that it was not tested with.
    """

    enabled: bool = True
    pipeline: str | None = None
    without: tuple[str, ...] = ()
    max_tokens: int | None = None
    verify: bool = False
    strict: bool = False
    tuned: bool = False
    untested_vllm: bool = False

    def to_json(self) -> str:
        """All options, one text for equal ones."""
        return json.dumps(asdict(self), sort_keys=True)


def from_environment() -> Options:
    """The options of this process. Raises BadOption or, for an option that does not exist, UnknownName."""
    text = os.environ.get(VARIABLE)
    try:
        return _options(_read(text)) if text else Options()
    except KernelweldError as error:
        error.source = f"the environment variable {VARIABLE}"
        raise


def _read(text: str) -> Mapping[str, object]:
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise BadOption(VARIABLE, text, _OBJECT)
    return given


def _options(given: Mapping[str, object]) -> Options:
    known = [field.name for field in fields(Options)]
    for name, value in given.items():
        if name not in known:
            raise UnknownName("option", name, known)
        if not _fits(name, value):
            raise BadOption(name, value, _WANTED[name])
    read = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Options(**read)  # type: ignore[arg-type]


def _fits(name: str, value: object) -> bool:
    match name:
        case "pipeline":
            return value is None or isinstance(value, str)
        case "without":
            return isinstance(value, list) and all(map(_is_name, value))
        case "max_tokens":
            return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)
        case _:
            return isinstance(value, bool)


def _is_name(one: object) -> bool:
    """Whether ``one`` may be the id or the name of a weld."""
    return isinstance(one, str) and re.fullmatch(r"[\w.]+", one) is not None
