"""What other distributions offer by entry points, ``name = "module:Class"`` in a group."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from kernelweld.errors import BadOffer, KernelweldWarning

Place = TypeVar("Place", bound=type | str)


def accepted(
    kind: str,
    built_in: Mapping[str, Place],
    offered: Iterable[EntryPoint],
    place_of: Callable[[EntryPoint, Mapping[str, Place]], Place],
) -> Mapping[str, Place]:
    """``built_in`` and what is ``offered``, by name. ``place_of`` says what a name stands for, beside those
    found so far; what makes it raise is left out with a warning: a model runs on.
    """
    found = dict(built_in)
    for point in sorted(offered, key=lambda p: p.name):
        try:
            found[point.name] = place_of(point, found)
        except Exception as error:  # whatever the import of another distribution raises
            warnings.warn(KernelweldWarning.of(bad_offer(kind, point.name, point.value, error)), stacklevel=2)
    return MappingProxyType(found)


def bad_offer(kind: str, name: str, value: str, error: Exception) -> BadOffer:
    """The error that says why an offer cannot be used, in one line."""
    return BadOffer(kind, name, value, " ".join(f"{type(error).__name__}: {error}".split()))


def refuse_known(point: EntryPoint, known: Mapping[str, type | str]) -> None:
    """Raises ``ValueError`` if there is something of that name: neither may hide the other."""
    if point.name in known:
        first = known[point.name]
        place = first if isinstance(first, str) else f"{first.__module__}:{first.__qualname__}"
        raise ValueError(f"{place} has that name too")


def origin(group: str, name: str, place: type | str) -> str:
    """The distribution that offers ``place``, a class or where it is, with its version."""
    points = entry_points(group=group, name=name)
    point = next((p for p in points if place in (p.value, _loaded(p))), None)
    return "unknown" if point is None or point.dist is None else f"{point.dist.name} {point.dist.version}"


def _loaded(point: EntryPoint) -> object:
    return getattr(sys.modules.get(point.module), point.attr, None)
