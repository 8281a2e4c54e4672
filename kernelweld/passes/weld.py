"""What the plan pass decides: welds of chains of steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernelweld.ir import Word, step_of
from kernelweld.ir.report import NearMiss


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
    """Chains that share one kernel launch."""

    name: str
    chains: tuple[Chain, ...]

    @property
    def steps(self) -> tuple[fx.Node, ...]:
        """All steps of all chains."""
        return tuple(node for chain in self.chains for node in chain.steps)


@dataclass(frozen=True)
class WeldPlan:
    """The welds of one graph, and the words that were left out with the reason."""

    welds: tuple[Weld, ...]
    near_misses: tuple[NearMiss, ...] = ()


def weld_name(chains: tuple[Chain, ...]) -> str:
    """A name from the words of the chains: ``rms_norm_rope__rope`` for a pack of two."""
    parts = ["_".join(dict.fromkeys(word.kind for word in chain.words)) for chain in chains]
    return "__".join(part for part in dict.fromkeys(parts) if part)
