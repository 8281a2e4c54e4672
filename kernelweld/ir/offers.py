"""What other distributions offer by entry points, ``name = "module:Class"`` in a group."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from kernelweld.errors import KernelweldWarning

Class = TypeVar("Class", bound=type)

REMEDY = "Repair or uninstall the package that offers it."


def accepted(
    what: str,
    built_in: Mapping[str, Class],
    offered: Iterable[EntryPoint],
    loaded: Callable[[EntryPoint, Mapping[str, Class]], Class],
) -> Mapping[str, Class]:
    """``built_in`` and what is ``offered``, by name. ``loaded`` gives the class of an entry point beside those
    found so far; what makes it raise is left out with a warning: a model runs on.
    """
    found = dict(built_in)
    for point in sorted(offered, key=lambda p: p.name):
        try:
            found[point.name] = loaded(point, found)
        except Exception as error:  # whatever the import of another distribution raises
            cause = f"{what} {point.name!r} ({point.value}) is left out: {type(error).__name__}: {error}"
            warnings.warn(KernelweldWarning(cause, REMEDY), stacklevel=2)
    return MappingProxyType(found)


def refuse_known(point: EntryPoint, known: Mapping[str, type]) -> None:
    """Raises ``ValueError`` if there is something of that name: neither may hide the other."""
    if point.name in known:
        first = f"{known[point.name].__module__}:{known[point.name].__qualname__}"
        raise ValueError(f"{first} has that name too")


def origin(group: str, name: str, cls: type) -> str:
    """The distribution that offers ``cls``, with its version."""
    points = entry_points(group=group, name=name)
    point = next((p for p in points if getattr(sys.modules.get(p.module), p.attr, None) is cls), None)
    return "unknown" if point is None or point.dist is None else f"{point.dist.name} {point.dist.version}"
