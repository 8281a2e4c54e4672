"""The table of all passes by name. A pass's module is imported when the pass is asked for, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from kernelweld.errors import UnknownName
from kernelweld.passes.base import Pass

#: kernelweld's own passes, in the order in which they usually run.
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "canonicalize": "kernelweld.passes.canonicalize.canonicalize_pass:CanonicalizePass",
        "skinny-gemm": "kernelweld.passes.skinny_gemm:SkinnyGemmPass",
        "dialect": "kernelweld.passes.dialect.dialect_pass:DialectPass",
        "raise": "kernelweld.passes.raise_words:RaisePass",
        "plan": "kernelweld.passes.plan:PlanPass",
        "only-welds": "kernelweld.passes.only_welds:OnlyWeldsPass",
        "verify-welds": "kernelweld.passes.verify_welds:VerifyWeldsPass",
        "lower": "kernelweld.passes.lower:LowerPass",
    }
)

#: The entry-point group in which other distributions offer passes, as ``name = "module:Class"``.
GROUP = "kernelweld.passes"


def load(name: str) -> type[Pass]:
    """The class of the pass ``name``. Raises :class:`UnknownName` with close names."""
    places = passes()
    if name not in places:
        raise UnknownName("pass", name, tuple(places))
    module, _, attribute = places[name].partition(":")
    cls = getattr(import_module(module), attribute)
    if not (isinstance(cls, type) and issubclass(cls, Pass)):
        raise TypeError(f"{places[name]}, offered as pass {name!r}, is not a Pass")
    if cls.name != name:
        raise TypeError(f"{places[name]} is called {cls.name!r} but offered as {name!r}")
    return cls


def offered_by(name: str) -> str:
    """Which distribution a pass comes from, with its version; "kernelweld" for its own."""
    if name in BUILT_IN:
        return "kernelweld"
    (point,) = entry_points(group=GROUP, name=name)
    return "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"


@cache
def passes() -> Mapping[str, str]:
    """All passes by name, as ``module:Class``: the built-in ones, then those of other distributions."""
    return merged(BUILT_IN, entry_points(group=GROUP))


def merged(built_in: Mapping[str, str], offered: Iterable[EntryPoint]) -> Mapping[str, str]:
    """Both tables as one. Raises ``ValueError`` if two passes have one name: neither may hide the other."""
    places = dict(built_in)
    for point in sorted(offered, key=lambda p: p.name):
        if point.name in places:
            raise ValueError(f"two passes are called {point.name!r}: {places[point.name]} and {point.value}")
        places[point.name] = point.value
    return MappingProxyType(places)
