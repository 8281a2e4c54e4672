"""The table of all passes by name. A pass's module is imported when the pass is asked for, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from kernelweld.errors import UnknownName
from kernelweld.ir.offers import accepted, bad_offer, origin, refuse_known
from kernelweld.passes.base import Pass

#: kernelweld's own passes, in the order in which they usually run.
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "canonicalize": "kernelweld.passes.canonicalize.canonicalize_pass:CanonicalizePass",
        "dialect": "kernelweld.passes.dialect.dialect_pass:DialectPass",
        "raise": "kernelweld.passes.raise_words:RaisePass",
        "route": "kernelweld.passes.route:RoutePass",
        "page-slots": "kernelweld.passes.page_slots:PageSlotsPass",
        "skinny-gemm": "kernelweld.passes.skinny_gemm:SkinnyGemmPass",
        "plan": "kernelweld.passes.plan:PlanPass",
        "only-welds": "kernelweld.passes.only_welds:OnlyWeldsPass",
        "verify-welds": "kernelweld.passes.verify_welds:VerifyWeldsPass",
        "lower": "kernelweld.passes.lower:LowerPass",
    }
)

#: The entry-point group in which other distributions offer passes, as ``name = "module:Class"``.
GROUP = "kernelweld.passes"


def load(name: str) -> type[Pass]:
    """The class of the pass ``name``. Raises :class:`UnknownName` with close names, or :class:`BadOffer` for
    one of another distribution that cannot be used.
    """
    places = passes()
    if name not in places:
        raise UnknownName("pass", name, tuple(places))
    if name in BUILT_IN:
        return _load(name, places[name])
    try:
        return _load(name, places[name])
    except Exception as error:  # whatever the import of another distribution raises
        raise bad_offer("pass", name, places[name], error) from error


def _load(name: str, place: str) -> type[Pass]:
    module, _, attribute = place.partition(":")
    cls = getattr(import_module(module), attribute)
    if not (isinstance(cls, type) and issubclass(cls, Pass)):
        raise TypeError(f"{place} is not a Pass")
    if cls.name != name:
        raise TypeError(f"{place} is called {cls.name!r}")
    return cls


def offered_by(name: str) -> str:
    """Which distribution a pass comes from, with its version; "kernelweld" for its own."""
    return "kernelweld" if name in BUILT_IN else origin(GROUP, name, passes()[name])


@cache
def passes() -> Mapping[str, str]:
    """All passes by name, as ``module:Class``: the built-in ones, then those of other distributions."""
    return merged(BUILT_IN, entry_points(group=GROUP))


def merged(built_in: Mapping[str, str], offered: Iterable[EntryPoint]) -> Mapping[str, str]:
    """Both tables as one. Of two passes of one name the second is left out with a warning."""
    return accepted("pass", built_in, offered, _place)


def _place(point: EntryPoint, known: Mapping[str, str]) -> str:
    refuse_known(point, known)
    return point.value
