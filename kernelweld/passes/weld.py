"""What the plan pass decides: welds of chains of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from kernelweld.ir import Pointwise, RowReduce, Word, step_of
from kernelweld.ir.origin import sources_of
from kernelweld.ir.report import NearMiss, WeldReport


@dataclass(frozen=True)
class Chain:
    """Steps that become one row task, in topological order."""

    steps: tuple[fx.Node, ...]

    @property
    def words(self) -> tuple[Word, ...]:
        """The named words of the chain."""
        found = (step_of(node) for node in self.steps)
        return tuple(word for word in found if isinstance(word, Word))


@dataclass(frozen=True)
class Weld:
    """Chains that share one kernel launch. ``joined`` are concatenations of their results, which the kernel
    writes side by side.
    """

    name: str
    chains: tuple[Chain, ...]
    joined: tuple[fx.Node, ...] = ()

    @property
    def steps(self) -> tuple[fx.Node, ...]:
        """All steps of all chains."""
        return tuple(node for chain in self.chains for node in chain.steps)


@dataclass(frozen=True)
class WeldPlan:
    """The welds of one graph, the words that were left out with the reason, and how many words of each
    kind there are.
    """

    welds: tuple[Weld, ...]
    near_misses: tuple[NearMiss, ...] = ()
    words: Mapping[str, int] = field(default_factory=dict)
    reports: tuple[WeldReport, ...] = ()


def weld_name(chains: tuple[Chain, ...]) -> str:
    """A name from the words of the chains: ``rms_norm_rope__rope`` for a pack of two."""
    parts = ["_".join(dict.fromkeys(word.kind for word in chain.words)) for chain in chains]
    return "__".join(part for part in dict.fromkeys(parts) if part)


def describe(weld: Weld) -> WeldReport:
    """The report of one planned weld; its steps must still stand in the graph."""
    words = tuple(str(word) for chain in weld.chains for word in chain.words)
    sources = dict.fromkeys(line for node in weld.steps for line in sources_of(node))
    return WeldReport(weld.name, words, tuple(sources), tuple(_title(chain) for chain in weld.chains))


def _title(chain: Chain) -> str:
    """The words of a chain; of one without words, its unnamed steps."""
    named = [word.kind for word in chain.words]
    unnamed = [step for node in chain.steps if isinstance(step := step_of(node), Pointwise | RowReduce)]
    return " -> ".join(dict.fromkeys(named or [step.name for step in unnamed]))
