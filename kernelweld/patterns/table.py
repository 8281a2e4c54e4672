"""All patterns, in the order in which they are tried: kernelweld's own, then those of other distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from kernelweld.errors import UnknownName
from kernelweld.ir import words
from kernelweld.ir.offers import accepted, origin, refuse_known
from kernelweld.patterns.cache_write import CacheWritePattern
from kernelweld.patterns.e2m1 import E2M1Pattern
from kernelweld.patterns.e4m3 import E4M3Pattern
from kernelweld.patterns.e8m0 import E8M0Pattern
from kernelweld.patterns.expert_topk import ExpertTopKPattern
from kernelweld.patterns.gate_mul import GateMulPattern
from kernelweld.patterns.l2_norm import L2NormPattern
from kernelweld.patterns.layer_norm import LayerNormPattern
from kernelweld.patterns.matvec import MatVecPattern
from kernelweld.patterns.pattern import Pattern
from kernelweld.patterns.quant import QuantPattern
from kernelweld.patterns.quant_operators import QuantOperatorPattern
from kernelweld.patterns.quant_scale import QuantScalePattern
from kernelweld.patterns.residual_add import ResidualAddPattern
from kernelweld.patterns.rms_norm import RMSNormPattern
from kernelweld.patterns.rope import RopePattern
from kernelweld.patterns.rope_table import RopeTablePattern
from kernelweld.patterns.router_scores import RouterScoresPattern

#: Name to pattern class. A pattern sees the words that earlier ones raised: a gate inside a norm is the
#: norm's, and a residual sum is recognised by the norm that reads it;
#: scores are a router's if a choice of experts reads them.
PATTERNS: Mapping[str, type[Pattern]] = MappingProxyType(
    {
        cls.name: cls
        for cls in (
            ExpertTopKPattern,
            RouterScoresPattern,
            LayerNormPattern,
            RMSNormPattern,
            L2NormPattern,
            RopePattern,
            RopeTablePattern,
            GateMulPattern,
            E8M0Pattern,
            QuantScalePattern,
            E4M3Pattern,
            E2M1Pattern,
            QuantPattern,
            QuantOperatorPattern,
            CacheWritePattern,
            ResidualAddPattern,
            MatVecPattern,
        )
    }
)

#: The entry-point group in which other distributions offer patterns, as ``name = "module:Class"``.
GROUP = "kernelweld.patterns"


@cache
def patterns() -> Mapping[str, type[Pattern]]:
    """All patterns by name: the built-in ones, then those of other distributions, by name."""
    return merged(PATTERNS, entry_points(group=GROUP))


def merged(
    built_in: Mapping[str, type[Pattern]], offered: Iterable[EntryPoint]
) -> Mapping[str, type[Pattern]]:
    """Both tables as one. What is offered and cannot be used is left out with a warning."""
    return accepted("pattern", built_in, offered, loaded)


def loaded(point: EntryPoint, known: Mapping[str, type[Pattern]] = PATTERNS) -> type[Pattern]:
    """The pattern that ``point`` offers. Raises if it is none, one of its name is ``known``, or there is no
    word of its kind.
    """
    refuse_known(point, known)
    cls = point.load()
    if not (isinstance(cls, type) and issubclass(cls, Pattern)):
        raise TypeError(f"{point.value} is not a Pattern")
    if cls.name != point.name:
        raise TypeError(f"{point.value} is called {cls.name!r}")
    if cls.kind not in words():
        raise ValueError(f"there is no word {cls.kind!r} for it to raise")
    return cls


def load(name: str) -> type[Pattern]:
    """The pattern ``name``. Raises :class:`UnknownName` with close names."""
    found = patterns()
    if name not in found:
        raise UnknownName("pattern", name, tuple(found))
    return found[name]


def offered_by(name: str) -> str:
    """Which distribution a pattern comes from, with its version; "kernelweld" for its own."""
    return "kernelweld" if name in PATTERNS else origin(GROUP, name, patterns()[name])
