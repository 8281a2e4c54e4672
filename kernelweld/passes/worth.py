"""Which welds are worth a launch: one that cuts apart what Inductor would have fused is not made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from kernelweld.passes.miniature import Labels, Miniature
from kernelweld.passes.surroundings import NODES, Landscape, Surroundings
from kernelweld.passes.tasks.landing import landed
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
    they save are given up. At the end welds that read one value, which Inductor writes for their sake (a
    rotary table, say), are weighed together.

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
    losses.update(scales.weigh_together(left))
    return Worth(tuple(pack for pack in left if pack[0].steps[0] not in losses), losses)


@dataclass(frozen=True)
class _Verdict:
    """The losses of the chains of a pack that are given up, by number."""

    losses: Mapping[int, Loss] = field(default_factory=dict)


class _Scales:
    """Weighs the packs of one graph, whose state is that of all verdicts so far.

    A pack that was kept is settled until a weld next to it is given up.
    """

    def __init__(self, graph: fx.Graph, packs: Iterable[Pack]) -> None:
        self._land = Landscape(graph, map(_steps, packs))
        self._labels = Labels()
        self._verdicts: dict[object, _Verdict] = {}
        self._losses: dict[object, Loss] = {}
        self._settled: set[Pack] = set()
        self._next_to: defaultdict[fx.Node, list[Pack]] = defaultdict(list)

    def weigh(self, pack: Pack) -> tuple[Pack, dict[fx.Node, Loss]]:
        """What is left of ``pack``, and the losses of the rest, which from now on is Inductor's."""
        verdict = _Verdict() if pack in self._settled else self._verdict(pack)
        if not verdict.losses:
            self._settled.add(pack)
            return pack, {}
        kept = tuple(chain for i, chain in enumerate(pack) if i not in verdict.losses)
        self._land.release(_steps(pack))
        self._land.hold(_steps(kept))
        for step in _steps(pack):
            self._settled.difference_update(self._next_to[step])
        return kept, {node: loss for i, loss in verdict.losses.items() for node in pack[i].steps}

    def weigh_together(self, packs: Sequence[Pack]) -> dict[fx.Node, Loss]:
        """The losses of packs that share what they read, where all of them are worse than none."""
        losses: dict[fx.Node, Loss] = {}
        for crowd in self._crowds(packs):
            steps = tuple(node for pack in crowd for node in _steps(pack))
            if len(steps) > NODES or not losses.keys().isdisjoint(steps):
                continue
            loss = self._loss(Surroundings(self._land, steps), tuple(map(_steps, crowd)))
            if loss.welded > loss.fused:
                self._land.release(steps)
                losses.update(dict.fromkeys(steps, loss))
        return losses

    def _crowds(self, packs: Sequence[Pack]) -> Iterable[tuple[Pack, ...]]:
        """The sets of several packs that read one value, each set once."""
        readers: defaultdict[fx.Node, dict[Pack, None]] = defaultdict(dict)
        for pack in packs:
            for value in self._land.computed_reads(_steps(pack)):
                readers[value][pack] = None
        return dict.fromkeys(tuple(crowd) for crowd in readers.values() if len(crowd) > 1)

    def _loss(self, around: Surroundings, welds: Sequence[Sequence[fx.Node]]) -> Loss:
        key = self._key(around, welds)
        if key not in self._losses:
            welded, fused = (_launches(around, kernels, self._labels) for kernels in (welds, ()))
            self._losses[key] = Loss(welded, fused)
        return self._losses[key]

    def _verdict(self, pack: Pack) -> _Verdict:
        around = Surroundings(self._land, _steps(pack))
        for step in around.border:
            self._next_to[step].append(pack)
        if around.is_bare(_steps(pack)):
            return _Verdict()
        key = self._key(around, [chain.steps for chain in pack])
        if key not in self._verdicts:
            self._verdicts[key] = _Choice(pack, around, self._labels).verdict()
        return self._verdicts[key]

    def _key(self, around: Surroundings, groups: Iterable[Sequence[fx.Node]]) -> object:
        """Equal for ``groups`` of steps that play the same part in equal surroundings."""
        unwelded = Miniature(around.units([]), self._labels)
        return unwelded.key, tuple(tuple(map(unwelded.position.get, steps)) for steps in groups)


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
            self.known[kept] = _launches(self.around, [welded] if welded else [], self.labels)
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


def _launches(around: Surroundings, welds: Iterable[Collection[fx.Node]], labels: Labels) -> int:
    """The kernels in a region of which ``welds`` are one each, as are operators without words in them."""
    kernels = [{*steps, *landed(steps)} for steps in welds]
    miniature = Miniature(around.units(kernels), labels)
    return miniature.launches() - miniature.calls + len(kernels) + len(around.operators(kernels))


def _steps(pack: Pack) -> tuple[fx.Node, ...]:
    return tuple(node for chain in pack for node in chain.steps)
