"""Code of other distributions that runs where kernelweld's own does, as a compile cache has to know it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kernelweld.ir import words
from kernelweld.ir.vocabulary import WORDS
from kernelweld.ir.vocabulary import offered_by as word_from
from kernelweld.passes.spec import parse
from kernelweld.passes.table import BUILT_IN, load
from kernelweld.passes.table import offered_by as pass_from
from kernelweld.patterns.table import PATTERNS, patterns
from kernelweld.patterns.table import offered_by as pattern_from


def offers(pipeline: str) -> Iterator[str]:
    """Every word and pattern of other distributions, and every pass of theirs that ``pipeline`` names: name,
    version, and a hash of its code.
    """
    for kind, word in words().items():
        if word not in WORDS:
            yield f"word {kind} of {word_from(kind)} {_digest(word)}"
    for name, pattern in patterns().items():
        if name not in PATTERNS:
            yield f"pattern {name} of {pattern_from(name)} {_digest(pattern)}"
    for spec in parse(pipeline):
        if spec.name not in BUILT_IN:
            yield f"pass {spec.name} of {pass_from(spec.name)} {_digest(load(spec.name))}"


def _digest(cls: type) -> str:
    return _code(_package(cls.__module__))


def _package(module: str) -> str:
    """The outermost package that ``module`` is in, or itself. One without a file only holds others."""
    parts = module.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return next((name for name in names if getattr(sys.modules.get(name), "__file__", None)), module)


@cache
def _code(name: str) -> str:
    """A hash of every source file of a package, or of the one file of a module."""
    module, digest = sys.modules[name], hashlib.sha256()
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in files or [Path(file) for file in (module.__file__,) if file is not None]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
