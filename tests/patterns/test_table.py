"""Every pattern stands in the table, under its own name, and answers for a word that exists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import kernelweld.patterns
from kernelweld.ir import WORDS
from kernelweld.patterns.pattern import Pattern
from kernelweld.patterns.table import PATTERNS


def pattern_classes() -> set[type[Pattern]]:
    """All concrete patterns that some module of the room defines."""
    found: set[type[Pattern]] = set()
    for module in pkgutil.iter_modules(kernelweld.patterns.__path__, "kernelweld.patterns."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, Pattern) and not inspect.isabstract(value):
                found.add(value)
    return found


def test_every_pattern_is_in_the_table() -> None:
    assert pattern_classes() == set(PATTERNS.values())


@pytest.mark.parametrize("name", PATTERNS)
def test_entry(name: str) -> None:
    cls = PATTERNS[name]
    assert cls.name == name
    assert cls.kind in {word.kind for word in WORDS}
    assert len(set(cls.anchors)) == len(cls.anchors) > 0
    assert cls() == cls(), "patterns hold no state"


def test_every_word_has_a_pattern() -> None:
    assert {cls.kind for cls in PATTERNS.values()} == {word.kind for word in WORDS}
