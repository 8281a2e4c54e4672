"""Which welds are worth a launch: one that cuts apart what Inductor would have fused is not made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from kernelweld.passes.miniature import Labels, Miniature
from kernelweld.passes.surroundings import Landscape, Surroundings
from kernelweld.passes.weld import Chain

#: Giving up a weld changes what its neighbours are worth: all are weighed again, so many times at most.
ROUNDS = 3

Pack = tuple[Chain, ...]


@dataclass(frozen=True)
class Loss:
    """Predicted launches around a chain: ``welded``, and when ``fused`` by Inductor, which are fewer."""

    welded: int
    fused: int

    def __str__(self) -> str:
        more = self.welded - self.fused
        count = "one launch" if more == 1 else f"{more} launches"
        return (
            "Inductor fuses it with its neighbours; a kernel of its own would be "
            f"{count} more ({self.welded} instead of {self.fused})"
        )


@dataclass(frozen=True)
class Worth:
    """The packs that are left, and what the steps of the chains that were given up would have cost."""

    packs: tuple[Pack, ...]
    losses: Mapping[fx.Node, Loss]


def weigh(graph: fx.Graph, packs: Sequence[Pack]) -> Worth:
    """Gives up each chain of ``packs`` that Inductor would compute in fewer launches.

    ``graph`` holds raised words and stays as it is. Every weld is weighed where it stands: the launches that
    are predicted for its steps and all that Inductor could fuse with them, once with the weld as one call and
    once with the nodes that its words came from. The other welds are calls in both. A weld that costs as many
    launches as it saves is kept: its kernel is the faster one. Of a pack, only the chains that cost more than
    they save are given up. A value that is written only because several welds read it (a rotary table, say)
    is charged to none of them.

    Time is linear in the size of the packs' surroundings, which is bounded; equal ones are weighed once.
    """
    scales = _Scales(graph, packs)
    left, losses = list(packs), dict[fx.Node, Loss]()
    for _ in range(ROUNDS):
        before = list(left)
        for i, pack in enumerate(left):
            left[i], lost = scales.weigh(pack)
            losses.update(lost)
        left = [pack for pack in left if pack]
        if left == before:
            break
    return Worth(tuple(left), losses)


@dataclass(frozen=True)
class _Verdict:
    """The losses of the chains of a pack that are given up, by number."""

    losses: Mapping[int, Loss] = field(default_factory=dict)


class _Scales:
    """Weighs the packs of one graph, whose state is that of all verdicts so far."""

    def __init__(self, graph: fx.Graph, packs: Iterable[Pack]) -> None:
        self._land = Landscape(graph, map(_steps, packs))
        self._labels = Labels()
        self._verdicts: dict[object, _Verdict] = {}

    def weigh(self, pack: Pack) -> tuple[Pack, dict[fx.Node, Loss]]:
        """What is left of ``pack``, and the losses of the rest, which from now on is Inductor's."""
        verdict = self._verdict(pack)
        if not verdict.losses:
            return pack, {}
        kept = tuple(chain for i, chain in enumerate(pack) if i not in verdict.losses)
        self._land.release(_steps(pack))
        self._land.hold(_steps(kept))
        return kept, {node: loss for i, loss in verdict.losses.items() for node in pack[i].steps}

    def _verdict(self, pack: Pack) -> _Verdict:
        around = Surroundings(self._land, _steps(pack))
        if around.is_bare(_steps(pack)):
            return _Verdict()
        unwelded = Miniature(around.units(()), self._labels)
        places = tuple(tuple(map(unwelded.position.get, chain.steps)) for chain in pack)
        key = (unwelded.key, places)
        if key not in self._verdicts:
            self._verdicts[key] = _Choice(pack, around, self._labels).verdict()
        return self._verdicts[key]


@dataclass
class _Choice:
    """Searches the chains of one pack that are best welded."""

    pack: Pack
    around: Surroundings
    labels: Labels
    known: dict[frozenset[int], int] = field(default_factory=dict)

    def verdict(self) -> _Verdict:
        """The best part of the pack, its chains given up one at a time, the costliest first."""
        everything = frozenset(range(len(self.pack)))
        kept = self._regained(self._reduced(everything), everything)
        fused = self.launches(kept)
        lost = sorted(everything - kept)
        return _Verdict({i: Loss(self.launches(kept | {i} if kept else everything), fused) for i in lost})

    def launches(self, kept: frozenset[int]) -> int:
        """The kernels in the region, that of the ``kept`` chains included."""
        if kept not in self.known:
            welded = {node for i in kept for node in self.pack[i].steps}
            miniature = Miniature(self.around.units(welded), self.labels)
            self.known[kept] = miniature.launches() - miniature.calls + bool(kept)
        return self.known[kept]

    def _reduced(self, kept: frozenset[int]) -> frozenset[int]:
        """``kept`` without the chains that cost launches, or nothing if what is left costs launches still."""
        nothing = self.launches(frozenset())
        while kept:
            fewer = min((kept - {i} for i in sorted(kept, reverse=True)), key=self.launches)
            if self.launches(fewer) >= self.launches(kept) <= nothing:
                break
            kept = fewer
        return kept

    def _regained(self, kept: frozenset[int], everything: Collection[int]) -> frozenset[int]:
        """``kept`` with the chains that were given up on the way, but cost nothing in the end."""
        for i in sorted(everything):
            if kept and self.launches(kept | {i}) <= self.launches(kept):
                kept |= {i}
        return kept


def _steps(pack: Pack) -> tuple[fx.Node, ...]:
    return tuple(node for chain in pack for node in chain.steps)
